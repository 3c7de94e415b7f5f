import numpy as np
import pytest

from emat.datasets.dataset import ClassAreas
from emat.evaluation.absence import ABSENT, absence, absent_configurations, calibration, threshold_at
from emat.evaluation.metrics import judge_task
from emat.tasks.task import Configuration, Protocol, Setting, Task
from tests.raises import raises_code

CLASSES = ("cat", "dog", "sofa", "car")
SHOWN = {
    "cat on a sofa": (1, 3),
    "a cat": (1,),
    "a dog": (2,),
    "dog on a sofa": (2, 3),
    "a sofa": (3,),
    "a car": (4,),
    "nothing": (),
}


@pytest.fixture
def areas() -> ClassAreas:
    return ClassAreas(lambda name: np.array([[0, *SHOWN[name]]], dtype=np.uint8))


def asked(protocol: Protocol, ways: tuple[int, ...] = (1,)) -> Configuration:
    task = Task(0, "a cat", 1, ways, tuple(("cat on a sofa",) for _ in ways))
    return Configuration("pets", 0, "val", (1, 2), "", protocol, (task,))


ONE_WAY = Protocol(query_has_class=True, tasks=1)


def test_each_level_asks_about_photos_of_its_own_kind(areas: ClassAreas) -> None:
    made = absent_configurations(asked(ONE_WAY), tuple(SHOWN), areas, CLASSES)
    queries = {each.split.removeprefix(ABSENT): each.tasks[0].query for each in made}
    assert queries.pop("similar class") in ("a dog", "dog on a sofa")
    assert queries == {"no class": "nothing", "another scene": "a car", "same scene": "a sofa"}
    for each in made:
        assert each.tasks[0].shots == (("cat on a sofa",),)
        assert each.protocol.tasks == 1
        assert not each.protocol.query_has_class


def test_queries_are_the_same_every_time_and_of_all_photos_in_turn(areas: ClassAreas) -> None:
    tasks = tuple(Task(index, "a cat", 1, (1,), (("cat on a sofa",),)) for index in range(30))
    many = Configuration("pets", 0, "val", (1, 2), "", Protocol(query_has_class=True, tasks=30), tasks)
    first, again = (absent_configurations(many, tuple(SHOWN), areas, CLASSES) for _ in range(2))
    assert first == again
    similar = next(each for each in first if each.split.endswith("similar class"))
    assert {task.query for task in similar.tasks} == {"a dog", "dog on a sofa"}


def test_a_level_without_photos_is_left_out(areas: ClassAreas) -> None:
    made = absent_configurations(asked(ONE_WAY), ("a car", "a cat"), areas, CLASSES)
    assert [each.split for each in made] == [f"{ABSENT}another scene"]


def test_a_data_set_without_other_photos_is_refused(areas: ClassAreas) -> None:
    with raises_code("too-few-photos"):
        absent_configurations(asked(ONE_WAY), ("a cat", "cat on a sofa"), areas, CLASSES)


@pytest.mark.parametrize(
    "protocol",
    [
        Protocol(way=2, query_has_class=True),
        Protocol(),
        Protocol(query_has_class=True, setting=Setting.FULLY_AUGMENTED),
    ],
)
def test_tasks_of_several_ways_are_refused(areas: ClassAreas, protocol: Protocol) -> None:
    with raises_code("conflicting-options"):
        absent_configurations(asked(protocol), tuple(SHOWN), areas, CLASSES)


def outcome(score: float | None, drawn: bool, there: bool) -> list[object]:
    label_map, mask = np.array([[int(drawn), 0]]), np.array([[7 if there else 0, 0]])
    scores = None if score is None else [score]
    return judge_task([7], None if score is None else [score >= 0.5], label_map, mask, scores).row()


def cell(level: str | None) -> dict[str, object]:
    return {"split": "val" if level is None else ABSENT + level}


def test_scores_and_masks_of_absent_queries_are_compared_with_present_ones() -> None:
    present = [outcome(0.1 * number, drawn=True, there=True) for number in range(1, 11)]
    easy = [outcome(0.05, drawn=False, there=False)] * 4
    hard = [outcome(0.65, drawn=True, there=False), outcome(0.15, drawn=True, there=False)]
    found = absence([cell(None), cell("same scene"), cell("no class")], [present, hard, easy])
    assert found.hit_rate == 1
    first, second = found.levels
    assert (first.level, first.queries, first.auroc, first.false_masks) == ("no class", 4, 1.0, 0.0)
    assert first.false_masks_at_hits == 0
    assert second.auroc == pytest.approx((4 + 9) / 20)
    assert second.false_masks == 1
    assert second.false_masks_at_hits == 0.5  # nine of ten score 0.2 or more, and so does one of the two
    low, high = second.auroc_interval
    assert low < second.auroc < high


def test_a_mask_beside_the_object_does_not_find_it() -> None:
    beside = judge_task([7], [True], np.array([[0, 1]]), np.array([[7, 0]]), [0.9]).row()
    found = absence([cell(None), cell("no class")], [[beside], [outcome(0.1, drawn=False, there=False)]])
    assert found.hit_rate == 0
    assert found.levels[0].false_masks_at_hits is None


def test_a_method_that_only_segments_says_it_by_its_masks() -> None:
    present = [outcome(None, drawn=True, there=True), outcome(None, drawn=False, there=True)]
    absent = [outcome(None, drawn=True, there=False), outcome(None, drawn=False, there=False)]
    assert absence([cell(None), cell("no class")], [present, absent]).levels[0].auroc == 0.5


def test_present_and_absent_queries_count_alike_in_the_calibration() -> None:
    (only,) = calibration(np.array([0.52]), np.array([0.58] * 9))
    assert only.present == pytest.approx(0.5)
    assert only.score == pytest.approx(0.55)
    assert only.weight == pytest.approx(1)


def test_a_score_of_one_is_in_the_last_bin() -> None:
    bins = calibration(np.array([1.0, 0.95]), np.array([0.0]))
    assert [round(each.present) for each in bins] == [0, 1]


def test_the_threshold_finds_nine_of_ten() -> None:
    assert threshold_at(np.array([0.9, 0.1, 0.5]), present=3) == 0.1
