"""Pieces of HTML that hold everything they show, for notebooks and the page of the demonstration."""

import base64
import html
from collections.abc import Iterable, Sequence

from PIL import Image

from emat.pictures.overlay import as_jpeg


def embedded(picture: Image.Image, longest: int | None = None) -> str:
    """Return a picture as the address of an <img>, with its longest side reduced to `longest` pixels."""
    if longest is not None:
        picture = picture.copy()
        picture.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    return "data:image/jpeg;base64," + base64.b64encode(as_jpeg(picture.convert("RGB"))).decode()


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; all cells are text.

    >>> table(["class"], [["<cat>"]])
    '<table><tr><th>class</th></tr><tr><td>&lt;cat&gt;</td></tr></table>'
    """
    lines = [f"<tr>{''.join(f'<th>{html.escape(cell)}</th>' for cell in header)}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows]
    return f"<table>{''.join(lines)}</table>"
