"""The results of evaluations side by side: settings, folds, ways and object sizes in tables, and on the terminal.

The results files of one method, with one or several folds each, become one row of a table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich import table as rich_table
from rich.console import Console

from emat.errors import EmatError
from emat.evaluation.absence import ABSENT, HIT_RATE
from emat.evaluation.results import (
    OWN_THRESHOLDS,
    Conditions,
    FoldCounts,
    Summary,
    fold_counts,
    read_results,
    summaries_of,
    summarise,
)
from emat.evaluation.thresholds import Sweep
from emat.methods.base import PAPER_THRESHOLD, Thresholds
from emat.reports.tables import MISSING, Cell, Row, Table, with_best_marked
from emat.tasks.sampling import ORDINARY_SPLITS
from emat.tasks.task import Setting

DATASETS = {"pascal": "PASCAL-5i", "coco": "COCO-20i"}
BOTH_SCORES = {"Acc.": "accuracy", "mIoU": "miou"}
THREE_SCORES = {**BOTH_SCORES, "False masks": "false_mask_rate"}


@dataclass(frozen=True)
class MethodScores:
    """All scores of one method, under the label that it has in tables and figures."""

    label: str
    trained_parameters: int
    summaries: tuple[Summary, ...]

    def overall(self, conditions: Conditions) -> Summary | None:
        """Return the mean over all folds, or the only fold; None if there are no results."""
        own = [summary for summary in self.summaries if summary.conditions == conditions]
        return own[-1] if own else None  # the mean comes after the folds

    def of_fold(self, conditions: Conditions, fold: int | None) -> Summary | None:
        """Return the summary of one fold, or the mean of several; None if there is none."""
        own = (summary for summary in self.summaries if summary.conditions == conditions)
        return next((summary for summary in own if summary.fold == fold), None)


def read_methods(files: Sequence[str]) -> list[MethodScores]:
    """Read results files and return the scores of each method.

    Files of the same method, backbone, size and thresholds belong together unless they have labels.

    Args:
        files: The paths, or LABEL=PATH to give a label.

    Raises:
        EmatError: If a file cannot be read, or if a configuration occurs twice for one method.
    """
    runs: dict[str, list[dict[str, Any]]] = {}
    short: dict[str, str] = {}
    for word in files:
        given, equals, path = word.partition("=")
        if equals and not path:
            raise EmatError("unclear-option", f"{word!r} has a label but no file; write LABEL=FILE")
        if not equals or Path(word).exists():
            given, path = "", word
        content = read_results(Path(path))
        label = given or _label(content, Path(path))
        runs.setdefault(label, []).append(content)
        short[label] = given or label.split(" (")[0]
    unique = len(set(short.values())) == len(short)
    return [_of_one_method(short[label] if unique else label, contents) for label, contents in runs.items()]


def _label(content: Mapping[str, Any], path: Path) -> str:
    names = {(method["name"], method["backbone"], method["image_size"]) for method in content["methods"].values()}
    if len(names) > 1:
        raise EmatError("label-needed", f"{path} has results of several methods; give it a label: LABEL={path}")
    name, backbone, size = names.pop()
    extra = ", learning" if content.get("options", {}).get("learn") else ""
    extra += f", refined: {content['refine']}" if content.get("refine") else ""
    extra += ", as fitted" if content.get("as_fitted") else ""
    return f"{name} ({backbone}, {size} px, {_thresholds(content)}{extra})"


def _thresholds(content: Mapping[str, Any]) -> str:
    asked = content.get("thresholds")
    if asked == OWN_THRESHOLDS:
        return "own thresholds"
    if asked is None:  # a file from before presence and masks had their own thresholds
        return f"threshold {content['threshold']:g}"
    presence, mask = asked["presence"], asked["mask"]
    return f"threshold {presence:g}" if presence == mask else f"thresholds {presence:g} and {mask:g}"


def _of_one_method(label: str, contents: Sequence[Mapping[str, Any]]) -> MethodScores:
    every: list[tuple[Conditions, FoldCounts]] = []
    for content in contents:
        for conditions, folds in fold_counts(content["cells"], content["outcomes"]).items():
            every += [(conditions, counts) for counts in folds]
    counts: dict[Conditions, dict[int, FoldCounts]] = {}
    for shared, (fold, tasks) in sorted(every, key=lambda counted: counted[1][0]):
        if fold in counts.setdefault(shared, {}):
            raise EmatError(
                "label-needed",
                f"two files have {shared.way}-way {shared.shot}-shot {shared.setting} results of {label} on fold "
                f"{fold}; give them labels: LABEL=FILE",
            )
        counts[shared][fold] = (fold, tasks)
    parameters = max(method["trained_parameters"] for content in contents for method in content["methods"].values())
    summaries = summarise({shared: list(folds.values()) for shared, folds in counts.items()})
    return MethodScores(label, parameters, tuple(summaries))


def comparison_tables(methods: Sequence[MethodScores]) -> list[Table]:
    """Make every table for which there are results."""
    asked = dict.fromkeys(conditions.conditions for method in methods for conditions in method.summaries)
    tables = []
    ordinary = [conditions for conditions in asked if conditions.split in ORDINARY_SPLITS]
    for base in dict.fromkeys(conditions._replace(setting="") for conditions in ordinary):
        settings = [base._replace(setting=setting.value) for setting in Setting]
        groups = {
            conditions.setting.replace("-", " ").capitalize(): [method.overall(conditions) for method in methods]
            for conditions in settings
            if any(method.overall(conditions) for method in methods)
        }
        tables.append(_table(f"{describe(base)}: mean over folds", methods, groups, THREE_SCORES, parameters=True))
        for conditions in (conditions for conditions in asked if conditions._replace(setting="") == base):
            numbers = {of.fold for method in methods for of in method.summaries if of.conditions == conditions}
            folds = sorted(number for number in numbers if number is not None)
            if len(folds) > 1:
                groups = {f"Fold {fold}": [method.of_fold(conditions, fold) for method in methods] for fold in folds}
                groups["Mean"] = [method.of_fold(conditions, None) for method in methods]
                tables.append(_table(f"{describe(conditions)}: by fold", methods, groups))
    for base, ways in ways_measured(methods).items():
        if len(ways) > 1:
            groups = {f"{of_way.way}-way": [method.overall(of_way) for method in methods] for of_way in ways}
            tables.append(_table(f"{describe(base)}: by number of ways", methods, groups))
    for base, splits in splits_measured(methods).items():
        groups = {f"{conditions.split} %": [method.overall(conditions) for method in methods] for conditions in splits}
        tables.append(_table(f"{describe(base)}: by object size, percent of the photo", methods, groups))
    return tables


def ways_measured(methods: Sequence[MethodScores]) -> dict[Conditions, list[Conditions]]:
    """Return conditions that differ in the number of ways, in its order, under what they share, with way 0."""
    groups: dict[Conditions, set[Conditions]] = {}
    for conditions in (conditions.conditions for method in methods for conditions in method.summaries):
        if conditions.split in ORDINARY_SPLITS:
            groups.setdefault(conditions._replace(way=0), set()).add(conditions)
    return {base: sorted(some) for base, some in groups.items()}


def splits_measured(methods: Sequence[MethodScores]) -> dict[Conditions, list[Conditions]]:
    """Return conditions that differ in the object size, in the order of results, under what they share."""
    groups: dict[Conditions, dict[Conditions, None]] = {}
    for conditions in (conditions.conditions for method in methods for conditions in method.summaries):
        if conditions.split not in ORDINARY_SPLITS:
            groups.setdefault(conditions._replace(split=""), {})[conditions] = None
    return {base: list(some) for base, some in groups.items()}


def describe(conditions: Conditions) -> str:
    """Describe the data set, ways and shots and the setting in words; way 0 and setting "" are left out."""
    words = [DATASETS.get(conditions.dataset, conditions.dataset)]
    ways = f"{conditions.way}-way " if conditions.way else ""
    words.append(f"{ways}{conditions.shot}-shot")
    words += [f"{conditions.setting} setting"] if conditions.setting else []
    words += ["query has the class"] if conditions.query_has_class else []
    return ", ".join(words)


def _table(
    title: str,
    methods: Sequence[MethodScores],
    groups: Mapping[str, Sequence[Summary | None]],
    scores: Mapping[str, str] = BOTH_SCORES,
    *,
    parameters: bool = False,
) -> Table:
    """Make a table whose groups of columns have a summary for each method; methods without any are left out."""
    columns = [(group, name) for group in groups for name in scores]
    rows = []
    for method, *summaries in zip(methods, *groups.values(), strict=True):
        if any(summaries):
            cells = [Cell.of(summary, score) for summary in summaries for score in scores.values()]
            thousands = [Cell(words=f"{method.trained_parameters / 1000:.1f}")] if parameters else []
            rows.append(Row(method.label, (*thousands, *cells)))
    first = [("", "Trained parameters (K)")] if parameters else []
    return with_best_marked(Table(title, (*first, *columns), tuple(rows)), lowest="False masks")


def show_results(content: Mapping[str, Any], console: Console) -> None:
    """Print the content of a results file: a table for each way and shot, with the settings and folds as rows."""
    methods = {
        (method["name"], method["backbone"], method["image_size"], *method["thresholds"].values())
        for method in content["methods"].values()
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
        if split.startswith(ABSENT):
            continue  # below
        words = [f"{way}-way {shot}-shot"]
        words += ["query has the class"] if has_class else []
        words += [] if split in ORDINARY_SPLITS else [f"objects of {split} % of the photo"]
        console.print(_summary_table(", ".join(words), summaries))

    if "absence" in content:
        console.print(absence_table(content["absence"]))


def absence_table(absence: Mapping[str, Any]) -> rich_table.Table:
    """Return how well absent classes are told from present ones, from the "absence" of a results file."""
    title = f"Queries without the class; {100 * absence['hit_rate']:.1f} % of those with it are found"
    table = rich_table.Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, pad_edge=False)
    hits = f"at {100 * HIT_RATE:.0f} %\nfound"
    for heading in ("Query shows", "Queries", "AUROC", "False\nmasks", hits):
        table.add_column(heading, justify="left" if heading == "Query shows" else "right", no_wrap=True)
    for level in absence["levels"]:
        values = [
            f"{100 * level[name]:.1f} ({100 * low:.1f} to {100 * high:.1f})"
            for name in ("auroc", "false_masks")
            for low, high in [level[f"{name}_interval"]]
        ]
        at_hits = MISSING if level["false_masks_at_hits"] is None else f"{100 * level['false_masks_at_hits']:.1f}"
        table.add_row(level["level"], str(level["queries"]), *values, at_hits)
    table.caption = f"Scores miss the share of present queries by {100 * absence['calibration_error']:.1f} on average."
    return table


def sweep_table(swept: Sweep, best: Thresholds) -> rich_table.Table:
    """Return a table of the scores at every threshold; a star marks the best presence and mask threshold."""
    table = rich_table.Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("Threshold", "Accuracy", "mIoU", "False masks", "False area"):
        table.add_column(heading, justify="right", no_wrap=True)
    for threshold, scores in swept.alike.items():
        values = [scores.accuracy, scores.miou, scores.false_mask_rate, scores.false_area]
        words = [f"{100 * value:.1f}" for value in values]
        for column, chosen in enumerate((best.presence, best.mask)):
            words[column] += " *" if threshold == chosen else "  "
        table.add_row(f"{threshold:.2f}", *words)
    return table


def _summary_table(title: str, summaries: Sequence[Summary]) -> rich_table.Table:
    table = rich_table.Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, pad_edge=False)
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
        return MISSING
    return f"{100 * value:.1f}" + (f" {100 * interval[0]:.1f}-{100 * interval[1]:.1f}" if interval else "")
