"""The command line as a user calls it, without starting a process."""

import pytest

from emat.cli import main
from emat.errors import EmatError


def run(*words: object) -> int | str:
    """Run `emat` with these words; what it prints is printed as usual.

    Returns:
        The exit code. If the run ended with an error that the user can fix, whose exit code is 2, the error's own code.
    """
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    error = ended.value.__context__
    if isinstance(error, EmatError):
        assert ended.value.code == 2
        return error.code
    return int(ended.value.code or 0)
