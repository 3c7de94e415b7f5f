"""Files of one method become one row of tables with settings, folds, ways and sizes side by side."""

from emat.evaluation.results import Conditions, Summary
from emat.reports.comparison import MethodScores, comparison_tables, read_methods, splits_measured
from emat.reports.tables import Table
from tests.raises import raises_code
from tests.reports.conftest import Writer


def made(write_run: Writer, **more: tuple[int, ...] | tuple[str, ...]) -> list[Table]:
    files = [write_run("a.json", **more), write_run("b.json", method="cst", quality=0.5, **more)]
    return comparison_tables(read_methods(list(map(str, files))))


def test_settings_are_side_by_side_and_the_best_is_marked(write_run: Writer) -> None:
    table = made(write_run)[0]
    assert table.title == "PASCAL-5i, 2-way 1-shot: mean over folds"
    assert [group for group, name in table.columns if name == "mIoU"] == ["Original", "Fully augmented"]
    assert [row.label for row in table.rows] == ["emat", "cst"]
    accuracy = [row.cells[1] for row in table.rows]
    assert [cell.best for cell in accuracy] == [True, False]
    assert all(cell.margin and cell.margin > 0 for cell in accuracy)


def test_the_fewest_false_masks_are_the_best(write_run: Writer) -> None:
    table = made(write_run)[0]
    column = [name for _, name in table.columns].index("False masks")
    values = [row.cells[column].measured for row in table.rows]
    assert values == [100.0, 100.0]
    assert all(row.cells[column].best for row in table.rows)


def test_folds_are_side_by_side(write_run: Writer) -> None:
    by_fold = [table for table in made(write_run) if table.title.endswith("by fold")]
    assert len(by_fold) == 2
    assert [group for group, name in by_fold[0].columns if name == "mIoU"] == ["Fold 0", "Fold 1", "Mean"]
    fold0, fold1, mean = (by_fold[0].rows[0].cells[column].measured for column in (1, 3, 5))
    assert fold0 is not None
    assert fold1 is not None
    assert mean is not None
    assert abs(mean - (fold0 + fold1) / 2) < 1e-3


def test_ways_and_sizes_have_tables(write_run: Writer) -> None:
    found = made(write_run, ways=(1, 2, 3), splits=("val", "0-5", "5-10"))
    by_way = next(table for table in found if table.title.endswith("by number of ways"))
    assert [group for group, name in by_way.columns if name == "Acc."] == ["1-way", "2-way", "3-way"]
    by_size = next(table for table in found if "object size" in table.title)
    assert [group for group, name in by_size.columns if name == "Acc."] == ["0-5 %", "5-10 %"]


def test_folds_of_two_files_are_one_line(write_run: Writer) -> None:
    files = [write_run("b.json", folds=(1,)), write_run("a.json", folds=(0,))]
    whole = write_run("whole.json", folds=(0, 1))
    (joined,), (one,) = read_methods(list(map(str, files))), read_methods([str(whole)])
    assert joined.summaries == one.summaries
    assert joined.label == "emat"


def test_every_method_has_its_own_line(write_run: Writer) -> None:
    files = [write_run("a.json"), write_run("b.json", method="cst")]
    assert [method.label for method in read_methods(list(map(str, files)))] == ["emat", "cst"]


def test_runs_with_different_sizes_have_different_labels(write_run: Writer) -> None:
    files = [write_run("a.json"), write_run("b.json", size=400)]
    labels = [method.label for method in read_methods(list(map(str, files)))]
    assert labels[1] == "emat (efficientnet-lite2, 400 px, threshold 0.5)"


def test_runs_with_different_thresholds_have_different_labels(write_run: Writer) -> None:
    files = [
        write_run("a.json", thresholds={"threshold": 0.5}),  # as emat wrote it while there was one
        write_run("b.json", thresholds={"thresholds": {"presence": 0.4, "mask": 0.3}}),
        write_run("c.json", thresholds={"thresholds": "own"}),
        write_run("d.json", thresholds={"thresholds": {"presence": 0.5, "mask": 0.5}}, folds=(2,)),
    ]
    labels = [method.label for method in read_methods(list(map(str, files)))]
    named = ["threshold 0.5", "thresholds 0.4 and 0.3", "own thresholds"]
    assert labels == [f"emat (efficientnet-lite2, 256 px, {name})" for name in named]


def test_labels_of_the_user_are_kept(write_run: Writer) -> None:
    files = [write_run("a.json"), write_run("b.json")]
    labels = ["EMAT (ours)", "longer"]
    assert [method.label for method in read_methods([f"{labels[0]}={files[0]}", f"{labels[1]}={files[1]}"])] == labels
    assert [method.label for method in read_methods([f"EMAT (ours)={files[0]}", str(files[1])])] == [
        "EMAT (ours)",
        "emat",
    ]


def test_the_same_fold_twice_is_refused(write_run: Writer) -> None:
    files = [write_run("a.json"), write_run("b.json")]
    with raises_code("label-needed"):
        read_methods(list(map(str, files)))


def test_the_mean_or_the_only_fold_is_the_overall_summary(write_run: Writer) -> None:
    for name, folds, expected in (("a.json", (0, 1), None), ("b.json", (1,), 1)):
        (method,) = read_methods([str(write_run(name, folds=folds))])
        overall = [method.overall(each.conditions) for each in method.summaries]
        assert {each.fold for each in overall if each is not None} == {expected}
        assert method.of_fold(method.summaries[0].conditions, 7) is None


def test_all_objects_together_are_no_object_size() -> None:
    whole = Conditions("pascal", "val", 1, 1, "original", True)
    small = whole._replace(split="0-5")
    summaries = tuple(Summary(each, 0, (0,), 1, {}, {}) for each in (whole, small))
    assert splits_measured([MethodScores("emat", 0, summaries)]) == {whole._replace(split=""): [small]}
