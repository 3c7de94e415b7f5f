"""What was measured beside what is published: the paper's five tables and two more, and its findings in words.

Published numbers are in `published.csv`, one cell a line, as the paper prints them. A test compares the file with the
paper's text. The two more tables are the readings of "fully augmented", and what attention costs.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import pairwise

from emat.evaluation.metrics import ScoreCounts, compute
from emat.evaluation.results import Summary, bootstrap
from emat.model import build
from emat.model.network import Network
from emat.reports.comparison import DATASETS
from emat.reports.paper.attention_cost import (
    EQUAL_TOKENS,
    FILLED,
    GB,
    IN_CHUNKS,
    LEFT_OUT,
    PAPER_CHANNELS,
    TABLE_2_CASES,
    TYPICAL_COVER,
    AttentionCase,
    Costs,
)
from emat.reports.paper.contents import (
    ABLATION_ROWS,
    ALL_CLASSES,
    CURVES,
    FSCS_ROWS,
    MASKS_ONLY,
    SEGMENTING_ROW,
    SIZE_SPLITS,
    SMALL_OBJECTS,
    SMALL_SPLITS,
    THREE_SETTINGS,
    WITH_THETA,
    WITHOUT_THETA,
    TaskSpec,
    compared,
    name_folds,
    other_model,
    support_tokens,
)
from emat.reports.paper.evaluations import ResultStore
from emat.reports.tables import NO, NOT_RUN, YES, Cell, Row, Table
from emat.tasks.task import Setting

NUMBER = re.compile(r"≈?\s*(-?\d+(?:\.\d+)?)")
SCORE_COLUMNS = {"accuracy": "Acc.", "miou": "mIoU"}
SCORE_WORDS = {"accuracy": "accuracy", "miou": "mIoU"}  # as sentences name them
SLIP = (
    "The paper's body text (Sec. 5.1) says that the fully augmented setting augments 1243 of PASCAL-5i's 4000 tasks. "
    "This is a slip: 1243 is the number for 1-way 5-shot tasks (Fig. 9), and the paper's own per-fold table says 694 "
    "for 2-way 1-shot, which is what is counted on the published lists."
)
RESERVED = (
    "The paper's memory is what a GPU had in use on average while it trained three tasks at a time. Measured here is "
    "the peak that PyTorch allocates for the forward and backward pass of three tasks, from backbone tokens to logits, "
    "by the plain formulas and without the backbone, the optimiser and CUDA itself; the support mask covers "
    f"{TYPICAL_COVER:.0%} of the photo. So compare the rows with each other rather than with the paper's column."
)
TABLE_COVERS = (0.1, TYPICAL_COVER, 0.4, 1.0)  # of the photo by the support mask
COST_CASES = tuple(AttentionCase("emat-me", masking) for masking in (FILLED, LEFT_OUT))


@cache
def published() -> Mapping[tuple[str, str, str], str]:
    """Return every published cell, as the paper prints it, by its table, row and column, in the paper's order.

    A table is "table-1" ... "table-5", "figure-9" for its caption, or the section of a number in the text.
    """
    text = (resources.files("emat.reports.paper") / "published.csv").read_text(encoding="utf-8")
    return {(row["table"], row["row"], row["column"]): row["text"] for row in csv.DictReader(text.splitlines())}


def published_text(table: str, row: str, column: str) -> str | None:
    """Return what the paper prints in a cell; None if it has no such cell."""
    return published().get((table, row, column))


def published_number(table: str, row: str, column: str) -> float | None:
    """Return the number in a cell; None if the paper has no such cell or no number there.

    >>> published_number("table-1", "pascal EMAT", "original accuracy")
    82.7
    """
    match = NUMBER.fullmatch(published_text(table, row, column) or "")
    return float(match[1]) if match else None


def _score_cell(summary: Summary | None, score: str, address: tuple[str, str, str], all_folds: int = 1) -> Cell:
    """A score in percent, and what the paper has at an address (table, row, column) as the mean of so many folds."""
    words = NOT_RUN if summary is None else None
    partly = summary is not None and summary.scores[score] is not None and len(summary.folds) != all_folds
    only = f"{name_folds(summary.folds)} only" if summary is not None and partly else None
    text, number = published_text(*address), published_number(*address)
    return Cell.of(summary, score, words=words, only=only, published_text=text, published=number)


def comparison_table(store: ResultStore) -> Table:
    """Table 1: accuracy and mIoU of every method in the three settings."""
    name, labels = store.tasks.name, list(store.methods)
    columns = [("", "Params. (M)")]
    columns += [(_named(spec.setting), score) for spec in THREE_SETTINGS for score in SCORE_COLUMNS.values()]
    rows = []
    for label in _rows_and_extras(labels):
        address = f"{name} {label}"
        cells = [_parameters(store, label, "table-1", address, 1e6)]
        cells += [
            _score(store, label, spec, score, ("table-1", address, f"{spec.setting.value} {score}"))
            for spec in THREE_SETTINGS
            for score in SCORE_COLUMNS
        ]
        rows.append(_row(label, cells))
    title = f"Table 1: comparison of FS-CS methods on {DATASETS[name]}, 2-way 1-shot"
    shown = _rows_and_extras(labels)
    notes = [*_channel_notes(store), *_untrained_notes(store), *_fold_notes(store, shown, THREE_SETTINGS[:1])]
    notes += store.fewer_tasks(compared(labels), THREE_SETTINGS)
    return Table(title, tuple(columns), tuple(rows), "table-1", tuple(notes), compares=True)


def ablation_table(store: ResultStore, costs: Costs) -> Table:
    """Table 2: the steps from CST* to EMAT; memory and parameters are those of the networks at the paper's size."""
    columns = [("", "t_s per layer"), ("", "ME"), ("", "LD"), ("", "PE"), ("", "Mem. (GB)"), ("", "Params. (K)")]
    columns += [(group, score) for group in ("All data", "Small objects") for score in SCORE_COLUMNS.values()]
    label_of = {row: label for label, row in ABLATION_ROWS.items()}
    rows = []
    for row, case in TABLE_2_CASES.items():
        label = label_of.get(row, "")
        memory = costs[case, TYPICAL_COVER].batch_gigabytes()
        parameters = sum(parameter.numel() for parameter in build(case.method, PAPER_CHANNELS).parameters()) / 1000
        cells = [Cell(words=words, published_text=words) for words in _steps(row)]
        cells += [
            _number("table-2", row, "memory", memory, 1, "GB"),
            _number("table-2", row, "parameters", parameters, 2, "K"),
        ]
        cells += [
            _score(store, label, spec, score, ("table-2", row, f"{which} {score}"))
            for which, spec in (("all", THREE_SETTINGS[0]), ("small", SMALL_OBJECTS))
            for score in SCORE_COLUMNS
        ]
        rows.append(Row(row.split()[0], tuple(cells), measured=True))
    notes = [RESERVED, "Parameters are counted in the networks built with the paper's 72 correlation channels."]
    for label, row in ABLATION_ROWS.items():
        methods = store.methods.get(label)
        here = None if methods is None else support_tokens(next(iter(methods.values())))
        if here is not None and f"{here[0]}, {here[1]}" != _steps(row)[0]:
            notes.append(f"The head whose scores stand in the row of {label} has t_s = {here[0]}, {here[1]}.")
    notes += _fold_notes(store, list(ABLATION_ROWS), (THREE_SETTINGS[0], SMALL_OBJECTS))
    notes += store.fewer_tasks(ABLATION_ROWS, (THREE_SETTINGS[0], SMALL_OBJECTS))
    chunks = costs[AttentionCase("emat", IN_CHUNKS), TYPICAL_COVER].batch_gigabytes()
    notes.append(f"emat itself trains in chunks of query tokens, with {chunks:.1f} GB for three tasks of the last row.")
    title = "Table 2: ablation study of EMAT on PASCAL-5i, original setting"
    return Table(title, tuple(columns), tuple(rows), "table-2", tuple(notes), compares=True)


