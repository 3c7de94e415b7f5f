"""The exception for mistakes that the user can fix. Any other exception that reaches the user is a bug."""


class EmatError(Exception):
    """Something that the user can fix: the message says what was wrong, gives the value, and says what to do.

    The command line prints the message alone and exits with code 2.

    >>> raise EmatError("mask.png is 40 x 30 but its photo is 80 x 60; save the mask at the photo's size")
    Traceback (most recent call last):
    emat.errors.EmatError: mask.png is 40 x 30 but its photo is 80 x 60; save the mask at the photo's size
    """
