"""The one exception for what the user can fix; anything else that is raised is a bug."""


class EmatError(Exception):
    """Something the user can fix: the message names the thing, the value received and the way out.

    The command line prints the message alone and exits with code 2.

    >>> raise EmatError("mask.png is 40 x 30 but its photo is 80 x 60; save the mask at the photo's size")
    Traceback (most recent call last):
    emat.errors.EmatError: mask.png is 40 x 30 but its photo is 80 x 60; save the mask at the photo's size
    """
