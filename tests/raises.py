"""What a test expects of an error: its code and the values that it names, but not how its sentence is written."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from emat.errors import EmatError


@contextmanager
def raises_code(code: str, *named: str, kind: type[EmatError] = EmatError) -> Iterator[pytest.ExceptionInfo[EmatError]]:
    """Expect an error in the block.

    Args:
        code: The error's code, or several that it may have with | between them.
        named: Values that the sentence names, such as a file or a class.
        kind: The class of the error.
    """
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code in code.split("|"), f"{caught.value.code}: {caught.value}"
    for value in named:
        assert value in str(caught.value)