def fold_tables(store: ResultStore) -> list[Table]:
    """Table 3 or 4: one table for each setting, with the number of tasks that the setting augments."""
    tasks = store.tasks
    table = "table-3" if tasks.name == "pascal" else "table-4"
    folds = [*map(str, tasks.folds), "mean"]
    columns = [
        (f"Fold {fold}" if fold != "mean" else "Mean", score) for fold in folds for score in SCORE_COLUMNS.values()
    ]
    tables = []
    for spec in THREE_SETTINGS:
        setting, rows = spec.setting.value, []
        for label in _rows_and_extras(list(store.methods)):
            by_fold = store.by_fold(label, spec)
            summaries = [*map(by_fold.get, tasks.folds), store.mean(label, spec)]
            counts = [1] * len(tasks.folds) + [len(tasks.folds)]
            cells = [
                _score_cell(summary, score, (table, f"{setting} {label}", f"{fold} {score}"), count)
                for fold, summary, count in zip(folds, summaries, counts, strict=True)
                for score in SCORE_COLUMNS
            ]
            rows.append(_row(label, cells))
        title = f"Table {table[-1]}, {_named(spec.setting).lower()}: 2-way 1-shot on {DATASETS[tasks.name]} by fold"
        notes = [*_augmented_notes(store, table, spec), *store.fewer_tasks(compared(list(store.methods)), [spec])]
        tables.append(Table(title, tuple(columns), tuple(rows), table, tuple(notes), compares=True))
    return tables


