"""From results files to tables: settings, folds, ways and object sizes side by side, as Markdown, LaTeX or CSV.

The results files of one method, with one or several folds each, become one line of a table.
"""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.evaluation.results import (
    OWN_THRESHOLDS,
    Conditions,
    FoldCounts,
    Summary,
    fold_counts,
    read_results,
    summarise,
)
from emat.tasks.sampling import ORDINARY_SPLITS
from emat.tasks.task import Setting

DATASETS = {"pascal": "PASCAL-5i", "coco": "COCO-20i"}
MISSING = "-"
THOUSAND = 1000
LATEX_SPECIAL = {
    "%": r"\%",
    "&": r"\&",
    "_": r"\_",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
}


@dataclass(frozen=True)
class Line:
    """All scores of one method, under the label that it has in tables and figures."""

    label: str
    trained_parameters: int
    summaries: tuple[Summary, ...]


def read_lines(files: Sequence[str]) -> list[Line]:
    """Read results files and return one line for each method.

    Files of the same method, backbone, size and thresholds belong together unless they have labels.

    Args:
        files: The paths, or LABEL=PATH to give a label.

    Raises:
        EmatError: If a file cannot be read, or if a configuration occurs twice in one line.
    """
    runs: dict[str, list[dict[str, Any]]] = {}
    short: dict[str, str] = {}
    for word in files:
        given, path = _label_and_path(word)
        content = read_results(path)
        label = given or _label(content, path)
        runs.setdefault(label, []).append(content)
        short[label] = given or label.split(" (")[0]
    unique = len(set(short.values())) == len(short)
    return [_line(short[label] if unique else label, contents) for label, contents in runs.items()]


def _label_and_path(word: str) -> tuple[str | None, Path]:
    label, equals, path = word.partition("=")
    if equals and not path:
        raise EmatError(f"{word!r} has a label but no file; write LABEL=FILE")
    return (label, Path(path)) if equals and not Path(word).exists() else (None, Path(word))


def _label(content: Mapping[str, Any], path: Path) -> str:
    names = {(each["name"], each["backbone"], each["image_size"]) for each in content["methods"].values()}
    if len(names) > 1:
        raise EmatError(f"{path} has results of several methods; give it a label: LABEL={path}")
    name, backbone, size = names.pop()
    extra = ", learning" if content.get("options", {}).get("learn") else ""
    extra += f", refined: {content['refine']}" if content.get("refine") else ""
    return f"{name} ({backbone}, {size} px, {_thresholds(content)}{extra})"


def _thresholds(content: Mapping[str, Any]) -> str:
    asked = content.get("thresholds")
    if asked == OWN_THRESHOLDS:
        return "own thresholds"
    if asked is None:  # a file from before presence and masks had their own thresholds
        return f"threshold {content['threshold']:g}"
    presence, mask = asked["presence"], asked["mask"]
    return f"threshold {presence:g}" if presence == mask else f"thresholds {presence:g} and {mask:g}"


def _line(label: str, contents: Sequence[Mapping[str, Any]]) -> Line:
    counts: list[FoldCounts] = []
    seen: set[tuple[object, int]] = set()
    for content in contents:
        for each in fold_counts(content["cells"], content["outcomes"]):
            if (each.conditions, each.fold) in seen:
                shared = each.conditions
                raise EmatError(
                    f"two files have {shared.way}-way {shared.shot}-shot {shared.setting} results of {label} on fold "
                    f"{each.fold}; give them labels: LABEL=FILE"
                )
            seen.add((each.conditions, each.fold))
            counts.append(each)
    counts.sort(key=lambda each: each.fold)
    parameters = max(each["trained_parameters"] for content in contents for each in content["methods"].values())
    return Line(label, parameters, tuple(summarise(counts)))


def overall(summaries: Sequence[Summary]) -> list[Summary]:
    """Return one summary for all folds that share their conditions: their mean, or the only fold."""
    several = {each.conditions for each in summaries if each.fold is None}
    return [each for each in summaries if each.fold is None or each.conditions not in several]


@dataclass(frozen=True)
class TableEntry:
    """One entry of a table: a text and, if it is a score, its value in percent and half the width of its interval."""

    text: str
    value: float | None = None
    margin: float | None = None
    best: bool = False


@dataclass(frozen=True)
class ReportTable:
    """A table with a title, named columns and rows."""

    title: str
    columns: tuple[tuple[str, str], ...]  # the group that a column belongs to, or "", and its name
    rows: tuple[tuple[TableEntry, ...], ...]


