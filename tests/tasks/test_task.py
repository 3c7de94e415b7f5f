"""A task file gives back the tasks that were written, and a file that was changed is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from emat.datasets.dataset import ClassAreas
from emat.datasets.fold_lists import FoldList
from emat.tasks.sampling import TaskRequest, TaskSampler, published_protocol
from emat.tasks.task import Configuration, Setting, digest, read_task_file, write_task_file
from tests.raises import raises_code

FOLD = FoldList("pets", 1, "val", tuple((f"{c}/{i} é", c) for c in (3, 4) for i in range(6)), (3, 4))
AREAS = ClassAreas(lambda name: np.array([[3, 4, 5]]))


@pytest.fixture(params=[False, True], ids=["fold classes", "all classes"])
def drawn(request: pytest.FixtureRequest) -> Configuration:
    protocol = published_protocol(
        FOLD, TaskRequest(2, 3, Setting.FULLY_AUGMENTED, theta=0.1, tasks=9, all_classes=request.param)
    )
    return TaskSampler(FOLD, protocol, AREAS).configuration()


def test_what_is_written_is_read(drawn: Configuration, tmp_path: Path) -> None:
    path = tmp_path / "out" / "tasks.jsonl"
    write_task_file(drawn, path)
    assert read_task_file(path) == drawn
    assert len(path.read_text().splitlines()) == 10
    assert any(task.augmented for task in drawn.tasks)


def test_the_header_says_all_that_is_needed_to_draw_the_tasks_again(drawn: Configuration, tmp_path: Path) -> None:
    write_task_file(drawn, tmp_path / "tasks.jsonl")
    read = read_task_file(tmp_path / "tasks.jsonl")
    assert read.list_sha256 == FOLD.sha256
    assert digest(TaskSampler(FOLD, read.protocol, AREAS)) == read.digest


def lines_of(drawn: Configuration, path: Path) -> list[str]:
    write_task_file(drawn, path)
    return path.read_text().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        (lambda lines: lines[:-1], "changed-file"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "changed-file"),
        (lambda lines: [*lines[:3], "{not json\n"], "damaged-file"),
        (lambda lines: [*lines[:-1], '{"index": 8}\n'], "damaged-file"),
        (
            lambda lines: [*lines[:-1], json.dumps({**json.loads(lines[-1]), "shots": []})],
            "damaged-file",
        ),
        (lambda lines: lines[1:], "wrong-file-kind"),
        (lambda lines: [], "damaged-file"),
    ],
)
def test_a_file_that_was_changed_is_refused(drawn: Configuration, tmp_path: Path, changed: object, code: str) -> None:
    path = tmp_path / "tasks.jsonl"
    assert callable(changed)
    path.write_text("".join(changed(lines_of(drawn, path))))
    with raises_code(code):
        read_task_file(path)


def test_a_missing_or_binary_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, code in (("binary", "not-text"), ("absent", "no-such-file")):
        with raises_code(code, name):
            read_task_file(tmp_path / name)


def test_a_task_file_of_version_0_1_is_read() -> None:
    old = read_task_file(Path(__file__).parents[1] / "evaluation" / "written_by_0_1" / "tasks.jsonl")
    assert (old.dataset, old.fold, old.protocol.setting, len(old.tasks)) == ("shapes", 0, Setting.FULLY_AUGMENTED, 4)
