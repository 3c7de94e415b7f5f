"""The exception for mistakes that the user can fix. Any other exception that reaches the user is a bug."""


class EmatError(Exception):
    """Something that the user can fix: the message says what was wrong, gives the value, and says what to do.

    The command line prints the message alone and exits with code 2.

    >>> raise EmatError("mask.png is 40 x 30 but its photo is 80 x 60; save the mask at the photo's size")
    Traceback (most recent call last):
    emat.errors.EmatError: mask.png is 40 x 30 but its photo is 80 x 60; save the mask at the photo's size

    A message is one line of text that any terminal shows, whatever the names of files in it contain.

    >>> print(EmatError("a\\nb.png does not exist"))
    a\\nb.png does not exist
    """

    def __str__(self) -> str:
        text = super().__str__()
        return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
