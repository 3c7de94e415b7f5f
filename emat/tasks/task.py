"""Few-shot tasks as plain data, the choices they were drawn with, and task files.

A task file holds the tasks of one configuration as JSON lines: a header with everything that is needed to draw the
tasks again, then one line for each task. `emat tasks freeze` writes such a file and `emat eval --tasks` reads it.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.files import read_text
from emat.outputs import write_text

FORMAT = "emat tasks 1"
TASKS_PER_FOLD = 1000  # of the published protocol


class Setting(str, Enum):
    """Which annotations of a support photo count (paper, section "Proposed Evaluation Settings")."""

    ORIGINAL = "original"
    PARTIALLY_AUGMENTED = "partially-augmented"
    FULLY_AUGMENTED = "fully-augmented"


class Queries(str, Enum):
    """How the query of a task is chosen.

    LISTED takes the entry of the fold list at the task's index, SHUFFLED the same from the shuffled list, and DRAWN
    draws a class and then one of its photos.
    """

    LISTED = "listed"
    SHUFFLED = "shuffled"
    DRAWN = "drawn"


@dataclass(frozen=True)
class Protocol:
    """How tasks are drawn from a fold list, with every choice made.

    `emat.tasks.sampling.published_protocol` completes a user's `TaskRequest` to a protocol. `theta` is the fraction of
    a photo that an object must exceed to be added by an augmented setting. `new_ways` are the classes that the fully
    augmented setting may add as ways; None allows every class.
    """

    way: int = 1
    shot: int = 1
    setting: Setting = Setting.ORIGINAL
    query_has_class: bool = False
    queries: Queries = Queries.LISTED
    tasks: int = TASKS_PER_FOLD
    theta: float = 0.0
    new_ways: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name, value in (("ways", self.way), ("shots", self.shot), ("tasks", self.tasks)):
            if value < 1:
                raise EmatError("bad-number", f"the number of {name} is {value}; it must be at least 1")
        if not 0 <= self.theta < 1:
            raise EmatError(
                "bad-number", f"theta is {self.theta}; it is a fraction of the photo, at least 0 and below 1"
            )

    def as_json(self) -> dict[str, Any]:
        """Return the protocol as values that JSON can hold."""
        return {key: getattr(value, "value", value) for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Protocol":
        """Return the protocol from what `as_json` gave."""
        new_ways = fields["new_ways"]
        typed = {
            "setting": Setting(fields["setting"]),
            "queries": Queries(fields["queries"]),
            "new_ways": None if new_ways is None else _numbers(new_ways),
        }
        return cls(**{**fields, **typed})


@dataclass(frozen=True)
class Task:
    """Support photos by way and shot, and a query photo. Photos are given by name and classes by id.

    `query_class` is the class that the query was drawn for; it need not be one of the ways. `augmented` says whether
    the setting added anything to the support set that was drawn.
    """

    index: int
    query: str
    query_class: int
    ways: tuple[int, ...]
    shots: tuple[tuple[str, ...], ...]  # shots[w] are the support photos of ways[w]
    setting: Setting = Setting.ORIGINAL
    augmented: bool = False

    @property
    def photos(self) -> tuple[str, ...]:
        """The names of the different photos of the task, the query first."""
        return tuple(dict.fromkeys((self.query, *(name for shots in self.shots for name in shots))))

    def present(self, query_mask: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return for every way whether the query's mask (H, W), at its original size, has a pixel of it.

        >>> Task(0, "q", 3, (3, 5), (("a",), ("b",))).present(np.array([[0, 3]], dtype=np.uint8)).tolist()
        [True, False]
        """
        return np.isin(self.ways, np.unique(query_mask))


def digest(tasks: Iterable[Task]) -> str:
    """Return the SHA-256 of the tasks as compact JSON `[[query, query_class, ways, shots], ...]`.

    Two implementations that draw the same tasks have the same digest.

    >>> digest([Task(0, "q", 3, (3,), (("a",),))]) == hashlib.sha256(b'[["q",3,[3],[["a"]]]]').hexdigest()
    True
    """
    rows = [[task.query, task.query_class, task.ways, task.shots] for task in tasks]
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class Configuration:
    """One fold, way, shot, setting and size split of an evaluation, with its tasks and where they came from."""

    dataset: str
    fold: int
    split: str  # "train", "val" or an object size such as "0-5"
    class_ids: tuple[int, ...]  # the fold's test classes, which are scored
    list_sha256: str  # of the fold list
    protocol: Protocol
    tasks: tuple[Task, ...]

    @property
    def digest(self) -> str:
        """The `digest` of the tasks."""
        return digest(self.tasks)

    def as_json(self) -> dict[str, Any]:
        """Return everything but the tasks themselves, as files and reports state it."""
        return {
            "dataset": self.dataset,
            "fold": self.fold,
            "split": self.split,
            "class_ids": self.class_ids,
            "list_sha256": self.list_sha256,
            "protocol": self.protocol.as_json(),
            "digest": self.digest,
        }


def write_task_file(configuration: Configuration, path: Path) -> None:
    """Write a configuration and its tasks to `path` as JSON lines."""
    header = {"format": FORMAT, **configuration.as_json()}
    lines = [header, *(_row(task) for task in configuration.tasks)]
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def read_task_file(path: Path) -> Configuration:
    """Read the configuration that `write_task_file` wrote.

    Raises:
        EmatError: If the file is incomplete, was edited or is not a task file.
    """
    lines = read_text(path).splitlines()
    header = _parse(lines[0] if lines else "", path, 1)
    if header.get("format") != FORMAT:
        raise EmatError(
            "wrong-file-kind",
            f"{path} is not a task file: its first line does not say {FORMAT!r}; emat tasks freeze writes one",
        )
    try:
        protocol = Protocol.from_json(header["protocol"])
        tasks = tuple(_task(_parse(line, path, number), protocol.setting) for number, line in enumerate(lines[1:], 2))
        configuration = Configuration(
            str(header["dataset"]),
            int(header["fold"]),
            str(header["split"]),
            _numbers(header["class_ids"]),
            str(header["list_sha256"]),
            protocol,
            tasks,
        )
        stated = header["digest"]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise EmatError(
            "damaged-file", f"{path} is a damaged task file ({error!r}); write it again with emat tasks freeze"
        ) from None
    if len(tasks) != protocol.tasks or configuration.digest != stated:
        raise EmatError(
            "changed-file",
            f"{path} was changed after it was written: it has {len(tasks)} of {protocol.tasks} tasks with digest "
            f"{configuration.digest[:12]}..., but its header says {str(stated)[:12]}...; write it again with "
            "emat tasks freeze",
        )
    return configuration


def _row(task: Task) -> dict[str, Any]:
    row = asdict(task)
    del row["setting"]  # the header says it for all tasks
    return row


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise EmatError(
            "damaged-file", f"line {number} of {path} is not a JSON object; write the file again with emat tasks freeze"
        )
    return value


def _task(row: dict[str, Any], setting: Setting) -> Task:
    ways = _numbers(row["ways"])
    shots = tuple(tuple(map(str, names)) for names in row["shots"])
    if not ways or len(shots) != len(ways) or not all(shots):
        raise ValueError(f"task {row['index']} has {len(ways)} ways but shots for {len(shots)}")
    return Task(
        int(row["index"]), str(row["query"]), int(row["query_class"]), ways, shots, setting, bool(row["augmented"])
    )


def _numbers(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(map(int, values))