def segmentation_table(store: ResultStore) -> Table:
    """Table 5: mIoU of methods that only segment, quoted, beside EMAT_s."""
    name = store.tasks.name
    columns = (("", "Venue"), ("", "Backbone"), ("mIoU", "1-shot"), ("mIoU", "5-shot"))
    methods = list(dict.fromkeys(row for table, row, _ in published() if table == "table-5"))
    rows = []
    for method in [*(quoted for quoted in methods if quoted != SEGMENTING_ROW), SEGMENTING_ROW]:
        cells = [
            Cell(published_text=published_text("table-5", method, "venue")),
            Cell(published_text=published_text("table-5", method, "backbone"), words=_backbone(store, method)),
        ]
        cells += [
            _score(store, method, spec, "miou", ("table-5", method, f"{name} {spec.shot}-shot")) for spec in MASKS_ONLY
        ]
        measured = any(cell.measured is not None for cell in cells)
        rows.append(Row(method, tuple(cells), measured, quoted=method != SEGMENTING_ROW))
    if store.over_folds("EMAT", MASKS_ONLY[0]) is not None:
        cells = [Cell(), Cell(words=_backbone(store, "EMAT"))]
        cells += [_score(store, "EMAT", spec, "miou", ("", "", "")) for spec in MASKS_ONLY]
        rows.append(Row("EMAT, with its classification head", tuple(cells), True, published=False))
    title = f"Table 5: FS-S methods on {DATASETS[name]}, 1-way, the query has the class"
    note = "All rows but EMAT_s are quoted by the paper from the methods' own papers; they are not run here."
    ours = (SEGMENTING_ROW, "EMAT")
    notes = (note, *_fold_notes(store, ours, MASKS_ONLY, ("miou",)), *store.fewer_tasks(ours, MASKS_ONLY))
    return Table(title, columns, tuple(rows), "table-5", notes, compares=True)


