"""`emat weights`: list backbones and heads, download them, and import public files."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from emat.backbone.registry import BACKBONES, find_backbone, recognise
from emat.backbone.weights import to_public
from emat.cli.options import AsJson
from emat.errors import EmatError
from emat.files import emat_home, file_sha256
from emat.methods.trained_head import (
    BEST_HEAD,
    HEAD,
    PUBLISHED_ARCHIVES,
    PUBLISHED_BACKBONE,
    HeadState,
    fetch_archive,
    heads_here,
    import_archive,
    name_for,
    store_checkpoint,
)
from emat.tensor_files import read_tensors
from emat.weights import MOBILESAM, WeightsState, fetch_weights, find_weights, keep_weights, verified, weights_state

EXAMPLE = "Example: emat weights list"

app = typer.Typer()

BEST = (PUBLISHED_BACKBONE, "emat-coco", "emat-pascal", MOBILESAM.name)  # what `best` and crisp masks need
STYLES = {"verified": "green", "unchecked": "yellow", "damaged": "red", "absent": "dim"}


@app.command("list", epilog="Example: emat weights list --json")
def list_(as_json: AsJson = False) -> None:
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
    console.print(f"[bold]{MOBILESAM.name}[/] also makes masks crisper.")
    console.print(
        "Download weights: [bold]emat weights fetch NAME[/]; import a file: [bold]emat weights import FILE[/]"
    )


def backbone_states(largest_checked: int | None = None) -> list[WeightsState]:
    """Return the state of the weights of every backbone, in the order of the registry."""
    return [weights_state(spec.weights, largest_checked) for spec in BACKBONES.values()]


@app.command(epilog="Example: emat weights fetch best")
def fetch(
    name: Annotated[
        str,
        typer.Argument(
            help=f"A backbone, several joined with +, mobilesam, {', '.join(PUBLISHED_ARCHIVES)}, or best for all that "
            "the paper's model needs."
        ),
    ],
    sha256: Annotated[
        str | None, typer.Option(help="The checksum that an archive of published heads must have, if you know it.")
    ] = None,
) -> None:
    """Verify the weights of a backbone or of MobileSAM, or published heads; download them if they are not here.

    emat-coco, emat-pascal, cst-coco and cst-pascal are the paper's own heads, four folds each, with DINOv2. best is
    DINOv2-S, both archives of EMAT's heads, and MobileSAM; then --model best is the paper's model. A download that
    broke off is continued when the command is run again.
    """
    if sha256 is not None and name not in PUBLISHED_ARCHIVES:
        raise EmatError(
            "conflicting-options",
            f"--sha256 is for {', '.join(PUBLISHED_ARCHIVES)}; the checksum of {name} is not asked for",
        )
    if name != BEST_HEAD:
        _fetch(name, sha256)
        return
    failures = {}
    for part in BEST:
        try:
            _fetch(part)
        except EmatError as error:  # the others are of use without it
            failures[part] = str(error)
    if find_weights(find_backbone(PUBLISHED_BACKBONE).weights):  # the archives bring it too
        failures.pop(PUBLISHED_BACKBONE, None)
    if failures:
        for part, reason in failures.items():
            typer.echo(f"emat: {part} was not fetched: {reason}", err=True)
        raise EmatError(
            "download-failed",
            f"{len(failures)} of {len(BEST)} were not fetched: {', '.join(failures)}; the rest is here",
        )


def _fetch(name: str, sha256: str | None = None) -> None:
    if name in PUBLISHED_ARCHIVES:
        for path in fetch_archive(name, typer.echo, sha256):
            typer.echo(f"{path.stem}: ready, {path}")
        return
    backbone = find_backbone(name)
    for spec in (part.weights for part in backbone.parts or (backbone,)):
        kept = find_weights(spec)
        if kept is None or kept.origin == "cache":  # also removes what a killed download left
            kept = fetch_weights(spec)
        verified(spec, kept)
        typer.echo(f"{spec.name}: verified, {kept.path}")


@app.command("import", epilog="Example: emat weights import ~/Downloads/best.ckpt --as coco-fold0")
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
    overwrite: Annotated[bool, typer.Option(help="Replace other weights that are kept under the same name.")] = False,
) -> None:
    """Import a backbone's or MobileSAM's public file, or an EMAT or CST checkpoint or archive, into EMAT_HOME.

    An archive is named by --as, one of emat-coco, emat-pascal, cst-coco and cst-pascal. A head that is not named gets
    the name of its file, or of the file's folder if all such files are called best.ckpt.
    The backbone or the method is recognised from the tensors, and a head remembers the backbone that came with it.
    Nothing but tensors is read from the file.
    """
    if name in PUBLISHED_ARCHIVES:
        import_archive(file, name, typer.echo)
        return
    tensors = read_tensors(file)
    if any(key.startswith(HEAD) for key in tensors):
        head = name_for(file, name)
        store_checkpoint(file, tensors, head, method, file.name, file_sha256(file), typer.echo, overwrite)
        return
    spec = recognise(to_public(tensors), file, name).weights
    typer.echo(f"{spec.name}: verified, {keep_weights(spec, file, file.name, overwrite).path}")


def _as_json(states: list[WeightsState], heads: list[HeadState]) -> dict[str, object]:
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
            "sources": spec.weights.sources,
            "published_sha256": spec.weights.pins,
        }
        backbones.append(asdict(state) | facts)
    return {"home": emat_home(), "backbones": backbones, "heads": [asdict(head) for head in heads]}


def _backbone_table(states: list[WeightsState]) -> Table:
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


def _checksum_table(states: list[WeightsState]) -> Table:
    table = _table("Checksums")
    for column in ("name", "SHA-256", "checksum", "from"):
        table.add_column(column, overflow="fold", no_wrap=column == "checksum")
    for state in states:
        trust = "as published" if state.known_checksum else "recorded at first sight"
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
