"""The command line as a user calls it, without starting a process."""

import pytest

from emat.cli import main


def run(*words: object) -> int:
    """Run `emat` with these words and return its exit code; what it prints is printed as usual."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)
