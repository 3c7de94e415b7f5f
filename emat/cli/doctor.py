"""`emat doctor`: report what works on this machine."""

import json
import os
import platform
import re
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import numpy
import torch
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from emat import __version__, threads
from emat.backbone.registry import DEFAULT_BACKBONE
from emat.cli.options import AsJson
from emat.cli.weights import STYLES, backbone_states
from emat.device import Device, Memory, available_devices, main_memory
from emat.errors import install_command
from emat.files import emat_home
from emat.methods.trained_head import BEST_HEAD, PUBLISHED, PUBLISHED_BACKBONE, HeadState, heads_here
from emat.weights import WeightsState

LARGEST_CHECKED = 200_000_000  # bytes; hashing larger weights would take seconds
CANNOT_WORK = 2


@dataclass(frozen=True)
class Extra:
    """An optional part of emat, and those of its packages that are not installed."""

    name: str
    missing: tuple[str, ...]


@dataclass(frozen=True)
class MachineReport:
    """Everything that `emat doctor` looks at."""

    versions: dict[str, str]
    platform: str
    cores: int | None
    threads: int
    threads_reason: str
    memory: Memory
    devices: list[Device]  # the one used by default first
    home: Path
    default_backbone: str
    backbones: list[WeightsState]
    heads: list[HeadState]
    extras: list[Extra]

    @property
    def healthy(self) -> bool:
        """Whether the weights of the default backbone can be used; without them emat does not work."""
        return any(state.usable for state in self.backbones if state.name == self.default_backbone)

    @property
    def proposal(self) -> str | None:
        """The command that brings the paper's own heads and what they need; None if heads and backbone are here."""
        usable = any(state.usable for state in self.backbones if state.name == PUBLISHED_BACKBONE)
        if usable and any(head.name in PUBLISHED for head in self.heads):
            return None
        return f"emat weights fetch {BEST_HEAD}"


def command(as_json: AsJson = False) -> None:
    """Show what works on this machine: versions, memory, device, weights, extras.

    The exit code is 2 if the weights of the default backbone are missing or damaged.

    Example: emat doctor --json
    """
    report = examine()
    if as_json:
        answer = asdict(report) | {"healthy": report.healthy, "proposal": report.proposal}
        typer.echo(json.dumps(answer, indent=2, default=str))
    else:
        _show(report, Console())
    if not report.healthy:
        raise typer.Exit(CANNOT_WORK)


def examine() -> MachineReport:
    """Look at this machine."""
    return MachineReport(
        versions={
            "emat": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        platform=platform.platform(),
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        threads_reason=threads.chosen.reason,
        memory=main_memory(),
        devices=available_devices(),
        home=emat_home(),
        default_backbone=DEFAULT_BACKBONE,
        backbones=backbone_states(LARGEST_CHECKED),
        heads=heads_here(),
        extras=extras(),
    )


def extras() -> list[Extra]:
    """List the extras that the installed emat declares, except `all`."""
    missing: dict[str, list[str]] = {}
    scripts = metadata.entry_points(group="console_scripts", name="emat")
    installed = next((script.dist for script in scripts if script.value.startswith("emat.") and script.dist), None)
    for line in (installed.requires if installed else None) or ():
        package, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if package is None or extra is None or extra[1] == "all":
            continue
        absent = missing.setdefault(extra[1], [])
        try:
            metadata.version(package[0])
        except metadata.PackageNotFoundError:
            absent.append(package[0])
    return [Extra(name, tuple(absent)) for name, absent in missing.items()]


def _show(report: MachineReport, console: Console) -> None:
    console.print(_machine_table(report))
    console.print(_weights_table(report))
    console.print(_extras_table(report.extras))
    for problem in (state.problem for state in report.backbones if state.problem):
        console.print(f"[red]{escape(problem)}[/]")
    if report.healthy:
        console.print(f"[green]emat works here[/], by default with {report.default_backbone}.")
        if report.proposal is not None:
            console.print(
                f"For the paper's own heads, with DINOv2: [bold]{report.proposal}[/], then [bold]--model best[/].",
                highlight=False,
            )
    else:
        advice = f"emat weights fetch {report.default_backbone}"
        console.print(f"[red]{report.default_backbone}'s weights cannot be used[/]; run [bold]{advice}[/].")


def _machine_table(report: MachineReport) -> Table:
    table = _table("This machine")
    others = ", ".join(f"{device.name} ({device.description})" for device in report.devices[1:])
    first = report.devices[0]
    table.add_row("versions", ", ".join(f"{name} {version}" for name, version in report.versions.items()))
    table.add_row("platform", escape(report.platform))
    table.add_row("device", f"{first.name} ({first.description})" + (f"; also {others}" if others else ""))
    table.add_row("threads", f"{report.threads}, {report.threads_reason}")
    table.add_row("memory", f"{_size(report.memory.available)} available of {_size(report.memory.total)}")
    table.add_row("EMAT_HOME", escape(str(report.home)))
    return table


def _weights_table(report: MachineReport) -> Table:
    table = _table("Weights")
    for state in report.backbones:
        where = f"{state.origin} {state.source}" if state.path else f"emat weights fetch {state.name}"
        table.add_row(state.name, f"[{STYLES[state.state]}]{state.state}[/]", escape(where))
    for head in report.heads:
        table.add_row(head.name, "head", f"{head.method}, {head.channels} channels, from {escape(head.source)}")
    return table


def _extras_table(parts: list[Extra]) -> Table:
    table = _table("Extras")
    for extra in parts:
        if extra.missing:
            table.add_row(extra.name, "[dim]absent[/]", escape(install_command(extra.name)))
        else:
            table.add_row(extra.name, "[green]installed[/]", "")
    return table


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, show_header=False)
    table.add_column(no_wrap=True, style="cyan")
    return table


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GB"