def readings_table(store: ResultStore) -> Table:
    """What the fully augmented setting does if only the fold's classes may become ways, and if all classes may."""
    tasks, name = store.tasks, store.tasks.name
    table = "table-3" if name == "pascal" else "table-4"
    columns = [("Augmented tasks", "all folds"), *(("Augmented tasks", f"fold {fold}") for fold in tasks.folds)]
    columns += [("EMAT", score) for score in SCORE_COLUMNS.values()]
    rows = []
    for words, spec, row in (
        ("only the fold's test classes become ways", THREE_SETTINGS[2], Setting.FULLY_AUGMENTED.value),
        ("classes of training and test become ways", ALL_CLASSES, ""),
    ):
        counts = tasks.augmented(spec) or []
        cells = [_number(table, row, "augmented tasks", float(sum(counts)) if counts else None, 0, "tasks")]
        cells += [Cell(measured=float(count), digits=0) for count in counts or [0] * len(tasks.folds)]
        cells += [
            _score(store, "EMAT", spec, score, (table, f"{row} EMAT", f"mean {score}")) for score in SCORE_COLUMNS
        ]
        rows.append(Row(words, tuple(cells), True, published=bool(row)))
    notes = (
        "The paper's text (Eq. 3) says that classes of training and test may become ways. Its published counts come "
        "from the first reading, which is the default of emat; `emat eval --all-classes` measures the second.",
        *((SLIP,) if name == "pascal" else ()),
        *store.fewer_tasks(["EMAT"], (THREE_SETTINGS[2], ALL_CLASSES)),
        *_readings_on_same_tasks(store),
    )
    title = f'The two readings of "fully augmented" on {DATASETS[name]}, 2-way 1-shot'
    return Table(
        title, tuple(columns), tuple(rows), "table-readings", notes, True, rows_are="Reading", all_folds_too=True
    )


def _readings_on_same_tasks(store: ResultStore) -> list[str]:
    """Compare the readings on the tasks that were measured of both, if these are not all that the table shows."""
    specs = (THREE_SETTINGS[2], ALL_CLASSES)
    first = store.common_tasks(["EMAT"], specs)
    means = [store.mean("EMAT", spec, first) for spec in specs]
    if None in means or means == [store.mean("EMAT", spec) for spec in specs]:
        return []
    first_reading, second_reading = (_scores_of(mean, tuple(SCORE_COLUMNS)) for mean in means)
    return [f"On the tasks measured of both, EMAT has {first_reading} in the first and {second_reading} in the second."]


def attention_table(costs: Costs) -> Table:
    """Memory and time of a training task at equal t_s, with masked tokens filled or left out."""
    columns = [(f"mask covers {cover:.0%}", what) for cover in TABLE_COVERS for what in ("GB", "s")]
    rows = []
    for case in EQUAL_TOKENS:
        cells = []
        for cover in TABLE_COVERS:
            cost = costs[case, cover]
            cells += [Cell(measured=cost.bytes / GB, digits=2), Cell(measured=cost.seconds, digits=1)]
        network = "CST's network" if case.method == "emat-me" else "EMAT's network"
        rows.append(Row(f"{network}, masked tokens {case.masking}", tuple(cells), True, published=False))
    dense, sparse, chunks = (
        costs[AttentionCase("emat", masking), TYPICAL_COVER] for masking in (FILLED, LEFT_OUT, IN_CHUNKS)
    )
    notes = (
        "One training task, forward and backward, from tokens to logits with t_s = 401 and 101, t_q = 2500 and 72 "
        "channels: gigabytes that PyTorch allocates at the peak, and seconds of one processor core.",
        f"At {TYPICAL_COVER:.0%} cover, leaving masked tokens out takes {sparse.bytes / dense.bytes:.0%} of the memory "
        f"and {sparse.seconds / dense.seconds:.0%} of the time of filling them; emat's implementation takes "
        f"{chunks.bytes / dense.bytes:.0%} and {chunks.seconds / dense.seconds:.0%}.",
        "With a mask that covers everything, leaving out saves nothing: the paper's stated limitation.",
    )
    title = "Attention memory and runtime against CST at equal t_s"
    return Table(title, tuple(columns), tuple(rows), "table-attention", notes, rows_are="Network")


def table_costs(names: Sequence[str]) -> list[tuple[AttentionCase, float]]:
    """Return which costs the tables with these names show."""
    costs = []
    if "table-2" in names:
        cases = (*TABLE_2_CASES.values(), AttentionCase("emat", IN_CHUNKS))
        costs = [(case, TYPICAL_COVER) for case in cases]
    if "table-attention" in names:
        costs += [(case, cover) for case in EQUAL_TOKENS for cover in TABLE_COVERS]
    return costs


def _rows_and_extras(labels: Sequence[str]) -> list[str]:
    """The rows of Tables 1, 3 and 4, and then further models that were measured."""
    return [*FSCS_ROWS, *(label for label in compared(labels) if label not in FSCS_ROWS)]


