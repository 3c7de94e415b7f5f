"""`emat weights`: what backbones and heads there are, fetching them, bringing files from elsewhere."""

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

from emat.backbone.home import head_file
from emat.backbone.inventory import BackboneState, HeadState, backbone_states, heads_here
from emat.backbone.public_names import to_public
from emat.backbone.registry import BACKBONES, find_backbone
from emat.backbone.weights import fetch_weights, find_weights, recognise, store_weights, verified
from emat.errors import EmatError
from emat.home import emat_home
from emat.tensor_files import file_sha256, read_tensors

app = typer.Typer()

STYLES = {"verified": "green", "unchecked": "yellow", "damaged": "red", "absent": "dim"}


@app.command("list", epilog="Example: emat weights list --json")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with sources and whole checksums.")] = False,
) -> None:
    """Show every backbone, whether its weights are here and verified, and the heads."""
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
    console.print("Get weights: [bold]emat weights fetch NAME[/]; from a file: [bold]emat weights import FILE[/]")


@app.command(epilog="Example: emat weights fetch dinov2-s")
def fetch(
    name: Annotated[str, typer.Argument(help="A backbone, or several joined by +.")],
) -> None:
    """Make sure a backbone's weights are here and verified; download them if not."""
    spec = find_backbone(name)
    for part in spec.parts or (spec,):
        found = find_weights(part) or fetch_weights(part)
        verified(part, found)
        typer.echo(f"{part.name}: verified, {found.path}")


@app.command("import", epilog="Example: emat weights import ~/Downloads/dinov2_vits14_pretrain.pth")
def import_(
    file: Annotated[Path, typer.Argument(help="Weights as .pth, .pt, .ckpt or .safetensors.")],
    name: Annotated[
        str | None, typer.Option("--as", help="Name of the backbone, or for the head of a checkpoint.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="The head's method where tensors do not tell: cst-large, emat-me.")
    ] = None,
) -> None:
    """Bring a backbone's public file, or a published EMAT or CST checkpoint, into EMAT_HOME.

    Which backbone or method it is shows from its tensors. Nothing but tensors is read from the file.
    """
    tensors = read_tensors(file)
    head = {key.removeprefix("learner."): value for key, value in tensors.items() if key.startswith("learner.")}
    rest = {key: value for key, value in tensors.items() if not key.startswith("learner.")}
    if head:
        _import_head(file, head, name or file.stem, method)
        if rest:
            try:
                _import_backbone(file, to_public(rest), name=None)
            except EmatError as error:  # heads work with the same weights from anywhere else
                typer.echo(f"its backbone was left out: {error}")
    else:
        _import_backbone(file, to_public(rest), name)


def _import_head(file: Path, tensors: dict[str, Tensor], name: str, method: str | None) -> None:
    from emat.model.checkpoint import identify, save_head

    if not re.fullmatch(r"\w[\w.-]*", name):
        raise EmatError(f"{name!r} cannot name a head; use letters, digits, dots and dashes: --as pascal-fold0")
    found = identify(tensors)
    if method is not None and not _same_tensors(method, found):
        raise EmatError(f"{file} holds a head of method {found}, not of {method}")
    path = head_file(name)
    save_head(path, tensors, {"method": method or found, "source": file.name})
    typer.echo(f"{name}: a head of method {method or found}, {path}")


def _same_tensors(method: str, other: str) -> bool:
    """Whether heads of two methods cannot be told apart by their tensors, as those of cst and cst-large."""
    from emat.model.network import build

    shapes = [{name: t.shape for name, t in build(one, 8).state_dict().items()} for one in (method, other)]
    return shapes[0] == shapes[1]


def _import_backbone(file: Path, tensors: dict[str, Tensor], name: str | None) -> None:
    spec = recognise(tensors, file)
    if name is not None and find_backbone(name) is not spec:
        raise EmatError(f"{file} holds the weights of {spec.name}, not of {name}")
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
    return {"home": emat_home(), "backbones": backbones, "heads": [asdict(head) for head in heads]}


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
