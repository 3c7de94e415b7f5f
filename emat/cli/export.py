"""`emat export`: a fitted segmenter, or a head alone, as one ONNX file."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from emat.cli.options import AsJson, Overrides, Overwrite, takes
from emat.errors import EmatError
from emat.outputs import claim_file
from emat.scale.export import DEFAULT_SIZE, export_head, export_segmenter

NO_ARGS_IS_HELP = True


@takes(Overrides)
def command(
    how: Overrides,
    segmenter: Annotated[str, typer.Argument(help="A file that `emat fit` wrote; with --head-only also a head.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The ONNX file.")],
    size: Annotated[
        str | None, typer.Option("--photo-size", help="Width and height of the photos that it takes, such as 640x480.")
    ] = None,
    head_only: Annotated[
        bool, typer.Option("--head-only", help="Only the network: from the tokens of query and support to logits.")
    ] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write a fitted segmenter as one ONNX file: photos in, scores and probability maps out.

    Examples and learner are in the file, class names and thresholds in its metadata. The number of photos is free,
    their size is fixed. The file is kept only if its maps are those of the segmenter, within 0.001.

    Example: emat export pets.emat -o pets.onnx --photo-size 640x480
    """
    if head_only and size is not None:
        raise EmatError("conflicting-options", "--photo-size is for a whole segmenter; the head alone takes tokens")
    chosen = DEFAULT_SIZE if size is None else _size(size)
    claim_file(out, (".onnx",), reads=[Path(segmenter)], overwrite=overwrite)
    loaded = how.load(segmenter)
    if head_only:
        written = export_head(loaded, out)
    else:
        if not loaded.classes_:
            raise EmatError(
                "not-fitted", f"{segmenter} is a head without examples; fit it first, or export it with --head-only"
            )
        written = export_segmenter(loaded, out, chosen)
    if as_json:
        typer.echo(json.dumps(asdict(written), default=str))
        return
    typer.echo(f"{out}: {written.bytes / 1e6:.1f} MB, within {written.difference:.0e} of the segmenter")
    for kind, tensors in (("takes", written.inputs), ("gives", written.outputs)):
        for name, shape in tensors.items():
            typer.echo(f"  {kind} {name} ({', '.join(map(str, shape))})")


def _size(text: str) -> tuple[int, int]:
    """Height and width from text such as 640x480."""
    match = re.fullmatch(r"(\d{1,6})x(\d{1,6})", text)
    if match is None or not int(match[1]) or not int(match[2]):
        raise EmatError("unclear-option", f"--photo-size is {text!r}; give width and height in pixels, such as 640x480")
    return int(match[2]), int(match[1])
