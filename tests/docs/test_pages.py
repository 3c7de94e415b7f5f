"""What the pages say fits the project: commands have the options they show, Python blocks are valid, links lead on."""

import ast
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.main import get_command

from emat.cli import VERBS, build_app

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
NOTEBOOKS = [ROOT / "notebooks" / "README.md", *sorted((ROOT / "notebooks").glob("*.ipynb"))]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
OPENING = re.compile(r"^ *```(.*)$", re.MULTILINE)
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LINK = re.compile(r"\]\(([^)\s\\]+)\)")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    found = FENCE.finditer(page.read_text(encoding="utf-8"))
    return [
        re.sub(f"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        for match in found
        if match["language"] == language
    ]


def commands(page: Path) -> list[list[str]]:
    """The words of every `emat ...` line of a page's shell blocks."""
    lines = [line for text in blocks(page, "bash") for line in text.replace("\\\n", " ").splitlines()]
    parts = [part for line in lines for part in line.split("&&")]
    return [shlex.split(part, comments=True)[1:] for part in parts if part.strip().startswith("emat ")]


def inline_lines(page: Path) -> list[str]:
    """What stands between backticks in a page's sentences, each on one line."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [" ".join(found.split()) for found in INLINE.findall(text)]


def scripts(page: Path) -> list[list[str]]:
    """The words of every `python benchmarks/...` and `python docs/...` line of a page, in blocks and in sentences."""
    lines = [line for text in blocks(page, "bash") for line in text.replace("\\\n", " ").splitlines()]
    starts = ("python benchmarks/", "python docs/", "python tests/", "python notebooks/")
    return [shlex.split(line, comments=True)[1:] for line in [*lines, *inline_lines(page)] if line.startswith(starts)]


@cache
def options_of(*verbs: str) -> frozenset[str]:
    command: Any = get_command(build_app(verbs[0]))
    for verb in verbs:
        command = command.commands[verb]
    return frozenset(word for option in command.params for word in [*option.opts, *option.secondary_opts])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_have_the_verbs_and_options_that_they_show(page: Path) -> None:
    mentioned = [shlex.split(line)[1:] for line in inline_lines(page) if line.startswith("emat ")]
    for words in [*commands(page), *mentioned]:
        if words[0].startswith("-") or words[0] == "VERB":
            continue
        assert words[0] in VERBS, words
        command: Any = get_command(build_app(words[0]))
        below = getattr(command.commands[words[0]], "commands", {})
        verbs = words[:2] if below else words[:1]
        for word in words[len(verbs) :]:
            if re.match(r"--?[a-z]", word):
                assert word.partition("=")[0] in {*options_of(*verbs), "--help", "-h"}, " ".join(words)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_has_a_language(page: Path) -> None:
    """A block without one would not be looked at by any test."""
    marks = OPENING.findall(page.read_text(encoding="utf-8"))
    assert all(marks[::2]), f"block {1 + marks[::2].index('')} of {name_of(page)}"


@pytest.mark.parametrize("page", [page for page in PAGES if scripts(page)], ids=name_of)
def test_scripts_exist_and_have_the_options_that_pages_show(page: Path) -> None:
    for words in scripts(page):
        text = (ROOT / words[0]).read_text(encoding="utf-8")
        for word in words[1:]:
            if re.match(r"--[a-z]", word):
                assert f'"{word.partition("=")[0]}"' in text, " ".join(words)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_blocks_are_valid(page: Path) -> None:
    for text in blocks(page, "python"):
        ast.parse(text)


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = [
        re.sub(r"\]\(.*?\)|[^\w\s-]", "", line).strip() for line in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    ]
    return frozenset(re.sub(pattern, "-", each.lower()) for each in headings for pattern in (r"\s", r"[-\s]+"))


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        address = urlsplit(target)
        if address.scheme:
            assert (address.scheme, bool(address.username)) == ("https", False), target
            assert re.fullmatch(r"([a-z0-9-]+\.)+[a-z]{2,}", address.netloc), target
            assert not target.endswith((".", ",", ";")), target
            continue
        file = (page.parent / address.path).resolve() if address.path else page
        assert file.exists(), target
        if address.fragment:
            assert address.fragment in anchors_of(file), target


def test_the_architecture_names_modules_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = {path.name for path in (ROOT / "emat").iterdir() if path.is_dir()}
    named = [name.rstrip(".") for name in re.findall(r"(?<![\w/.-])[a-z]+/[a-z_/.]+", text)]
    modules = {name.removeprefix("emat/").removesuffix(".py") for name in named}
    found = {name for name in modules if name.split("/")[0] in packages or name in packages}
    assert len(found) > 15
    for name in found:
        path = ROOT / "emat" / name
        assert path.is_dir() or path.with_suffix(".py").is_file(), name
