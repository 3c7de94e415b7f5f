"""Hooks of the documentation site: diagrams as pictures, the command line's help, and the codes of errors.

GitHub draws Mermaid diagrams by itself. The theme would load Mermaid from another server for that, so the site shows
the pictures that `python docs/pictures.py diagrams` made of them.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import relpath
from typing import Any

DOCS = Path(__file__).parent
DIAGRAMS = "images/diagrams"
DIAGRAM = re.compile(r"<!-- diagram (?P<name>[\w-]+): (?P<title>.*?) -->\n```mermaid\n(?P<source>.*?)```\n", re.DOTALL)
COMMANDS = "<!-- the help of every command -->"
ERRORS = "<!-- the code of every error -->"


def diagrams(markdown: str) -> Iterator[tuple[str, str]]:
    """The name and the Mermaid source of every diagram of a page."""
    for match in DIAGRAM.finditer(markdown):
        yield match["name"], match["source"]


def source_hash(source: str) -> str:
    """What the picture of a diagram is marked with, so that one that is out of date is noticed."""
    return hashlib.sha256(source.encode()).hexdigest()


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Put pictures in the place of diagrams, and help texts and codes of errors in the place of their marks."""
    here = page.file.src_uri.rpartition("/")[0]

    def picture(match: re.Match[str]) -> str:
        path = relpath(f"{DIAGRAMS}/{match['name']}.svg", here or ".")
        return f'<div class="diagram" markdown>\n![{match["title"]}]({path})\n</div>\n'

    markdown = DIAGRAM.sub(picture, markdown)
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, "\n".join(command_help()))
    return markdown.replace(ERRORS, error_codes()) if ERRORS in markdown else markdown


def error_codes() -> str:
    """The table of all codes of errors as Markdown."""
    from emat.errors import CODES

    return "\n".join(["| code | meaning |", "|---|---|", *(f"| `{code}` | {CODES[code]} |" for code in CODES)])


def command_help() -> Iterator[str]:
    """The help of every verb of `emat`, and of the verbs below it, as Markdown."""
    from typer.main import get_command

    from emat.cli import VERBS, build_app

    for verb in VERBS:
        command: Any = get_command(build_app(verb)).commands[verb]  # type: ignore[attr-defined]
        yield from _help_of(command, f"emat {verb}", "##")


def _help_of(command: Any, name: str, heading: str) -> Iterator[str]:
    yield f"{heading} {name}\n"
    if command.help:
        yield f"{_as_markdown(command.help)}\n"
    if command.epilog:
        yield f"{_as_markdown(command.epilog)}\n"
    below = getattr(command, "commands", {})
    if not below:
        context = command.make_context(name, [], resilient_parsing=True)
        yield f"```text\n{name} {' '.join(command.collect_usage_pieces(context))}\n```\n"
        yield from _options(command)
    for other, each in below.items():
        yield from _help_of(each, f"{name} {other}", heading + "#")


def _options(command: Any) -> Iterator[str]:
    """A table of the options for each panel of the help, with their defaults."""
    rows: dict[str, list[str]] = {}
    for option in command.params:
        if getattr(option, "hidden", False) or option.name == "help":
            continue
        names = ", ".join(f"`{word}`" for word in [*option.opts, *option.secondary_opts] if word.startswith("-"))
        help_text = " ".join((getattr(option, "help", None) or "").split()).replace("|", "\\|")
        if option.required:
            help_text += " Required."
        elif isinstance(option.default, (str, int, float, Path)) and not isinstance(option.default, bool):
            help_text += f" Default: `{option.default}`."
        panel = getattr(option, "rich_help_panel", None) or "Arguments"
        rows.setdefault(panel, []).append(f"| {names or f'`{option.name.upper()}`'} | {help_text} |")
    for panel, lines in rows.items():
        yield "\n".join([f"| {panel} | |", "|---|---|", *lines]) + "\n"


def _as_markdown(text: str) -> str:
    """Show as code the examples, and paragraphs that keep their line breaks, which a control character marks."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if "\b" in paragraph:
            paragraphs.append("```text\n" + paragraph.replace("\b", "").strip("\n") + "\n```")
        elif paragraph.startswith("Example: "):
            paragraphs.append(f"```bash\n{' '.join(paragraph.removeprefix('Example: ').split())}\n```")
        else:
            paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)
