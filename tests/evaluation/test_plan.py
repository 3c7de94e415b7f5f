"""A plan asks every question once, loses no task, and leaves out what is done."""

from hypothesis import given, settings
from hypothesis import strategies as st

from emat.evaluation.plan import Place, plan, savings
from emat.tasks.frozen import FrozenTasks
from emat.tasks.sampling import Protocol
from emat.tasks.task import Task

NAMES = ("a", "b", "c", "d")


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    ways = tuple(draw(st.permutations((1, 2, 3)))[: draw(st.integers(1, 3))])
    shots = tuple(tuple(draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3))) for _ in ways)
    return Task(0, draw(st.sampled_from(NAMES)), ways[0], ways, shots)


CELLS = st.lists(st.lists(tasks(), min_size=1, max_size=6), min_size=1, max_size=3)


def frozen(*drawn: Task) -> FrozenTasks:
    return FrozenTasks("pets", 0, "val", (1, 2, 3), "0" * 64, Protocol(tasks=len(drawn)), drawn)


@settings(max_examples=40)
@given(CELLS)
def test_every_task_has_its_place_under_its_own_query(drawn: list[list[Task]]) -> None:
    cells = [frozen(*each) for each in drawn]
    found = {}
    for work in plan(dict(enumerate(cells))):
        assert len({(each.ways, each.shots) for each in work.questions}) == len(work.questions)
        for question in work.questions:
            assert set(question.pairs) <= set(work.pairs)
            found.update(dict.fromkeys(question.places, (work.query, question.ways, question.shots)))
    assert found == {
        Place(number, position): (task.query, task.ways, task.shots)
        for number, cell in enumerate(cells)
        for position, task in enumerate(cell.tasks)
    }


@settings(max_examples=40)
@given(CELLS, st.integers(0, 5))
def test_what_is_done_is_left_out(drawn: list[list[Task]], done: int) -> None:
    cells = dict(enumerate(frozen(*each) for each in drawn))
    places = [place for work in plan(cells) for question in work.questions for place in question.places]
    left = [p for work in plan(cells, places[:done]) for question in work.questions for p in question.places]
    assert sorted(left, key=str) == sorted(places[done:], key=str)


def test_equal_tasks_of_two_settings_are_one_question() -> None:
    task = Task(0, "a", 1, (1, 2), (("b",), ("c",)))
    more = Task(0, "a", 1, (1, 2), (("b",), ("c", "b")))
    shared = savings([frozen(task), frozen(task), frozen(more)])
    assert (shared.tasks, shared.questions, shared.pairs, shared.pairs_apart) == (3, 2, 3, 7)
    assert (shared.images, shared.images_apart) == (3, 9)
