"""The published numbers against the text of the paper, cell by cell; and what holds here of what the paper finds."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from emat.reports.paper.attention_cost import TYPICAL_COVER, StepCost
from emat.reports.paper.contents import CURVES, SMALL_OBJECTS, THREE_SETTINGS, WITH_THETA, WITHOUT_THETA, choose_parts
from emat.reports.paper.evaluations import MeasuringPlan, make_plan
from emat.reports.paper.paper_tables import (
    COST_CASES,
    findings,
    gain_between,
    published,
    published_number,
    published_text,
)

CELL_MACROS = (  # what TeX writes around a value; \1 is the value
    (r"\\cite\{[^}]*\}", ""),
    (r"\\(?:rowcolor|cellcolor)\{[^}]*\}", ""),
    (r"\\multirow\{[^}]*\}\{\*\}", ""),
    (r"\\makecell(?:\[c\])?", ""),
    (r"\\(?:underline|textbf)\{([^{}]*)\}", r"\1"),
    (r"\\textsuperscript\{\*\}", "*"),
    (r"\\ours", "EMAT"),
    (r"\$\\approx \$", "≈"),
    (r"\\bfseries", ""),
    (r"\\cmark", "yes"),
    (r"\\(?:mid|bottom|top)rule", ""),
    (r"[{}$\\]", ""),
)


@pytest.fixture(scope="module")
def paper(shared: Path) -> str:
    return (shared / "paper" / "emat-paper.tex").read_text(encoding="utf-8")


def rows_of(paper: str, label: str) -> list[list[str]]:
    """The rows of the table with this label below its head, as plain words; a line of one cell is a heading."""
    start = paper.index(rf"\label{{{label}}}")
    body = paper[start : paper.index(r"\end{tabularx}", start)].split(r"\midrule", 1)[1]
    rows = []
    # A double backslash ends a row, except inside \makecell{...}, where the next line does not start one.
    for line in re.split(r"\\\\\s*\n", body):
        cells = [plain(cell) for cell in line.split("&")]
        if any(cells):
            rows.append(cells)
    return rows


def plain(cell: str) -> str:
    for pattern, replacement in CELL_MACROS:
        cell = re.sub(pattern, replacement, cell)
    return " ".join(cell.split())


def check(table: str, row: str, columns: list[str], values: list[str]) -> None:
    assert len(columns) == len(values), (table, row)
    for column, value in zip(columns, values, strict=True):
        assert published_text(table, row, column) == value, (table, row, column)


SETTINGS = ("original", "partially-augmented", "fully-augmented")
SCORES = ("accuracy", "miou")


def test_table_1_says_what_the_paper_says(paper: str) -> None:
    rows = rows_of(paper, "tab:comparison-fscs")
    assert len(rows) == 14
    columns = ["parameters", *(f"{setting} {score}" for setting in SETTINGS for score in SCORES)]
    for index, (_, method, *values) in enumerate(rows):
        check("table-1", f"{'pascal' if index < 7 else 'coco'} {method}", columns, values)


def test_table_2_says_what_the_paper_says(paper: str) -> None:
    rows = rows_of(paper, "tab:method-ablation")
    names = ["CST* 145", "CST* 325", "CST* 401", "EMAT ME", "EMAT ME LD", "EMAT ME LD PE"]
    columns = ["memory", "parameters", *(f"{which} {score}" for which in ("all", "small") for score in SCORES)]
    assert len(rows) == len(names)
    for name, (_, method, *values) in zip(names, rows, strict=True):
        assert name.startswith(method)
        assert [word == "yes" for word in values[:3]] == [step in name.split() for step in ("ME", "LD", "PE")]
        check("table-2", name, columns, values[3:])


@pytest.mark.parametrize(("table", "label"), [("table-3", "tab:per-fold-pascal"), ("table-4", "tab:per-fold-coco")])
def test_the_per_fold_tables_say_what_the_paper_says(paper: str, table: str, label: str) -> None:
    setting, seen = "", Counter[str]()
    columns = [f"{fold} {score}" for fold in ("0", "1", "2", "3", "mean") for score in SCORES]
    for cells in rows_of(paper, label):
        if len(cells) == 1:
            continue
        method = cells[0]
        seen[method] += 1
        setting = SETTINGS[seen[method] - 1]
        check(table, f"{setting} {method}", columns, cells[1:])
    assert set(seen.values()) == {3}
    assert len(seen) == 7


def test_the_numbers_of_augmented_tasks_say_what_the_paper_says(paper: str) -> None:
    for table, label in (("table-3", "tab:per-fold-pascal"), ("table-4", "tab:per-fold-coco")):
        headings = [cells[0] for cells in rows_of(paper, label) if len(cells) == 1]
        counts = [match[1] for each in headings if (match := re.search(r"uparrow (\d+) tasks", each))]
        found = [published_text(table, setting, "augmented tasks") for setting in SETTINGS[1:]]
        assert found == counts
    caption = paper[: paper.index(r"\label{fig:n-way-5-shot-comparison}")].rsplit(r"\caption", 1)[1]
    for dataset, pattern in (
        ("pascal", r"in PASCAL.*? is (\d+), (\d+), (\d+), (\d+), and (\d+)"),
        ("coco", r"values are (\d+), (\d+), (\d+), (\d+), and (\d+)"),
    ):
        match = re.search(pattern, caption)
        assert match is not None
        found = [published_text("figure-9", f"{dataset} {way}-way", "augmented tasks") for way in range(1, 6)]
        assert found == list(match.groups())
    body = re.search(r"This setting augments (\d+) and (\d+) out of the 4000 tasks", paper)
    assert body is not None
    assert published_text("section-5.1", "pascal fully-augmented", "augmented tasks") == body[1] == "1243"
    assert published_text("section-5.1", "coco fully-augmented", "augmented tasks") == body[2]


def test_table_5_says_what_the_paper_says(paper: str) -> None:
    rows = rows_of(paper, "tab:fss-comparison")
    columns = ["venue", "backbone", "pascal 1-shot", "pascal 5-shot", "coco 1-shot", "coco 5-shot"]
    for method, *values in rows:
        check("table-5", "AMFormer" if method == "AMFomer" else method, columns, values)
    names = {row for table, row, _ in published() if table == "table-5"}
    assert names == {"AMFormer" if cells[0] == "AMFomer" else cells[0] for cells in rows}


def test_every_cell_of_the_file_was_checked_above() -> None:
    # 14 rows of 7, 6 of 6, 21 of 10 and two counts each, 12 different rows of 6, and 12 counts of the text.
    counts = Counter(table for table, _, _ in published())
    expected = {"table-1": 98, "table-2": 36, "table-3": 212, "table-4": 212, "table-5": 72}
    assert counts == {**expected, "figure-9": 10, "section-5.1": 2}


def test_numbers_are_numbers_and_the_rest_is_none() -> None:
    assert published_number("table-1", "pascal EMAT", "original miou") == 63.38
    assert published_number("table-2", "CST* 401", "all miou") is None
    assert published_number("table-2", "CST* 401", "memory") == 63
    assert published_number("table-1", "pascal nobody", "original miou") is None


def test_a_gain_is_the_difference_of_the_means_with_a_paired_interval(plan: MeasuringPlan) -> None:
    store = plan.store
    gain = gain_between(store, ("EMAT", SMALL_OBJECTS), ("Prototype", SMALL_OBJECTS))
    assert gain is not None
    assert gain.folds == (0, 1, 2, 3)
    means = [store.mean(label, SMALL_OBJECTS) for label in ("EMAT", "Prototype")]
    assert means[0] is not None
    assert means[1] is not None
    for score, value in gain.points.items():
        scores = [mean.scores[score] for mean in means if mean is not None]
        assert value == pytest.approx(100 * (scores[0] - scores[1]), abs=1e-3)  # type: ignore[operator]
        low, high = gain.intervals[score]
        assert low <= high
    same = gain_between(store, ("EMAT", SMALL_OBJECTS), ("EMAT", SMALL_OBJECTS))
    assert same is not None
    assert same.words("miou") == "+0.0 (+0.0 to +0.0)"
    assert gain_between(store, ("EMAT", SMALL_OBJECTS), ("CST*", SMALL_OBJECTS)) is None


def test_each_finding_that_can_be_judged_has_a_sentence(plan: MeasuringPlan) -> None:
    costs = {
        (case, TYPICAL_COVER): StepCost(case.method, case.masking, TYPICAL_COVER, size, 1.0)
        for case, size in zip(COST_CASES, (8e9, 2e9), strict=True)
    }
    said = findings(plan.store, costs)
    beginnings = [each.split(":")[0] for each in said]
    # The lists are not the published ones, and CST* is missing.
    assert beginnings == ["Settings", "Object size", "Theta", "Ways", "Memory"]
    assert "has accuracy " in said[0]
    assert "82.7, 82.9, 81.2 in the paper" in said[0]
    assert "takes 25% of the memory" in said[-1]


def test_without_measurements_nothing_is_found(plan: MeasuringPlan) -> None:
    empty = make_plan(choose_parts("pascal"), [], plan.store.tasks, plan.store.folders[0], "cpu")
    assert findings(empty.store, {}) == []
    assert empty.store.common_tasks(["EMAT"], THREE_SETTINGS) == ()


def test_what_theta_and_more_ways_change_is_said_on_the_same_tasks(plan: MeasuringPlan) -> None:
    found = findings(plan.store, {})
    (theta,) = [each for each in found if each.startswith("Theta:")]
    (ways,) = [each for each in found if each.startswith("Ways:")]
    gain = gain_between(plan.store, ("EMAT", WITH_THETA[0]), ("EMAT", WITHOUT_THETA[0]))
    assert gain is not None
    assert f"changes EMAT's accuracy {gain.words('accuracy')}, " in theta
    means = [plan.store.mean("EMAT", spec) for spec in CURVES]
    shown = ", ".join(f"{100 * (mean.scores['miou'] or 0):.1f}" for mean in means if mean is not None)
    assert f"mIoU {shown}, which is " in ways
    assert "over Prototype" in ways


def test_a_step_of_the_ablation_is_compared_on_its_own_folds(plan: MeasuringPlan) -> None:
    store = plan.store
    methods = {"EMAT": store.methods["EMAT"], "EMAT-ME-LD": {0: store.methods["EMAT"][0]}}
    steps = [each for each in findings(replace(store, methods=methods, _summaries={}), {}) if "Ablation" in each]
    none = "accuracy +0.0 (+0.0 to +0.0) here, +0.5 in the paper on all folds"  # both are the same head
    assert steps[0].startswith(f"Ablation, from EMAT-ME-LD to EMAT, 2-way 1-shot, fold 0 only: {none}; mIoU")
    assert len(steps) == 2
    assert not [each for each in findings(store, {}) if "Ablation" in each]
