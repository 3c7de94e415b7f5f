"""`emat show`: what a fitted file holds, what was decided when it was fitted, and what to expect of it."""

import html
import json
from collections.abc import Sized
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from emat.cli.options import AsJson, Overrides, Overwrite
from emat.files import file_sha256
from emat.inference.segmenter import Segmenter
from emat.outputs import claim_file, write_text
from emat.pictures.html import embedded, table
from emat.tensor_files import digest, read_metadata

NO_ARGS_IS_HELP = True
FACTS = (  # that the page lists below the examples
    "method", "backbone", "image_size", "size", "tiles", "stretch", "channels", "project", "written_by", "sha256",
    "weights",
)  # fmt: skip
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#222}}
table{{border-collapse:collapse}}td,th{{padding:.3rem .8rem;border-bottom:1px solid #ddd;text-align:left}}
figure{{display:inline-block;margin:.4rem;text-align:center;font-size:.8rem}}code{{word-break:break-all}}</style>
<h1>{title}</h1>{body}</html>
"""


def command(
    segmenter: Annotated[Path, typer.Argument(help="A file that `emat fit` wrote.")],
    page: Annotated[
        Path | None, typer.Option("--html", help="Also write a page with small pictures of the examples.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Show what a fitted file holds: classes, examples, what was decided, what to expect, versions and hashes.

    Example: emat show pets.emat
    """
    if page is not None:
        claim_file(page, (".html", ".htm"), reads=[segmenter], overwrite=overwrite, flag="--html")
    fitted = Overrides().load_fitted(segmenter)
    content = describe(fitted, segmenter)
    if page is not None:
        write_text(page, _page(fitted, content), errors="replace")
    if as_json:
        typer.echo(json.dumps(content))
        return
    for line in _lines(content):
        typer.echo(line)
    if page is not None:
        typer.echo(f"{page}: the same with pictures")


def describe(fitted: Segmenter, path: Path) -> dict[str, Any]:
    """Return all that is worth knowing of a fitted file."""
    forecast, decisions = fitted.forecast_, fitted.decisions_
    classes = {
        name: {
            "examples": sum(name in example.classes for example in fitted.examples_),
            "decisions": asdict(decisions.classes[name]) if name in decisions.classes else None,
            "forecast": asdict(forecast[name]) if name in forecast else None,
        }
        for name in fitted.classes_
    }
    metadata = read_metadata(path)
    return {
        "file": str(path),
        "sha256": file_sha256(path),
        "format": int(metadata.get("version", 1)),
        "written_by": metadata.get("emat"),
        "method": fitted.method.name,
        "backbone": metadata.get("backbone"),
        "image_size": fitted.method.preparation.image_size,
        "weights": digest(fitted.method.state_dict()),
        "thresholds": asdict(fitted.thresholds),
        "learns": fitted.learner is not None,
        "size": decisions.size,
        "tiles": decisions.tiles,
        "stretch": str(fitted.reading.stretch),
        "channels": list(fitted.reading.channels),
        "project": fitted.reading.project,
        "examples": [{"name": one.name, "classes": list(one.classes)} for one in fitted.examples_],
        "classes": classes,
        "said": [*decisions.sentences(), *forecast.sentences()],
    }


def _lines(content: dict[str, Any]) -> list[str]:
    lines = [
        f"{content['file']}: {_count(content['classes'], 'class')} from {_count(content['examples'], 'example')}",
        "",
    ]
    for name, one in content["classes"].items():
        iou = (one["forecast"] or {}).get("iou")
        expected = "" if iou is None else f", expected IoU {iou:.2f}"
        lines.append(f"  {name}: {_count(range(one['examples']), 'example')}{expected}")
    lines += ["", *content["said"]]
    if content["learns"]:
        lines.append(f"The pixel learner sees photos at {content['size']} pixels.")
    usual = content["thresholds"]
    lines.append(f"A class is present from a score of {usual['presence']:g}, a pixel from {usual['mask']:g}.")
    lines += [
        "",
        f"method {content['method']}, backbone {content['backbone']}, {content['image_size']} px",
        f"format {content['format']}, written by emat {content['written_by'] or 'before 0.2'}",
        f"file    {content['sha256']}",
        f"weights {content['weights']}",
    ]
    return lines


def _count(things: Sized, what: str) -> str:
    """How many there are, such as "1 class" or "2 classes"."""
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{len(things)} {what if len(things) == 1 else plural}"


def _page(fitted: Segmenter, content: dict[str, Any]) -> str:
    numbers = {name: number for number, name in enumerate(fitted.classes_, start=1)}
    expected = {name: (one["forecast"] or {}).get("iou") for name, one in content["classes"].items()}
    classes = table(
        ["class", "examples", "expected IoU"],
        [
            [name, str(one["examples"]), "-" if expected[name] is None else f"{expected[name]:.2f}"]
            for name, one in content["classes"].items()
        ],
    )
    figures = "".join(
        f'<figure><img alt="{html.escape(one.name)}" src="{embedded(one.thumbnail.drawn(numbers))}">'
        f"<figcaption>{html.escape(one.name)}<br>"
        f"{html.escape(', '.join(one.classes) or 'none of the classes')}</figcaption></figure>"
        for one in fitted.examples_
        if one.thumbnail is not None
    )
    sentences = "".join(f"<li>{html.escape(line)}</li>" for line in content["said"])
    facts = "".join(f"<tr><th>{key}</th><td><code>{html.escape(str(content[key]))}</code></td></tr>" for key in FACTS)
    body = f"{classes}<ul>{sentences}</ul><h2>Examples</h2>{figures}<h2>File</h2><table>{facts}</table>"
    return PAGE.format(title=html.escape(Path(content["file"]).name), body=body)
