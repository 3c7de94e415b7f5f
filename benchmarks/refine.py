"""How much refinement helps: unrefined, guided, MobileSAM and auto; mIoU, boundary F-score, seconds.

    python benchmarks/refine.py pascal --data PASCAL --masks MASKS.zip --lists splits --tasks 60 --cache DIR
    python benchmarks/refine.py folder --data NUCLEI --tasks 20 --cache DIR

PASCAL's tasks are 1-way 1-shot of the published protocol, spread evenly over each fold's list, with the heads of
`benchmarks/heads`, which never saw the fold's classes. A folder is a data set in VOC's layout, with the default head
and the learner.

What takes long is kept in --cache: the head's probability maps, MobileSAM's embeddings (as float16) and a journal of
the finished tasks. A run that was stopped, or that --minutes ended, continues where it was. A change of the rules of
refinement (`emat.refine.refiner.RULES`) begins a new journal, but keeps maps and embeddings.
"""

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from emat import Example, Segmenter
from emat.datasets.dataset import Dataset
from emat.datasets.layouts import open_dataset
from emat.evaluation.run import load_evaluated
from emat.images import Pixels
from emat.journal import Journal
from emat.methods.base import PAPER_THRESHOLDS, Features, Method, TaskEvidence
from emat.outputs import write_text
from emat.refine.mobilesam import EncodedPhoto, MobileSAM, load_mobilesam
from emat.refine.refiner import RULES, Refinement, can_draw, examples_suit, refine_maps
from emat.tasks.sampling import TaskSampler, load_split
from emat.tasks.task import Protocol

WAYS = ("unrefined", "guided", "mobilesam", "auto")
BOUNDARY_TOLERANCE = 0.0075  # of the photo's diagonal, as in the DAVIS benchmark
HEADS = "benchmarks/heads/emat-fold{fold}.safetensors"
SIZE = 384  # pixels; at which the figures of docs/results.md were measured
Mask = NDArray[np.bool_]
Map = NDArray[np.float32]


@dataclass(frozen=True)
class Task:
    """A query and the examples of one class, which the query need not show."""

    fold: int
    query: str
    class_id: int
    supports: tuple[str, ...]

    @property
    def title(self) -> str:
        """What its files are named after."""
        return "-".join((str(self.fold), self.query, str(self.class_id), *self.supports))


@dataclass(frozen=True)
class Measured:
    """What one way to refine made of one task."""

    task: str
    fold: int
    class_id: int
    way: str
    intersection: int
    union: int
    boundary: float
    seconds: float  # of processor time, without MobileSAM's encoder
    chosen: str  # what was done: "mobilesam", "guided" or "none"
    shown: bool  # whether the query shows the class