def tables(lines: Sequence[Line]) -> list[ReportTable]:
    """Make every table for which there are results."""
    asked = dict.fromkeys(each.conditions for line in lines for each in line.summaries)
    found = []
    for base in dict.fromkeys(each._replace(setting="") for each in asked if each.split in ORDINARY_SPLITS):
        found.append(_settings(lines, base))
        for setting in (each.setting for each in asked if each._replace(setting="") == base):
            found += _folds(lines, base._replace(setting=setting))
    for base in dict.fromkeys(each._replace(way=0) for each in asked if each.split in ORDINARY_SPLITS):
        found += _ways(lines, base, sorted({each.way for each in asked if each._replace(way=0) == base}))
    for base in dict.fromkeys(each._replace(split="") for each in asked if each.split not in ORDINARY_SPLITS):
        found.append(_sizes(lines, base, [each.split for each in asked if each._replace(split="") == base]))
    return found


def find(line: Line, conditions: Conditions) -> Summary | None:
    """Return the summary over all folds under `conditions`, or None."""
    return next((each for each in overall(line.summaries) if each.conditions == conditions), None)


def describe(conditions: Conditions) -> str:
    """Describe the data set, ways and shots and the setting in words; way 0 and setting "" are left out."""
    words = [DATASETS.get(conditions.dataset, conditions.dataset)]
    ways = f"{conditions.way}-way " if conditions.way else ""
    words.append(f"{ways}{conditions.shot}-shot")
    if conditions.setting:
        words.append(f"{conditions.setting} setting")
    if conditions.query_has_class:
        words.append("query has the class")
    return ", ".join(words)


def _settings(lines: Sequence[Line], base: Conditions) -> ReportTable:
    settings = [each.value for each in Setting if any(find(line, base._replace(setting=each)) for line in lines)]
    columns = [("", "Method"), ("", "Trained parameters (K)")]
    columns += [(_capital(setting), name) for setting in settings for name in ("Acc.", "mIoU", "False masks")]
    rows = []
    for line in lines:
        found = [find(line, base._replace(setting=each)) for each in settings]
        if any(found):
            names = ("accuracy", "miou", "false_mask_rate")
            scores = [_score(each, name) for each in found for name in names]
            rows.append((TableEntry(line.label), TableEntry(f"{line.trained_parameters / THOUSAND:.1f}"), *scores))
    lowest = [index for index, (_, name) in enumerate(columns) if name == "False masks"]
    return _marked(f"{describe(base)}: mean over folds", columns, rows, lowest)


def _folds(lines: Sequence[Line], asked: Conditions) -> list[ReportTable]:
    present = {each.fold for line in lines for each in line.summaries if each.conditions == asked}
    folds = sorted(fold for fold in present if fold is not None)
    if len(folds) < 2:
        return []
    columns, rows = [("", "Method")], []
    columns += [(f"Fold {fold}", name) for fold in folds for name in ("Acc.", "mIoU")]
    columns += [("Mean", name) for name in ("Acc.", "mIoU")]
    for line in lines:
        own = {each.fold: each for each in line.summaries if each.conditions == asked}
        if own:
            scores = [_score(own.get(fold), name) for fold in [*folds, None] for name in ("accuracy", "miou")]
            rows.append((TableEntry(line.label), *scores))
    return [_marked(f"{describe(asked)}: by fold", columns, rows)]


def _ways(lines: Sequence[Line], base: Conditions, ways: Sequence[int]) -> list[ReportTable]:
    if len(ways) < 2:
        return []
    columns = [("", "Method"), *((f"{way}-way", name) for way in ways for name in ("Acc.", "mIoU"))]
    return [_by(lines, [base._replace(way=way) for way in ways], f"{describe(base)}: by number of ways", columns)]


def _sizes(lines: Sequence[Line], base: Conditions, splits: Iterable[str]) -> ReportTable:
    named = list(dict.fromkeys(splits))
    columns = [("", "Method"), *((f"{split} %", name) for split in named for name in ("Acc.", "mIoU"))]
    title = f"{describe(base)}: by object size, percent of the photo"
    return _by(lines, [base._replace(split=split) for split in named], title, columns)