def _row(label: str, cells: Sequence[Cell]) -> Row:
    measured = any(cell.interval is not None for cell in cells)
    return Row(label, tuple(cells), measured, published=label in FSCS_ROWS)


def _score(store: ResultStore, label: str, spec: TaskSpec, score: str, address: tuple[str, str, str]) -> Cell:
    """The mean of a score over the folds beside the published one at a table, row and column."""
    return _score_cell(store.over_folds(label, spec), score, address, len(store.tasks.folds))


def _backbone(store: ResultStore, label: str) -> str | None:
    return next((evaluated.backbone for evaluated in store.methods.get(label, {}).values()), None)


def _fold_notes(
    store: ResultStore, labels: Sequence[str], specs: Sequence[TaskSpec], scores: Sequence[str] = tuple(SCORE_COLUMNS)
) -> list[str]:
    """Compare models that were measured on some folds only with the others, on the same tasks of these folds."""
    notes = []
    for spec in specs:
        folds_of = {label: tuple(fold.configuration.fold for fold in store.folds(label, spec)) for label in labels}
        fewer = {label: folds for label, folds in folds_of.items() if 0 < len(folds) < len(store.tasks.folds)}
        for folds in dict.fromkeys(fewer.values()):
            alike = [label for label, measured in folds_of.items() if set(folds) <= set(measured)]
            if len(alike) == 1:
                continue
            common = tuple((fold, tasks) for fold, tasks in store.common_tasks(alike, [spec]) if fold in folds)
            count = " and ".join(dict.fromkeys(str(tasks) for _, tasks in common))
            scores_here = [f"{label} {_scores_of(store.over_folds(label, spec, common), scores)}" for label in alike]
            only = ", ".join(label for label, measured in fewer.items() if measured == folds)
            notes.append(
                f"{only}: {name_folds(folds)} only. On the same {count} tasks of {name_folds(folds)} ({spec.words()}): "
                f"{'; '.join(scores_here)}."
            )
    return notes


def _scores_of(summary: Summary | None, scores: Sequence[str]) -> str:
    """Some scores of a summary in words."""
    values = {score: None if summary is None else summary.scores[score] for score in scores}
    return ", ".join(
        f"{SCORE_COLUMNS[score]} {100 * value:.1f}" for score, value in values.items() if value is not None
    )


def _untrained_notes(store: ResultStore) -> list[str]:
    """Say which rows of trained methods were measured without training."""
    untrained = [label for label in store.methods if label in FSCS_ROWS and _is_untrained(store, label)]
    return [
        f"{label} was measured without training, on the ImageNet weights of its backbone; the paper's was trained."
        for label in untrained
    ]


def _is_untrained(store: ResultStore, label: str) -> bool:
    return all(evaluated.head is None for evaluated in store.methods[label].values())


def _channel_notes(store: ResultStore) -> list[str]:
    """Say why networks have fewer or more parameters than the paper's: they have other numbers of channels."""
    counts: dict[int, list[str]] = {}
    for label, methods in store.methods.items():
        network = getattr(next(iter(methods.values())).method, "network", None)
        if isinstance(network, Network) and network.channels != PAPER_CHANNELS and label in FSCS_ROWS:
            counts.setdefault(network.channels, []).append(label)
    return [
        f"{' and '.join(labels)}: the backbone gives {channels} correlation channels here, not {PAPER_CHANNELS}, so "
        "the numbers of parameters differ."
        for channels, labels in counts.items()
    ]


def _number(table: str, row: str, column: str, measured: float | None, digits: int, unit: str) -> Cell:
    text, number = published_text(table, row, column), published_number(table, row, column)
    return Cell(measured, digits=digits, published_text=text, published=number, unit=unit)


def _parameters(store: ResultStore, label: str, table: str, row: str, unit: float) -> Cell:
    methods = store.methods.get(label)
    if methods is not None and label in FSCS_ROWS and _is_untrained(store, label):
        return replace(_number(table, row, "parameters", None, 2, "M"), words="not trained")
    count = None if methods is None else next(iter(methods.values())).trained_parameters / unit
    return _number(table, row, "parameters", count, 2, "M")