def pascal_tasks(lists: Path, split: str, folds: list[int], count: int, has_class: bool) -> list[Task]:
    """`count` tasks of each fold, spread evenly over its list."""
    tasks = []
    for listed in load_split(lists, "pascal", split, folds):
        entries = len(listed.entries)
        sampler = TaskSampler(listed, Protocol(query_has_class=has_class, tasks=entries))
        for number in range(min(count, entries)):
            drawn = sampler[number * entries // min(count, entries)]
            tasks.append(Task(listed.fold, drawn.query, drawn.ways[0], drawn.shots[0]))
    return tasks


def folder_tasks(dataset: Dataset, masks: Path, count: int, shots: int, seed: int) -> Iterator[Task]:
    """`count` tasks of a folder of masks; every class has its turn."""
    by_class: dict[int, list[str]] = defaultdict(list)
    for path in sorted(masks.glob("*.png")):
        for index in np.unique(dataset.mask(path.stem)):
            if 0 < index < 255:
                by_class[int(index)].append(path.stem)
    random = np.random.default_rng(seed)
    classes = sorted(index for index, names in by_class.items() if len(names) > shots)
    for number in range(count):
        index = classes[number % len(classes)]
        query, *supports = random.choice(by_class[index], 1 + shots, replace=False)
        yield Task(0, str(query), index, tuple(map(str, supports)))


class HeadMaps:
    """Probability maps of the fold's head with the prior, as `emat eval` has them."""

    name, threshold = f"emat-prior-{SIZE}", PAPER_THRESHOLDS.mask

    def __init__(self, dataset: Dataset, heads: str) -> None:
        self._dataset = dataset
        self._method = cache(
            lambda fold: load_evaluated(heads.format(fold=fold), "emat-prior", image_size=SIZE, device="cpu").method
        )

    @staticmethod
    def _features(method: Method, read: Callable[[], Pixels]) -> Features:
        return method.photo_features(read())

    @torch.no_grad()
    def __call__(self, task: Task, photo: Pixels) -> Map:
        method = self._method(task.fold)
        query = method.encode_query(method.photo_features(photo))
        shots = []
        for name in task.supports:
            shown = torch.from_numpy(self._dataset.mask(name) == task.class_id).float()
            read = partial(self._dataset.image, name)
            support = method.encode_example(shown, read, partial(self._features, method, read))
            shots += method.compare(query, [support])
        size = photo.shape[0], photo.shape[1]
        return method.decide(TaskEvidence([shots], size), PAPER_THRESHOLDS).probabilities[0]


class SegmenterMaps:
    """Probability maps of the default head with the learner, as a user has them."""

    name = "default-learner"

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._segmenter = Segmenter.load("default", device="cpu")
        self.threshold = self._segmenter.thresholds.mask

    def __call__(self, task: Task, photo: Pixels) -> Map:
        masks = {name: self._dataset.mask(name) == task.class_id for name in task.supports}
        self._segmenter.fit([Example(self._dataset.image(name), {"it": mask}) for name, mask in masks.items()])
        return self._segmenter.predict(photo).maps["it"]


class Kept:
    """Maps and embeddings in files, made when they are first asked for."""

    def __init__(self, folder: Path, dataset: Dataset, maps: HeadMaps | SegmenterMaps, sam: MobileSAM) -> None:
        self.folder, self.maps, self.sam = folder, maps, sam
        self.dataset = dataset
        self.encoder_seconds: list[float] = []

    def map(self, task: Task) -> Map:
        """(H, W), as precise as float16."""
        path = self.folder / self.maps.name / f"{task.title}.npy"
        made = lambda: self.maps(task, self.dataset.image(task.query))  # noqa: E731
        return self._array(path, made).astype(np.float32)

    def encoded(self, name: str) -> EncodedPhoto:
        """MobileSAM's encoding of a photo."""
        photo = self.dataset.image(name)
        embedding = self._array(self.folder / "mobilesam" / f"{name}.npy", lambda: self._encode(photo))
        return EncodedPhoto(torch.from_numpy(embedding).float(), (photo.shape[0], photo.shape[1]))

    def suits(self, name: str, class_id: int) -> bool:
        """Whether auto refines a class, by one example of it."""
        photo, mask = self.dataset.image(name), self.dataset.mask(name) == class_id
        return examples_suit([mask]) and can_draw(self.sam, photo, mask, self.encoded(name))

    def _encode(self, photo: Pixels) -> NDArray[np.float32]:
        started = time.process_time()
        encoded = self.sam.encode(photo).embedding.numpy()
        self.encoder_seconds.append(time.process_time() - started)
        return encoded

    def _array(self, path: Path, make: Callable[[], NDArray[np.float32]]) -> NDArray[np.float16]:
        if not path.is_file():
            made = make().astype(np.float16)
            path.parent.mkdir(parents=True, exist_ok=True)
            arrived = path.with_suffix(".part.npy")
            np.save(arrived, made)
            arrived.replace(path)
        return cast("NDArray[np.float16]", np.load(path))


def measure(task: Task, kept: Kept) -> Iterator[Measured]:
    """All ways to refine one task."""
    photo, map_, threshold = kept.dataset.image(task.query), kept.map(task), kept.maps.threshold
    truth = kept.dataset.mask(task.query) == task.class_id
    suited = sum(kept.suits(name, task.class_id) for name in task.supports) > len(task.supports) / 2
    encode = cache(lambda: kept.encoded(task.query))
    if (map_ >= threshold).any():
        encode()  # not to be counted as time of the first way that asks
    for way in WAYS:
        started = time.process_time()
        refined, chosen = map_, "none"
        if way != "unrefined":
            asked = cast("Refinement", "guided" if way == "auto" and not suited else way)
            found = refine_maps(photo, {"it": map_}, threshold, asked, kept.sam, encode)
            refined, chosen = found.maps["it"], found.ways["it"]
        seconds, mask = time.process_time() - started, refined >= threshold
        both, either = int((mask & truth).sum()), int((mask | truth).sum())
        boundary = boundary_f_score(mask, truth)
        yield Measured(
            task.title, task.fold, task.class_id, way, both, either, boundary, seconds, chosen, bool(truth.any())
        )


def boundary_f_score(mask: Mask, truth: Mask) -> float:
    """How much of either outline lies within the tolerance of the other; 1 if both are empty."""
    reach = max(1.0, BOUNDARY_TOLERANCE * float(np.hypot(*mask.shape)))
    outlines = [one & ~ndimage.binary_erosion(one, border_value=1) for one in (mask, truth)]
    if not (outlines[0].any() and outlines[1].any()):
        return float(outlines[0].any() == outlines[1].any())
    near = [ndimage.distance_transform_edt(~outline) <= reach for outline in outlines]
    precision, recall = near[1][outlines[0]].mean(), near[0][outlines[1]].mean()
    return float(2 * precision * recall / max(precision + recall, 1e-9))


def summary(records: list[Measured]) -> dict[str, Any]:
    """mIoU as the paper has it (sums by class, mean over a fold's classes, then over folds), and the rest."""
    sums: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for one in records:
        sums[one.fold, one.class_id][0] += one.intersection
        sums[one.fold, one.class_id][1] += one.union
    folds: dict[int, list[float]] = defaultdict(list)
    for (fold, _), (both, either) in sums.items():
        folds[fold].append(100 * both / max(either, 1))
    shown = [one for one in records if one.shown]
    absent = [one for one in records if not one.shown]
    return {
        "tasks": len(records),
        "miou": round(float(np.mean([np.mean(values) for values in folds.values()])), 1),
        "by_fold": {fold: round(float(np.mean(values)), 1) for fold, values in sorted(folds.items())},
        "task_iou": round(100 * float(np.mean([one.intersection / max(one.union, 1) for one in shown])), 1),
        "boundary_f": round(100 * float(np.mean([one.boundary for one in shown])), 1),
        **({"false_masks": round(100 * float(np.mean([one.union > 0 for one in absent])), 1)} if absent else {}),
        "seconds": round(float(np.median([one.seconds for one in records])), 3),
        "chosen": dict(Counter(one.chosen for one in records)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("pascal", "folder"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--masks", type=Path, help="PASCAL's masks, if they are elsewhere")
    parser.add_argument("--lists", type=Path, help="fold lists of PASCAL")
    parser.add_argument("--split", default="val", choices=("train", "val"))
    parser.add_argument("--folds", default="0,1,2,3")
    parser.add_argument("--heads", default=HEADS)
    parser.add_argument("--original", action="store_true", help="queries may lack the class, as in the paper")
    parser.add_argument("--tasks", type=int, default=15, help="of each fold, or of the folder")
    parser.add_argument("--shots", type=int, default=1, help="of a folder's tasks")
    parser.add_argument("--seed", type=int, default=0, help="of a folder's tasks; rules were chosen with seed 1")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--weights", type=Path, help="mobile_sam.pt; default: emat's home folder or a download")
    parser.add_argument("--minutes", type=float, default=1e9, help="after which no task is begun")
    given = parser.parse_args()
    dataset = open_dataset(given.data, "pascal", given.masks)
    folder = given.cache / given.data.name
    maps: HeadMaps | SegmenterMaps
    if given.kind == "pascal":
        folds = [int(fold) for fold in given.folds.split(",")]
        tasks = pascal_tasks(given.lists, given.split, folds, given.tasks, not given.original)
        maps = HeadMaps(dataset, given.heads)
    else:
        tasks = list(folder_tasks(dataset, given.data / "SegmentationClass", given.tasks, given.shots, given.seed))
        maps = SegmenterMaps(dataset)
    kept = Kept(folder, dataset, maps, load_mobilesam(given.weights))
    journal = Journal(folder / "results.journal", {"rules": RULES})
    done: dict[str, list[Measured]] = defaultdict(list)
    for record in journal.records():
        done[record["task"]].append(Measured(**record))
    finished = time.monotonic() + 60 * given.minutes
    # Folds take turns, so that a run that is ended early has tasks of all of them.
    for task in sorted(tasks, key=[*tasks].index if given.kind == "folder" else _turn(tasks)):
        if len(done[task.title]) < len(WAYS) and time.monotonic() < finished:
            done[task.title] = list(measure(task, kept))
            for one in done[task.title]:
                journal.add(asdict(one))
    journal.leave()
    records = [one for task in dict.fromkeys(tasks) for one in done[task.title]]
    lines = [{"refine": way, **summary([one for one in records if one.way == way])} for way in WAYS]
    text = "\n".join(json.dumps(line) for line in lines) + "\n"
    write_text(folder / f"{given.kind}-{given.split}{'-original' if given.original else ''}.txt", text)
    if kept.encoder_seconds:
        print(f"MobileSAM's encoder: {np.median(kept.encoder_seconds):.2f} s of processor time a photo")
    print(text, end="")


def _turn(tasks: list[Task]) -> Callable[[Task], int]:
    """The number of a task within its fold, in an order that begins all over the list."""
    numbers: dict[Task, int] = {}
    counts: Counter[int] = Counter()
    for task in tasks:
        numbers.setdefault(task, counts[task.fold])
        counts[task.fold] += 1
    return lambda task: (numbers[task] * 37) % max(counts[task.fold], 1)


if __name__ == "__main__":
    main()
