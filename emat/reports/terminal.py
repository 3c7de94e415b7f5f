"""Scores as tables on the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from emat.evaluation.results import Summary, summaries_of
from emat.evaluation.thresholds import Sweep
from emat.methods.base import PAPER_THRESHOLD, Thresholds
from emat.tasks.sampling import ORDINARY_SPLITS


def show_results(content: Mapping[str, Any], console: Console) -> None:
    """Print the content of a results file: a table for each way and shot, with the settings and folds as rows."""
    methods = {
        (each["name"], each["backbone"], each["image_size"], *each["thresholds"].values())
        for each in content["methods"].values()
    }
    for name, backbone, size, presence, mask in sorted(methods):
        at_paper = presence == mask == PAPER_THRESHOLD
        thresholds = "" if at_paper else f", presence threshold {presence:g}, mask threshold {mask:g}"
        console.print(f"{name} on {backbone} at {size} px{thresholds}; percent, with 95 % intervals", highlight=False)
    groups: dict[tuple[int, int, bool, str], list[Summary]] = {}
    for summary in summaries_of(content):
        shared = summary.conditions
        groups.setdefault((shared.way, shared.shot, shared.query_has_class, shared.split), []).append(summary)
    for (way, shot, has_class, split), summaries in groups.items():
        words = [f"{way}-way {shot}-shot"]
        words += ["query has the class"] if has_class else []
        words += [] if split in ORDINARY_SPLITS else [f"objects of {split} % of the photo"]
        console.print(_summary_table(", ".join(words), summaries))


def sweep_table(swept: Sweep, best: Thresholds) -> Table:
    """Return a table of the scores at every threshold; a star marks the best presence and mask threshold."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("Threshold", "Accuracy", "mIoU", "False masks", "False area"):
        table.add_column(heading, justify="right", no_wrap=True)
    for threshold, scores in swept.alike.items():
        values = [scores.accuracy, scores.miou, scores.false_mask_rate, scores.false_area]
        words = [f"{100 * value:.1f}" for value in values]
        for column, chosen in enumerate((best.presence, best.mask)):
            words[column] += " *" if threshold == chosen else "  "
        table.add_row(f"{threshold:.2f}", *words)
    return table


def _summary_table(title: str, summaries: Sequence[Summary]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, pad_edge=False)
    for heading in ("Setting", "Fold", "Tasks", "Accuracy", "mIoU", "False\nmasks", "False\narea"):
        table.add_column(heading, justify="left" if heading == "Setting" else "right", no_wrap=True)
    for summary in summaries:
        fold = "mean" if summary.fold is None else str(summary.fold)
        setting = summary.conditions.setting.removesuffix("-augmented")
        with_interval = [_score(summary, name) for name in ("accuracy", "miou")]
        without = [_score(summary, name).split(" ")[0] for name in ("false_mask_rate", "false_area")]
        style = "bold" if summary.fold is None else None
        table.add_row(setting, fold, str(summary.tasks), *with_interval, *without, style=style)
    return table


def _score(summary: Summary, name: str) -> str:
    value, interval = summary.scores[name], summary.intervals[name]
    if value is None:
        return "-"
    return f"{100 * value:.1f}" + (f" {100 * interval[0]:.1f}-{100 * interval[1]:.1f}" if interval else "")