def _steps(row: str) -> tuple[str, str, str, str]:
    """t_s of both layers, and which of the three modifications a row of Table 2 has."""
    case = TABLE_2_CASES[row]
    second = {145: 10, 325: 37, 401: 101}[case.support_tokens]
    done = [YES if step in row.split() else NO for step in ("ME", "LD", "PE")]
    return f"{case.support_tokens}, {second}", done[0], done[1], done[2]


def _augmented_notes(store: ResultStore, table: str, spec: TaskSpec) -> tuple[str, ...]:
    published = published_text(table, spec.setting.value, "augmented tasks")
    if published is None:
        return ()
    counts = store.tasks.augmented(spec)
    counted = (
        "could not be counted" if counts is None else f"are {sum(counts)} here ({', '.join(map(str, counts))} by fold)"
    )
    notes = [f"Augmented tasks {counted}, and {published} in the paper."]
    if spec.setting is Setting.FULLY_AUGMENTED and store.tasks.name == "pascal":
        notes.append(SLIP)
    return tuple(notes)


def _named(setting: Setting) -> str:
    return setting.value.replace("-", " ").capitalize()


def findings(store: ResultStore, costs: Costs) -> list[str]:
    """Return a sentence on each finding of the paper that can be judged with what was measured."""
    scores = [
        *_on_settings(store),
        *_on_gain(store),
        *_on_ablation(store),
        *_on_small_objects(store),
        *_on_theta(store),
        *_on_ways(store),
    ]
    return [*_on_task_counts(store), *scores, *_on_memory(costs)]


def _on_task_counts(store: ResultStore) -> list[str]:
    """Whether the augmented settings change as many tasks as in the paper."""
    table = "table-3" if store.tasks.name == "pascal" else "table-4"
    pairs = []
    for spec in THREE_SETTINGS[1:]:
        counted = store.tasks.augmented(spec)
        published = published_number(table, spec.setting.value, "augmented tasks")
        if counted is not None and published is not None:
            pairs.append((sum(counted), int(published)))
    if not pairs or not store.tasks.are_published:
        return []
    here, there = (" and ".join(str(pair[side]) for pair in pairs) for side in (0, 1))
    same = "as in the paper" if here == there else f"and not {there} as in the paper"
    return [f"Tasks: the partially and fully augmented settings change {here} of the 2-way 1-shot tasks, {same}."]


def _on_settings(store: ResultStore) -> list[str]:
    """How EMAT's scores change from the original to the augmented settings."""
    first = store.common_tasks(["EMAT"], THREE_SETTINGS)
    means = [store.over_folds("EMAT", spec, first) for spec in THREE_SETTINGS]
    folds = {() if mean is None else mean.folds for mean in means}
    if len(folds) > 1 or () in folds:
        return []
    parts = []
    for score, words in SCORE_WORDS.items():
        here = [100 * (mean.scores[score] or 0) for mean in means if mean is not None]
        there = [_published(store, f"{spec.setting.value} EMAT", score, *folds) for spec in THREE_SETTINGS]
        if None not in there:
            shown, published = (", ".join(f"{value or 0:.1f}" for value in values) for values in (here, there))
            parts.append(f"{words} {shown} here and {published} in the paper")
    which = _only(store, *folds)
    return [f"Settings{which}: EMAT in the original, partially and fully augmented one has {'; '.join(parts)}."]


def _published(store: ResultStore, row: str, score: str, folds: Sequence[int]) -> float | None:
    """The mean over some folds of a row of the paper's per-fold table."""
    table = "table-3" if store.tasks.name == "pascal" else "table-4"
    numbers = [published_number(table, row, f"{fold} {score}") for fold in folds]
    return None if None in numbers else sum(value or 0 for value in numbers) / len(numbers)


