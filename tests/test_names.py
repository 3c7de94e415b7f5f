"""Names in the package have one meaning: see docs/glossary.md."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "emat"
FILES = sorted(PACKAGE.rglob("*.py"))
# An index is an index, a path is a path, a trained part that loads from a file is a head, the lists that papers use are
# published, and a photo to be predicted is a query.
NOT_IN_THE_GLOSSARY = {"place", "places", "contender", "contenders", "circulated", "question", "questions"}


def names_in(tree: ast.AST) -> Iterator[str]:
    """Give every name that the code defines or uses, strings and comments excepted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name


def test_no_module_is_named_for_being_useful() -> None:
    assert not {"utils", "util", "helpers", "common", "misc"} & {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_names_are_words_of_the_glossary(path: Path) -> None:
    assert not NOT_IN_THE_GLOSSARY & set(names_in(ast.parse(path.read_text())))
