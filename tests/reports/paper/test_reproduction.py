"""The whole paper on the tiny data set: every table, every figure, the page, and what is said about models not run."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat.reports.paper.contents import (
    ALL_CLASSES,
    PARTS,
    SMALL_OBJECTS,
    THREE_SETTINGS,
    WITHOUT_THETA,
    PaperModel,
    TaskSpec,
    choose_parts,
    parse_model,
)
from emat.reports.paper.evaluations import MeasuringPlan, PaperTasks, ResultStore, make_plan, measure
from emat.reports.paper.paper_figures import TaskPainter, _changed
from emat.reports.paper.paper_tables import readings_table
from emat.reports.paper.reproduction import COSTS_FILE, Reproduction, Sources, draw_figures, statement, write_paper
from emat.reports.tables import NO

TABLES = [part.name for part in choose_parts("pascal") if not part.is_figure]
FIGURES = [part.name for part in choose_parts("pascal") if part.is_figure]


def test_every_table_is_written_in_three_formats(paper: Reproduction, out: Path) -> None:
    assert list(dict.fromkeys(table.name for table in paper.tables)) == TABLES
    markdown, latex = (out / "tables.md").read_text(), (out / "tables.tex").read_text()
    for table in paper.tables:
        assert f"## {table.title}" in markdown
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") == len(paper.tables)
    body = [line for line in latex.splitlines() if not line.startswith("%")]
    assert {letter for line in body for letter in line if not letter.isascii()} == {NO}  # pdfLaTeX knows the dash
    assert r"$\approx$ 63" in latex
    with (out / "tables.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["table"] for row in rows} == set(TABLES)
    published = [row for row in rows if row["table"] == "table-1" and row["row"] == "PANet"]
    assert [row["published"] for row in published][:3] == ["23.51", "56.53", "37.20"]


def test_every_figure_is_drawn_as_svg_and_png(paper: Reproduction, out: Path) -> None:
    assert {figure.name: figure.reason for figure in paper.figures} == dict.fromkeys(FIGURES)
    for name in FIGURES:
        with Image.open(out / "figures" / f"{name}.png") as image:
            assert min(image.size) > 300
            assert len(image.convert("RGB").quantize(16).getcolors() or []) > 2  # something is on it
        assert "<svg" in (out / "figures" / f"{name}.svg").read_text()


def test_the_page_is_one_file_with_everything_inside(paper: Reproduction) -> None:
    text = paper.page.read_text()
    assert text.count("data:image/png;base64,") == len(FIGURES)
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)
    for name in (*TABLES, *FIGURES):
        assert f'id="{name}"' in text
    assert text.count("Measured here: EMAT (on efficientnet-lite2 at 64 px)") == 1
    short = "Measured here on efficientnet-lite2 at 64 px"  # at everything that shows measured scores
    measured = [part for part in choose_parts("pascal") if part.is_figure and part.specs]
    assert text.count(short) == len(paper.tables) - 1 + len(measured)


def test_a_measured_cell_has_interval_difference_and_whether_the_published_value_is_inside(
    paper: Reproduction, plan: MeasuringPlan
) -> None:
    table = next(table for table in paper.tables if table.name == "table-1")
    row = next(row for row in table.rows if row.label == "EMAT")
    cell = row.cells[1]
    mean = plan.store.mean("EMAT", THREE_SETTINGS[0])
    assert mean is not None
    assert mean.scores["accuracy"] is not None
    assert cell.measured is not None
    assert cell.measured == pytest.approx(100 * mean.scores["accuracy"])
    assert cell.published == 82.7
    assert cell.difference == pytest.approx(cell.measured - 82.7)
    assert cell.interval is not None
    assert cell.published_inside == (cell.interval[0] <= 82.7 <= cell.interval[1])
    assert sum(sentence.startswith("EMAT, Original: Acc.") for sentence in table.sentences) == 1
    inside = replace(cell, interval=(80.0, 85.0))
    assert inside.compared().text.endswith("(inside)")


def test_a_model_that_is_missing_leaves_its_row_with_the_published_numbers(
    paper: Reproduction, plan: MeasuringPlan, out: Path
) -> None:
    assert list(plan.not_run) == ["CST*"]
    lines = (out / "tables.md").read_text().splitlines()
    row = lines.index("| CST* | paper | 0.37 | 80.58 | 63.28 | 80.60 | 63.23 | 78.57 | 63.08 |")
    assert lines[row + 1].startswith("|  | here | not run |")
    assert "CST*: not run (no head for folds 0, 1, 2, 3" in paper.page.read_text()


def test_emat_s_is_measured_beside_the_quoted_methods(paper: Reproduction) -> None:
    table = next(table for table in paper.tables if table.name == "table-5")
    rows = {row.label: row for row in table.rows}
    assert rows["EMAT_s"].measured
    assert rows["EMAT_s"].cells[2].measured is not None
    assert rows["GF-SAM"].quoted
    assert rows["GF-SAM"].cells[0].published_text == "NeurIPS'24"


def test_the_slip_of_the_body_text_is_a_footnote(paper: Reproduction) -> None:
    notes = {table.title: " ".join(table.notes) for table in paper.tables}
    fully = next(text for title, text in notes.items() if title.startswith("Table 3, fully"))
    assert "1243" in fully
    assert "694" in fully


def test_nothing_is_measured_twice_and_another_part_uses_what_is_there(
    plan: MeasuringPlan, paper_tasks: PaperTasks, models: list[PaperModel], out: Path
) -> None:
    assert plan.store.mean("EMAT", SMALL_OBJECTS) is not None
    again = make_plan(choose_parts("pascal", "table-2,figure-9"), models, paper_tasks, out, "cpu")
    assert [each.configurations for each in again.passes] == [(), (), ()]
    assert again.store.summaries("EMAT", SMALL_OBJECTS) == plan.store.summaries("EMAT", SMALL_OBJECTS)


def test_a_stopped_run_goes_on_where_it_stopped(
    paper_tasks: PaperTasks, models: list[PaperModel], plan: MeasuringPlan, tmp_path: Path
) -> None:
    parts = choose_parts("pascal", "table-1")
    seen: list[int] = []

    def stop(work):  # type: ignore[no-untyped-def]
        seen.append(len(work))
        for number, each in enumerate(work):
            if number == 2 and len(seen) == 1:
                raise KeyboardInterrupt
            yield each

    chosen = [models[2]]
    with pytest.raises(KeyboardInterrupt):
        measure(make_plan(parts, chosen, paper_tasks, tmp_path, "cpu"), None, stop)
    assert not list((tmp_path / "results").glob("*.json"))
    resumed = make_plan(parts, chosen, paper_tasks, tmp_path, "cpu")
    measure(resumed, None, stop)
    assert seen[1] == seen[0] - 2
    spec = THREE_SETTINGS[2]
    assert resumed.store.summaries("Prototype", spec) == plan.store.summaries("Prototype", spec)
    # Results of `emat eval` name the state of the photos of their tasks.
    (path,) = (tmp_path / "results").glob("*.json")
    photos = {name for each in resumed.passes[0].configurations for task in each.tasks for name in task.photos}
    for state, left in ((paper_tasks.dataset.state(photos), 0), ("of other photos", 12)):
        path.write_text(re.sub(r'"data_state": "[^"]*"', f'"data_state": "{state}"', path.read_text()))
        found = make_plan(parts, chosen, paper_tasks, tmp_path, "cpu", estimate=False)
        assert len(found.passes[0].configurations) == left


def test_results_of_changed_photos_are_not_used(
    plan: MeasuringPlan, paper_tasks: PaperTasks, models: list[PaperModel], out: Path
) -> None:
    changed = replace(paper_tasks)
    changed.__dict__["state"] = "another state"
    assert make_plan(choose_parts("pascal", "table-1"), models[:1], changed, out, "cpu").passes[0].configurations


def test_results_of_another_copy_of_the_photos_are_used_if_their_folder_is_given_and_the_page_says_so(
    plan: MeasuringPlan, paper_tasks: PaperTasks, models: list[PaperModel], out: Path, tmp_path: Path
) -> None:
    parts, spec = choose_parts("pascal", "table-1"), THREE_SETTINGS[0]
    copied = replace(paper_tasks)
    copied.__dict__["state"] = "the state of another copy"
    found = make_plan(parts, models[:1], copied, tmp_path, "cpu", results_in=[out / "results"])
    assert found.passes[0].configurations == ()
    assert found.store.summaries("EMAT", spec) == plan.store.summaries("EMAT", spec)
    (path,) = found.store.vouched_for
    assert any("of another copy" in each and path.name in each for each in statement(found))
    own = make_plan(parts, models[:1], copied, out, "cpu", estimate=False)
    assert own.store.left_out == [path]
    assert not any("of another copy" in each for each in statement(own))


def test_without_photos_no_pixel_of_them_is_shown(
    paper: Reproduction, plan: MeasuringPlan, out: Path, tmp_path: Path
) -> None:
    copy_costs(out, tmp_path)
    made = write_paper(choose_parts("pascal", "figure-2"), plan, tmp_path, photos=False)
    noise = [_noise(folder / "figures" / "figure-2.png") for folder in (out, tmp_path)]
    assert noise[0] > 10_000 > 5_000 > noise[1]  # grey letters stay
    assert "not shown in the figures" in made.page.read_text()


def _noise(picture: Path) -> int:
    """How many pixels have a colour of the noisy ground of the tiny photos."""
    with Image.open(picture) as image:
        pixels = np.asarray(image.convert("RGB"))
    return int(((pixels >= 90) & (pixels < 130)).all(axis=2).sum())


def test_the_parts_have_names_of_their_own() -> None:
    names = [part.name for part in PARTS]
    assert len(set(names)) == len(names)


def test_results_of_fewer_tasks_are_used_and_said_and_those_of_more_are_cut(
    plan: MeasuringPlan, paper_tasks: PaperTasks, models: list[PaperModel], out: Path, tmp_path: Path
) -> None:
    parts, chosen, spec = choose_parts("pascal", "table-1"), [models[2]], THREE_SETTINGS[0]
    two = replace(paper_tasks, tasks=2, _drawn={})
    fewer = make_plan(parts, chosen, two, tmp_path, "cpu", results_in=[out / "results"], estimate=False)
    assert fewer.store.summaries("Prototype", spec) == plan.store.summaries("Prototype", spec)
    assert len(fewer.passes[0].configurations) == 12  # they are measured again if the user wants two tasks
    (said,) = fewer.store.fewer_tasks(["Prototype"], [spec])
    assert said == "Prototype was measured on the first 1 tasks of each fold: 2-way 1-shot, original setting."
    measure(fewer, None)
    assert fewer.store.fewer_tasks(["Prototype"], [spec]) == []
    assert fewer.store.common_tasks(["Prototype"], [spec]) == tuple((fold, 2) for fold in range(4))
    more = make_plan(parts, chosen, paper_tasks, tmp_path, "cpu", estimate=False)
    assert more.passes[0].configurations == ()
    assert more.store.summaries("Prototype", spec) == plan.store.summaries("Prototype", spec)
    assert fewer.store.mean("Prototype", spec, first=tuple((fold, 1) for fold in range(4))) == plan.store.mean(
        "Prototype", spec
    )


def test_a_head_of_one_fold_is_measured_on_that_fold_and_not_compared_with_the_mean(
    plan: MeasuringPlan, paper_tasks: PaperTasks, models: list[PaperModel], heads: Path, out: Path, tmp_path: Path
) -> None:
    chosen = [models[2]]
    for label, method in (("EMAT", "emat"), ("EMAT_s", "emat-s")):
        (tmp_path / f"{method}-fold0.safetensors").write_bytes((heads / f"{method}-fold0.safetensors").read_bytes())
        chosen.append(parse_model(f"{label}={tmp_path}/{method}-fold{{fold}}.safetensors"))
    copy_costs(out, tmp_path)
    parts = choose_parts("pascal", "table-1,table-2,table-3,table-5,figure-1,figure-4,figure-6")
    partly = make_plan(parts, chosen, paper_tasks, tmp_path, "cpu", results_in=[out / "results"], estimate=False)
    assert [each.configurations for each in partly.passes[1:]] == [(), ()]
    assert "no head for folds 1, 2, 3" in partly.partly_run["EMAT"]
    made = write_paper(parts, partly, tmp_path)
    tables = {table.name: table for table in reversed(made.tables)}  # of Table 3 the first
    cell = next(row for row in tables["table-1"].rows if row.label == "EMAT").cells[1]
    assert cell.here().text.startswith("fold 0 only: ")
    assert (cell.published, cell.difference, cell.published_inside) == (82.7, None, None)
    cells = next(row for row in tables["table-3"].rows if row.label == "EMAT").cells
    assert cells[0].difference is not None
    assert [each.here().text for each in cells[2:]] == ["not run"] * 8
    reasons = {figure.name: figure.reason for figure in made.figures}
    assert reasons["figure-1"] is reasons["figure-4"] is None
    assert reasons["figure-6"] == "EMAT was not measured on these tasks of all folds"  # bars are means of them
    page = made.page.read_text()
    assert "EMAT, EMAT_s: not run on every fold" in page
    assert "EMAT (on efficientnet-lite2 at 64 px, fold 0 only)" in page
    markdown = (tmp_path / "tables.md").read_text()
    assert "|  | here, fold 0 only | 0.07 | 0.0 ± 0.0 |" in markdown
    lines = markdown.splitlines()
    (at,) = [index for index, line in enumerate(lines) if line.startswith("| EMAT_s | paper |")]
    assert lines[at + 1].startswith("|  | here, fold 0 only | - | efficientnet-lite2 |")
    assert "difference" not in lines[at + 2]  # there is none
    # What all have on that fold stands below, because the other rows are means over all folds.
    spec = THREE_SETTINGS[0]
    scores = {label: partly.store.by_fold(label, spec)[0].scores for label in ("EMAT", "Prototype")}
    words = {
        label: f"{label} Acc. {100 * (each['accuracy'] or 0):.1f}, mIoU {100 * (each['miou'] or 0):.1f}"
        for label, each in scores.items()
    }
    said = f"On the same 1 tasks of fold 0 (2-way 1-shot, original setting): {words['EMAT']}; {words['Prototype']}."
    assert f"EMAT: fold 0 only. {said}" in tables["table-1"].notes
    assert any(note.startswith("EMAT_s, EMAT: fold 0 only. On the same") for note in tables["table-5"].notes)
    with (tmp_path / "tables.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    folds = {
        (row["table"], row["row"]): row["folds"] for row in rows if row["measured"] and row["column"] != "Params. (M)"
    }
    assert (folds["table-1", "EMAT"], folds["table-1", "Prototype"]) == ("fold 0 only", "")
    assert folds["table-5", "EMAT_s"] == "fold 0 only"


def copy_costs(from_folder: Path, to_folder: Path) -> None:
    (to_folder / COSTS_FILE).parent.mkdir(parents=True)
    (to_folder / COSTS_FILE).write_text((from_folder / COSTS_FILE).read_text())


def test_fewer_tasks_of_one_fold_are_said_to_be_of_that_fold(plan: MeasuringPlan, paper_tasks: PaperTasks) -> None:
    spec = THREE_SETTINGS[0]
    two = replace(paper_tasks, tasks=2, _drawn={})
    first = replace(plan.store, tasks=two, methods={"EMAT": {0: plan.store.methods["EMAT"][0]}}, _summaries={})
    (said,) = first.fewer_tasks(["EMAT"], [spec])
    assert said == "EMAT was measured on the first 1 tasks of fold 0: 2-way 1-shot, original setting."


def test_a_method_that_was_not_trained_here_has_no_parameters_to_compare(
    plan: MeasuringPlan, paper_tasks: PaperTasks, out: Path, tmp_path: Path
) -> None:
    parts = choose_parts("pascal", "table-1")
    model = parse_model("PANet=prototype,size=64")
    found = make_plan(parts, [model], paper_tasks, tmp_path, "cpu", results_in=[out / "results"], estimate=False)
    (table,) = write_paper(parts, found, tmp_path).tables
    cells = next(row for row in table.rows if row.label == "PANet").cells
    assert (cells[0].here().text, cells[0].difference) == ("not trained", None)
    assert cells[1].difference is not None
    assert any(note.startswith("PANet was measured without training") for note in table.notes)


def test_a_model_that_was_not_run_is_not_said_to_be_measured(
    paper_tasks: PaperTasks, models: list[PaperModel], tmp_path: Path
) -> None:
    found = make_plan(choose_parts("pascal", "table-1"), models[:1], paper_tasks, tmp_path, "cpu", estimate=False)
    said = statement(found)
    assert said[0].startswith("Measured here: no model;")
    assert "EMAT: not run (its head is here, but nothing was measured with it)." in said


def without(plan: MeasuringPlan, *specs: TaskSpec, fold: int | None = None) -> ResultStore:
    """A store that lacks what was measured of some tasks, on one fold or on all."""
    store = plan.store
    gone = {
        store._key(label, each)
        for label in store.methods
        for spec in specs
        for each in store.tasks.measured(spec)
        if fold in (None, each.fold)
    }
    left = {key: outcomes for key, outcomes in store._outcomes.items() if key not in gone}
    return replace(store, _outcomes=left, _summaries={})


def test_one_task_in_three_settings_is_the_same_task_if_a_fold_lacks_a_setting(plan: MeasuringPlan) -> None:
    shown = _changed(without(plan, THREE_SETTINGS[1], fold=0))
    assert len({(each.fold, each.task.index, each.task.query) for each in shown}) == 1
    assert shown[0].fold != 0


def test_a_figure_that_lacks_some_of_its_bars_is_not_drawn(plan: MeasuringPlan, tmp_path: Path) -> None:
    store = without(plan, *WITHOUT_THETA)
    painter = TaskPainter(store.tasks.dataset)
    (figure,) = draw_figures(choose_parts("pascal", "figure-8"), Sources(store, painter, {}), tmp_path)
    assert figure.reason == "EMAT was not measured on these tasks of all folds"


def test_two_readings_of_unlike_numbers_of_tasks_are_compared_on_the_same_tasks(plan: MeasuringPlan) -> None:
    assert not any("measured of both" in note for note in readings_table(plan.store).notes)
    store = replace(plan.store, _outcomes=dict(plan.store._outcomes), _summaries={})
    for each in store.tasks.measured(ALL_CLASSES)[:1]:
        key = store._key("EMAT", each)
        store._outcomes[key] = store._outcomes[key] * 2  # as if the first reading had fewer tasks
    store.tasks = replace(store.tasks, tasks=2, _drawn={})
    assert any("On the tasks measured of both, EMAT has Acc." in note for note in readings_table(store).notes)