def _on_gain(store: ResultStore) -> list[str]:
    """EMAT's gain over CST*, on all data and on small objects, beside the published gain."""
    sentences = []
    for words, spec, published in (
        ("2-way 1-shot, original setting", THREE_SETTINGS[0], _published_gain),
        ("objects below 15 % of the photo, 1-way 1-shot", SMALL_OBJECTS, _published_small_gain),
    ):
        gain = gain_between(store, ("EMAT", spec), ("CST*", spec))
        if gain is None:
            continue
        parts = []
        for score, name in SCORE_WORDS.items():
            there = published(store, score, gain.folds)
            in_paper = "" if there is None else f", {_signed(there)} in the paper"
            parts.append(f"{name} {gain.words(score)} here{in_paper}")
        sentences.append(f"EMAT against CST*, {words}{_only(store, gain.folds)}: {'; '.join(parts)}.")
    return sentences


def _published_gain(store: ResultStore, score: str, folds: Sequence[int]) -> float | None:
    ours, theirs = (_published(store, f"original {label}", score, folds) for label in ("EMAT", "CST*"))
    return None if ours is None or theirs is None else ours - theirs


def _published_small_gain(store: ResultStore, score: str, folds: Sequence[int]) -> float | None:
    ours, theirs = (published_number("table-2", row, f"small {score}") for row in ("EMAT ME LD PE", "CST* 145"))
    is_published = store.tasks.name == "pascal" and len(folds) == len(store.tasks.folds)
    return None if ours is None or theirs is None or not is_published else ours - theirs


def _on_small_objects(store: ResultStore) -> list[str]:
    """EMAT's gain in the three splits of small objects."""
    other = other_model(list(store.methods))
    gains = [] if other is None else [gain_between(store, ("EMAT", spec), (other, spec)) for spec in SIZE_SPLITS]
    measured = [gain for gain in gains if gain is not None]
    if not measured or len(measured) < len(gains):
        return []
    parts = [f"{words} {', '.join(gain.words(score) for gain in measured)}" for score, words in SCORE_WORDS.items()]
    return [
        f"Object size: EMAT's gain over {other} for objects of {', '.join(SMALL_SPLITS)} % of the photo"
        f"{_only(store, measured[0].folds)}: {'; '.join(parts)}. "
        "In the paper (Fig. 6) it is largest for the smallest objects."
    ]


def _on_ablation(store: ResultStore) -> list[str]:
    """What each step of Table 2 gains, as far as its heads were measured."""
    measured = [label for label in ABLATION_ROWS if store.measured_folds(label)]
    if not set(measured) - {"CST*", "EMAT"}:
        return []  # there is no step between them
    sentences = []
    for before, after in pairwise(measured):
        for which, spec in (("all", THREE_SETTINGS[0]), ("small", SMALL_OBJECTS)):
            gain = gain_between(store, (after, spec), (before, spec))
            if gain is None:
                continue
            rows = [ABLATION_ROWS[label] for label in (after, before)]
            parts = []
            for score, name in SCORE_WORDS.items():
                there = [published_number("table-2", row, f"{which} {score}") for row in rows]
                published_gain = None if there[0] is None or there[1] is None else _signed(there[0] - there[1])
                parts.append(f"{name} {gain.words(score)} here, {published_gain} in the paper on all folds")
            where = "2-way 1-shot" if which == "all" else "objects below 15 % of the photo"
            sentences.append(
                f"Ablation, from {before} to {after}, {where}{_only(store, gain.folds)}: {'; '.join(parts)}."
            )
    return sentences


def _on_theta(store: ResultStore) -> list[str]:
    """What the augmented settings gain if objects below theta are not added."""
    pairs = zip(WITH_THETA, WITHOUT_THETA, strict=True)
    gains = [gain_between(store, ("EMAT", with_theta), ("EMAT", without)) for with_theta, without in pairs]
    measured = [gain for gain in gains if gain is not None]
    if len(measured) < len(gains):
        return []
    words = ", ".join(f"{spec.setting.value.replace('-', ' ')} {spec.way}-way" for spec in WITH_THETA)
    parts = [f"{name} {', '.join(gain.words(score) for gain in measured)}" for score, name in SCORE_WORDS.items()]
    return [
        f"Theta: leaving small objects out of the augmented settings ({words}) changes EMAT's {'; '.join(parts)}"
        f"{_only(store, measured[0].folds)}. In the paper (Fig. 8, COCO-20i) it raises both scores in every case."
    ]


