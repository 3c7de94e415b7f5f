"""Tasks as a file: a header line with everything needed to draw them again, then a task a line, all JSON."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.formats.whole_files import read_text, write_text
from emat.tasks.sampling import Protocol, Queries, TaskSampler
from emat.tasks.task import Setting, Task, digest

FORMAT = "emat tasks 1"


@dataclass(frozen=True)
class FrozenTasks:
    """Tasks of one fold, and where they came from: the list by its hash, and the protocol."""

    dataset: str
    fold: int
    split: str
    class_ids: tuple[int, ...]
    list_sha256: str
    protocol: Protocol
    tasks: tuple[Task, ...]

    @property
    def digest(self) -> str:
        """The tasks' `digest`."""
        return digest(self.tasks)


def freeze(sampler: TaskSampler) -> FrozenTasks:
    """Draw all tasks of `sampler`."""
    source = sampler.fold_list
    return FrozenTasks(
        source.dataset,
        source.fold,
        source.split,
        sampler.class_ids,
        source.sha256,
        sampler.protocol,
        tuple(sampler),
    )


def write_frozen_tasks(frozen: FrozenTasks, path: Path) -> None:
    """Write `frozen` to `path` as JSON lines."""
    header = {
        "format": FORMAT,
        "dataset": frozen.dataset,
        "fold": frozen.fold,
        "split": frozen.split,
        "class_ids": frozen.class_ids,
        "list_sha256": frozen.list_sha256,
        "protocol": asdict(frozen.protocol),
        "digest": frozen.digest,
    }
    lines = [header, *(_row(task) for task in frozen.tasks)]
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def read_frozen_tasks(path: Path) -> FrozenTasks:
    """The tasks in `path`; a file that is incomplete, was edited or is something else is an `EmatError`."""
    lines = read_text(path).splitlines()
    header = _parse(lines[0] if lines else "", path, 1)
    if header.get("format") != FORMAT:
        raise EmatError(f"{path} is no file of tasks: its first line does not say {FORMAT!r}; see emat tasks freeze")
    try:
        protocol = _protocol(header["protocol"])
        tasks = tuple(_task(_parse(line, path, number), protocol.setting) for number, line in enumerate(lines[1:], 2))
        frozen = FrozenTasks(
            str(header["dataset"]),
            int(header["fold"]),
            str(header["split"]),
            _ids(header["class_ids"]),
            str(header["list_sha256"]),
            protocol,
            tasks,
        )
        stated = header["digest"]
    except (KeyError, TypeError, ValueError) as error:
        raise EmatError(f"{path} is a damaged file of tasks ({error!r}); freeze the tasks again") from None
    if len(tasks) != protocol.tasks or frozen.digest != stated:
        raise EmatError(
            f"{path} was changed after it was written: {len(tasks)} of {protocol.tasks} tasks with digest "
            f"{frozen.digest[:12]}..., its header says {str(stated)[:12]}...; freeze the tasks again"
        )
    return frozen


def _row(task: Task) -> dict[str, Any]:
    row = asdict(task)
    del row["setting"]  # the header says it for all
    return row


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise EmatError(f"{path}, line {number} is no JSON object; freeze the tasks again")
    return value


def _protocol(fields: dict[str, Any]) -> Protocol:
    new_ways = fields["new_ways"]
    typed = {
        "setting": Setting(fields["setting"]),
        "queries": Queries(fields["queries"]),
        "new_ways": None if new_ways is None else _ids(new_ways),
    }
    return Protocol(**{**fields, **typed})


def _task(row: dict[str, Any], setting: Setting) -> Task:
    ways = _ids(row["ways"])
    shots = tuple(tuple(map(str, names)) for names in row["shots"])
    if not ways or len(shots) != len(ways) or not all(shots):
        raise ValueError(f"task {row['index']} has {len(ways)} ways and shots for {len(shots)}")
    return Task(
        int(row["index"]),
        str(row["query"]),
        int(row["query_class"]),
        ways,
        shots,
        setting,
        bool(row["augmented"]),
    )


def _ids(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(map(int, values))