def _by(
    lines: Sequence[Line], asked: Sequence[Conditions], title: str, columns: Sequence[tuple[str, str]]
) -> ReportTable:
    rows = []
    for line in lines:
        found = [find(line, each) for each in asked]
        if any(found):
            scores = [_score(each, name) for each in found for name in ("accuracy", "miou")]
            rows.append((TableEntry(line.label), *scores))
    return _marked(title, columns, rows)


def _score(summary: Summary | None, name: str) -> TableEntry:
    value = None if summary is None else summary.scores[name]
    if summary is None or value is None:
        return TableEntry(MISSING)
    interval = summary.intervals[name]
    margin = None if interval is None else 50 * (interval[1] - interval[0])
    return TableEntry(f"{100 * value:.1f}", 100 * value, margin)


def _marked(
    title: str,
    columns: Sequence[tuple[str, str]],
    rows: Sequence[tuple[TableEntry, ...]],
    lowest: Iterable[int] = (),
) -> ReportTable:
    """Return the table with the best score of each column marked, if there are several."""
    marked = [list(row) for row in rows]
    for column in range(len(columns)):
        values = [row[column].value for row in rows if row[column].value is not None]
        choose: Callable[..., float] = min if column in lowest else max
        if len(values) > 1:
            best = choose(values)
            for row in marked:
                entry = row[column]
                if entry.value is not None and f"{entry.value:.1f}" == f"{best:.1f}":
                    row[column] = replace(entry, best=True)
    return ReportTable(title, tuple(columns), tuple(map(tuple, marked)))


def _capital(words: str) -> str:
    return words.replace("-", " ").capitalize()


def markdown(tables: Sequence[ReportTable]) -> str:
    """Write tables as Markdown; the best score of a column is bold, and ± is half of the 95 % interval."""
    return "\n".join(_markdown(table) for table in tables)


def latex(tables: Sequence[ReportTable]) -> str:
    """Write tables as LaTeX, for the package booktabs."""
    return "\n".join(_latex(table) for table in tables)


def comma_separated(tables: Sequence[ReportTable]) -> str:
    """Write tables as CSV, with one row for each score and half of its interval, in percent."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "method", "group", "score", "percent", "half_interval"])
    for table in tables:
        for row in table.rows:
            for (group, name), entry in zip(table.columns[1:], row[1:], strict=True):
                value = entry.text if entry.value is None else f"{entry.value:.4f}"
                margin = "" if entry.margin is None else f"{entry.margin:.4f}"
                writer.writerow([table.title, row[0].text, group, name, value, margin])
    return text.getvalue()


FORMATS: Mapping[str, Callable[[Sequence[ReportTable]], str]] = {
    ".md": markdown,
    ".tex": latex,
    ".csv": comma_separated,
}


def _markdown(table: ReportTable) -> str:
    names = [f"{group} {name}".strip() for group, name in table.columns]
    lines = [f"## {table.title}", "", _pipes(names), _pipes(["---", *["---:"] * (len(names) - 1)])]
    lines += [_pipes([_text(entry, "**", "**", " ± ").replace("|", r"\|") for entry in row]) for row in table.rows]
    return "\n".join(lines) + "\n"


def _pipes(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


def _text(entry: TableEntry, start: str, end: str, plus_minus: str) -> str:
    text = entry.text if entry.margin is None else f"{entry.text}{plus_minus}{entry.margin:.1f}"
    return f"{start}{text}{end}" if entry.best else text


def _latex(table: ReportTable) -> str:
    groups, rules, first = [], [], 1
    for group, columns in groupby(table.columns, key=lambda column: column[0]):
        width = len(list(columns))
        groups.append(rf"\multicolumn{{{width}}}{{c}}{{{_escaped(group)}}}")
        if group:
            rules.append(rf"\cmidrule(lr){{{first}-{first + width - 1}}}")
        first += width
    rows = [
        " & ".join(_text(_escaped_entry(entry), r"\textbf{", "}", r"\,$\pm$\,") for entry in row) + r" \\"
        for row in table.rows
    ]
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{_escaped(table.title)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
            r"\toprule",
            " & ".join(groups) + r" \\",
            *([" ".join(rules)] if rules else []),
            " & ".join(_escaped(name) for _, name in table.columns) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _escaped_entry(entry: TableEntry) -> TableEntry:
    return replace(entry, text=_escaped(entry.text))


def _escaped(text: str) -> str:
    return "".join(LATEX_SPECIAL.get(letter, letter) for letter in text)
