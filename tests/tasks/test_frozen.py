"""Frozen tasks come back as they were, and a file that was touched is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from emat.datasets.class_areas import ClassAreas
from emat.datasets.fold_lists import FoldList
from emat.errors import EmatError
from emat.tasks.frozen import FrozenTasks, freeze, read_frozen_tasks, write_frozen_tasks
from emat.tasks.published import published_protocol
from emat.tasks.sampling import TaskSampler
from emat.tasks.task import Setting, digest

FOLD = FoldList("pets", 1, "val", tuple((f"{c}/{i} é", c) for c in (3, 4) for i in range(6)), (3, 4))
AREAS = ClassAreas(lambda name: np.array([[3, 4, 5]]))


@pytest.fixture(params=[False, True], ids=["fold classes", "all classes"])
def frozen(request: pytest.FixtureRequest) -> FrozenTasks:
    protocol = published_protocol(FOLD, 2, 3, Setting.FULLY_AUGMENTED, theta=0.1, tasks=9, all_classes=request.param)
    return freeze(TaskSampler(FOLD, protocol, AREAS))


def test_what_is_written_is_read(frozen: FrozenTasks, tmp_path: Path) -> None:
    path = tmp_path / "out" / "tasks.jsonl"
    write_frozen_tasks(frozen, path)
    assert read_frozen_tasks(path) == frozen
    assert len(path.read_text().splitlines()) == 10
    assert any(task.augmented for task in frozen.tasks)


def test_the_header_says_all_that_is_needed_to_draw_the_tasks_again(frozen: FrozenTasks, tmp_path: Path) -> None:
    write_frozen_tasks(frozen, tmp_path / "tasks.jsonl")
    read = read_frozen_tasks(tmp_path / "tasks.jsonl")
    assert read.list_sha256 == FOLD.sha256
    assert digest(TaskSampler(FOLD, read.protocol, AREAS)) == read.digest


def lines_of(frozen: FrozenTasks, path: Path) -> list[str]:
    write_frozen_tasks(frozen, path)
    return path.read_text().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda lines: lines[:-1], "changed after it was written: 8 of 9 tasks"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "changed after it was written"),
        (lambda lines: [*lines[:3], "{not json\n"], "line 4 is no JSON object"),
        (lambda lines: [*lines[:-1], '{"index": 8}\n'], "damaged file of tasks"),
        (
            lambda lines: [*lines[:-1], json.dumps({**json.loads(lines[-1]), "shots": []})],
            "damaged file of tasks",
        ),
        (lambda lines: lines[1:], "is no file of tasks"),
        (lambda lines: [], "line 1 is no JSON object"),
    ],
)
def test_a_file_that_was_touched_is_refused(frozen: FrozenTasks, tmp_path: Path, changed: object, message: str) -> None:
    path = tmp_path / "tasks.jsonl"
    assert callable(changed)
    path.write_text("".join(changed(lines_of(frozen, path))))
    with pytest.raises(EmatError, match=message):
        read_frozen_tasks(path)


def test_a_missing_or_binary_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, told in (("binary", "cannot be read as text"), ("absent", "cannot be read: No such file")):
        with pytest.raises(EmatError, match=f"{name} {told}"):
            read_frozen_tasks(tmp_path / name)
