import ast
import pickle
import re
from pathlib import Path

import emat
from emat.errors import CODES, EmatError

ERRORS = {"EmatError", "WriteError", "NoSession", "TooManyTabs", "_NotMeasured"}


def _raised() -> list[tuple[str, ast.Call]]:
    """Every place in the package where an error is made, with the call."""
    root = Path(emat.__file__).parent
    return [
        (f"{path.relative_to(root)}:{node.lineno}", node)
        for path in sorted(root.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS
    ]


def test_every_error_has_a_code_of_the_table_or_that_of_the_error_behind_it() -> None:
    wrong = []
    for where, call in _raised():
        if len(call.args) != 2 or call.keywords:
            wrong.append(where)
        elif isinstance(call.args[0], ast.Constant):
            wrong += [where] * (call.args[0].value not in CODES)
        elif not (isinstance(call.args[0], ast.Attribute) and call.args[0].attr == "code"):
            wrong.append(where)
    assert wrong == []


def test_every_code_is_used_and_is_two_to_four_words() -> None:
    root = Path(emat.__file__).parent
    code = "\n".join(path.read_text() for path in root.rglob("*.py") if path != root / "errors.py")
    assert [name for name in CODES if f'"{name}"' not in code] == []
    assert list(CODES) == sorted(CODES)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+){1,3}", code) for code in CODES)
    assert all(re.fullmatch(r"[A-Z].*\.", meaning) for meaning in CODES.values())


def test_a_code_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(EmatError("mask-size", "the mask is too small")))
    assert (error.code, str(error)) == ("mask-size", "the mask is too small")
