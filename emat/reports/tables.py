"""The paper's tables: settings side by side, folds side by side, ways, and sizes of objects."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from emat.evaluation.summary import Configuration, Summary
from emat.reports.runs import Line, overall

DATASETS = {"pascal": "PASCAL-5i", "coco": "COCO-20i"}
SETTINGS = ("original", "partially-augmented", "fully-augmented")
ORDINARY_SPLITS = ("train", "val")
MISSING = "-"
THOUSAND = 1000


@dataclass(frozen=True)
class Cell:
    """A score in percent and the half width of its interval, or words."""

    text: str
    value: float | None = None
    margin: float | None = None
    best: bool = False


@dataclass(frozen=True)
class ReportTable:
    """A title, names of columns - each with the group it stands under, or "" - and rows."""

    title: str
    columns: tuple[tuple[str, str], ...]  # group, name
    rows: tuple[tuple[Cell, ...], ...]


def tables(lines: Sequence[Line]) -> list[ReportTable]:
    """Every table that the results can fill."""
    asked = dict.fromkeys(each.configuration for line in lines for each in line.summaries)
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


def find(line: Line, configuration: Configuration) -> Summary | None:
    """The summary over all folds of `configuration`."""
    return next((each for each in overall(line.summaries) if each.configuration == configuration), None)


def describe(asked: Configuration, *, setting: bool = True) -> str:
    """A configuration in words: data set, ways and shots, setting."""
    words = [DATASETS.get(asked.dataset, asked.dataset)]
    ways = f"{asked.way}-way " if asked.way else ""
    words.append(f"{ways}{asked.shot}-shot")
    if setting and asked.setting:
        words.append(f"{asked.setting} setting")
    if asked.query_has_class:
        words.append("query has the class")
    return ", ".join(words)


def _settings(lines: Sequence[Line], base: Configuration) -> ReportTable:
    settings = [each for each in SETTINGS if any(find(line, base._replace(setting=each)) for line in lines)]
    columns = [("", "Method"), ("", "Trained parameters (K)")]
    columns += [(_capital(setting), name) for setting in settings for name in ("Acc.", "mIoU", "False masks")]
    rows = []
    for line in lines:
        found = [find(line, base._replace(setting=each)) for each in settings]
        if any(found):
            names = ("accuracy", "miou", "false_mask_rate")
            scores = [_score(each, name) for each in found for name in names]
            rows.append((Cell(line.label), Cell(f"{line.trained_parameters / THOUSAND:.1f}"), *scores))
    lowest = [place for place, (_, name) in enumerate(columns) if name == "False masks"]
    return _marked(f"{describe(base)}: mean over folds", columns, rows, lowest)


def _folds(lines: Sequence[Line], asked: Configuration) -> list[ReportTable]:
    present = {each.fold for line in lines for each in line.summaries if each.configuration == asked}
    folds = sorted(fold for fold in present if fold is not None)
    if len(folds) < 2:
        return []
    columns, rows = [("", "Method")], []
    columns += [(f"Fold {fold}", name) for fold in folds for name in ("Acc.", "mIoU")]
    columns += [("Mean", name) for name in ("Acc.", "mIoU")]
    for line in lines:
        own = {each.fold: each for each in line.summaries if each.configuration == asked}
        if own:
            scores = [_score(own.get(fold), name) for fold in [*folds, None] for name in ("accuracy", "miou")]
            rows.append((Cell(line.label), *scores))
    return [_marked(f"{describe(asked)}: by fold", columns, rows)]


def _ways(lines: Sequence[Line], base: Configuration, ways: Sequence[int]) -> list[ReportTable]:
    if len(ways) < 2:
        return []
    columns = [("", "Method"), *((f"{way}-way", name) for way in ways for name in ("Acc.", "mIoU"))]
    return [_by(lines, [base._replace(way=way) for way in ways], f"{describe(base)}: by number of ways", columns)]


def _sizes(lines: Sequence[Line], base: Configuration, splits: Iterable[str]) -> ReportTable:
    named = list(dict.fromkeys(splits))
    columns = [("", "Method"), *((f"{split} %", name) for split in named for name in ("Acc.", "mIoU"))]
    title = f"{describe(base)}: by size of the object, percent of the image"
    return _by(lines, [base._replace(split=split) for split in named], title, columns)


def _by(
    lines: Sequence[Line], asked: Sequence[Configuration], title: str, columns: Sequence[tuple[str, str]]
) -> ReportTable:
    rows = []
    for line in lines:
        found = [find(line, each) for each in asked]
        if any(found):
            scores = [_score(each, name) for each in found for name in ("accuracy", "miou")]
            rows.append((Cell(line.label), *scores))
    return _marked(title, columns, rows)


def _score(summary: Summary | None, name: str) -> Cell:
    value = None if summary is None else summary.scores[name]
    if summary is None or value is None:
        return Cell(MISSING)
    interval = summary.intervals[name]
    margin = None if interval is None else 50 * (interval[1] - interval[0])
    return Cell(f"{100 * value:.1f}", 100 * value, margin)


def _marked(
    title: str,
    columns: Sequence[tuple[str, str]],
    rows: Sequence[tuple[Cell, ...]],
    lowest: Iterable[int] = (),
) -> ReportTable:
    """The table with the best score of each column marked, where several lines compete."""
    marked = [list(row) for row in rows]
    for place in range(len(columns)):
        values = [row[place].value for row in rows if row[place].value is not None]
        choose: Callable[..., float] = min if place in lowest else max
        if len(values) > 1:
            best = choose(values)
            for row in marked:
                cell = row[place]
                if cell.value is not None and f"{cell.value:.1f}" == f"{best:.1f}":
                    row[place] = Cell(cell.text, cell.value, cell.margin, best=True)
    return ReportTable(title, tuple(columns), tuple(map(tuple, marked)))


def _capital(words: str) -> str:
    return words.replace("-", " ").capitalize()