def _on_ways(store: ResultStore) -> list[str]:
    """How EMAT does with one to five ways, and its gain over the other model."""
    other = other_model([label for label in store.methods if store.mean(label, CURVES[0]) is not None])
    first = store.common_tasks(["EMAT", *filter(None, [other])], CURVES)
    means = [store.mean("EMAT", spec, first) for spec in CURVES]
    if None in means:
        return []
    parts = []
    gains = [] if other is None else [gain_between(store, ("EMAT", spec), (other, spec)) for spec in CURVES]
    for score, name in SCORE_WORDS.items():
        here = ", ".join(f"{100 * (mean.scores[score] or 0):.1f}" for mean in means if mean is not None)
        over = ", ".join(gain.words(score) for gain in gains if gain is not None)
        parts.append(f"{name} {here}" + (f", which is {over} over {other}" if over else ""))
    return [
        f"Ways: with 1, 2, 3, 4 and 5 of them (5-shot, fully augmented) EMAT has {'; '.join(parts)}. In the paper "
        "(Fig. 9) EMAT is ahead of every other method at each of them, and its mIoU stays about the same."
    ]


def _on_memory(costs: Costs) -> list[str]:
    """What leaving masked tokens out saves at equal t_s."""
    filled, left_out = (costs.get((case, TYPICAL_COVER)) for case in COST_CASES)
    there = [published_number("table-2", row, "memory") for row in ("EMAT ME", "CST* 401")]
    if filled is None or left_out is None or there[0] is None or there[1] is None:
        return []
    return [
        f"Memory: with t_s = 401 and 101, leaving masked tokens out takes {left_out.bytes / filled.bytes:.0%} of the "
        f"memory of filling them (mask over {TYPICAL_COVER:.0%} of the photo). In the paper it is "
        f"{there[0] / there[1]:.0%} of all that the GPU had in use."
    ]


@dataclass(frozen=True)
class Gain:
    """How far a model's scores are above another's on the same tasks, in points, as the mean over some folds."""

    folds: tuple[int, ...]
    points: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]

    def words(self, score: str) -> str:
        """Return the gain and its interval."""
        low, high = self.intervals[score]
        return f"{_signed(self.points[score])} ({_signed(low)} to {_signed(high)})"


def gain_between(store: ResultStore, ours: tuple[str, TaskSpec], theirs: tuple[str, TaskSpec]) -> Gain | None:
    """Return a model's gain over another with paired 95 % intervals, on the folds and tasks that both have.

    Args:
        store: What was measured.
        ours: The model, and its tasks.
        theirs: The other model and its tasks, which have the same queries.

    Returns:
        The gain; None if the models have no fold in common.
    """
    counts = [{fold.configuration.fold: len(fold.outcomes) for fold in store.folds(*side)} for side in (ours, theirs)]
    first = tuple((fold, min(count, counts[1][fold])) for fold, count in counts[0].items() if fold in counts[1])
    measured = [{fold.configuration.fold: fold for fold in store.folds(*side, first)} for side in (ours, theirs)]
    folds = [fold for fold in measured[0] if fold in measured[1]]
    if not folds:
        return None
    scores = [
        [compute(ScoreCounts.of(by_fold[fold].outcomes, by_fold[fold].configuration.class_ids)) for fold in folds]
        for by_fold in measured
    ]
    low, high = bootstrap(*([by_fold[fold].counts() for fold in folds] for by_fold in measured))
    points, ends = {}, {}
    for score in SCORE_WORDS:
        pairs = zip(scores[0], scores[1], strict=True)
        points[score] = 100 * sum(getattr(a, score) - getattr(b, score) for a, b in pairs) / len(folds)
        ends[score] = (100 * getattr(low, score), 100 * getattr(high, score))
    return Gain(tuple(folds), points, ends)


def _only(store: ResultStore, folds: Sequence[int]) -> str:
    """Which folds a sentence is about, if not about all."""
    if len(folds) == len(store.tasks.folds):
        return ""
    return f", {name_folds(folds)} only"


def _signed(value: float) -> str:
    return f"{round(value, 1) + 0:+.1f}".replace("-", "−")  # adding 0 makes -0.0 positive
