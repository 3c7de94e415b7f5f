"""Shows the examples of docstrings as code in the API reference.

The docstrings hold examples as plain `>>>` lines, which run as tests. The reference recognises examples only under the
heading `Examples:`, so this extension of Griffe adds the heading before such lines.
"""

import re
from typing import Any

import griffe

FIRST_EXAMPLE = re.compile(r"(?:^|\n\n)(?=>>> )")


class DoctestSections(griffe.Extension):
    """Adds the heading `Examples:` to docstrings whose examples have none."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of a module, class, function or attribute that was read."""
        if obj.docstring is not None:
            obj.docstring.value = with_examples_section(obj.docstring.value)


def with_examples_section(text: str) -> str:
    r"""Indent everything from the first example that begins a paragraph, under a heading.

    >>> with_examples_section("Add.\n\n>>> 1 + 1\n2")
    'Add.\n\nExamples:\n    >>> 1 + 1\n    2'
    """
    match = FIRST_EXAMPLE.search(text)
    if match is None:
        return text
    indented = re.sub(r"^(?=.)", "    ", text[match.end() :], flags=re.MULTILINE)
    return f"{text[: match.start()]}\n\nExamples:\n{indented}".lstrip("\n")
