"""What a user's examples are worth, measured through `Segmenter`, the way of every user.

    python benchmarks/own_photos.py nuclei/ steel/ --examples 1,5
    python benchmarks/own_photos.py steel/ --joint 3
    python benchmarks/own_photos.py steel/ nuclei/ --negatives 0,2,4,8
    python benchmarks/own_photos.py pascal/ --masks voc2012-masks.zip --list val/fold0.txt --list val/fold1.txt \\
        --head heads/emat-fold0.safetensors --head heads/emat-fold1.safetensors --examples 5 --joint 2
    python benchmarks/own_photos.py pascal/ --masks voc2012-masks.zip --times --examples 5

Each data set is anything that `emat fit` takes. A task draws `--examples` photos of each of its classes, and asks about
`--queries` other photos of each class; `--seed` draws others. The columns:

- mIoU: intersection and union are summed over the photos of a class, then classes averaged; void pixels do not count.
  The interval holds 95 % of the means when tasks are drawn again (bootstrap).
- unrefined: the same without the last step of the pipeline; head alone: without the learner (`--head-alone`).
- missed: the share of photos with the class on which it is called absent; false alarms: the share of photos without
  the class on which it is called present; AUROC: of the scores.
- forecast error and bias: forecast IoU less the mean IoU of the new photos, absolute and signed, averaged.

With `--joint`, tasks have so many classes, which are fitted together and, for comparison, one at a time on the same
photos; ratio is the first mIoU over the second, worst ratio that of the class that suffers most. With `--negatives`, so
many photos without the class are shown beside the examples, and as many photos without it as with it are asked about.
With `--times`, fit and predict are timed on photos brought to 500 pixels.

A line is printed per task as it is done, and Markdown at the end. `--journal` keeps finished tasks, so that a stopped
run continues where it stopped; `--minutes` stops it.
"""

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from emat.datasets.dataset import Dataset
from emat.datasets.layouts import open_dataset
from emat.images import VOID, resize_mask, resize_photo
from emat.inference.decisions import iou
from emat.inference.example import Example
from emat.inference.segmenter import Segmenter
from emat.pixel_learner import photo_threshold

TIMED_SIDE = 500  # pixels of the longest side
DRAWN_AGAIN = 1000  # times, for an interval


@dataclass(frozen=True)
class Task:
    """Classes that are fitted together, the photos that are shown, and those that are asked about."""

    dataset: str
    head: str
    seed: int
    shots: int
    classes: tuple[str, ...]
    examples: tuple[str, ...]
    negatives: tuple[str, ...]  # shown
    queries: tuple[str, ...]

    @property
    def key(self) -> str:
        """The same for the same task."""
        return json.dumps(asdict(self), sort_keys=True)


class Bench:
    """Does the tasks of one data set."""

    def __init__(self, dataset: Dataset, options: argparse.Namespace) -> None:
        self.dataset, self.options = dataset, options
        self.numbers = {name: number for number, name in enumerate(dataset.classes, start=1)}
        self.loaded: dict[tuple[str, bool], Segmenter] = {}

    def segmenter(self, head: str, learn: bool = True) -> Segmenter:
        """A segmenter of a head, without examples."""
        if (head, learn) not in self.loaded:
            size, refine = self.options.size, None if self.options.refine == "none" else self.options.refine
            self.loaded = {(head, learn): Segmenter.load(head, device="cpu", learn=learn, size=size, refine=refine)}
        return self.loaded[head, learn].copy(examples=False)

    def truth(self, photo: str, name: str) -> NDArray[np.uint8]:
        """1 inside of the class, 255 where nothing is known, 0 elsewhere."""
        labels = self.dataset.mask(photo)
        return np.where(labels == VOID, VOID, labels == self.numbers[name]).astype(np.uint8)

    def example(self, photo: str, classes: Iterable[str]) -> Example:
        """What a user shows of a photo: the masks of these classes."""
        known = {name: self.truth(photo, name) for name in classes}
        masks = {name: mask == 1 for name, mask in known.items() if (mask == 1).any()}
        void = next(iter(known.values())) == VOID
        return Example(self.dataset.image(photo), masks, name=photo, void=void if void.any() else None)

    def task(self, task: Task, head: str) -> dict[str, Any]:
        """Fit the classes together and, if they are several, one at a time.

        Returns:
            For each class what was found "together" and "alone".
        """
        found: dict[str, Any] = {name: {} for name in task.classes}
        ways = [("together", task.classes)]
        if len(task.classes) > 1 and not self.options.no_alone:
            ways += [("alone", (name,)) for name in task.classes]
        for way, classes in ways:
            shown = [each for each in task.examples if way == "together" or (self.truth(each, classes[0]) == 1).any()]
            segmenter = self.segmenter(head)
            clock, processor = time.perf_counter(), time.process_time()
            segmenter.fit([self.example(each, classes) for each in (*shown, *task.negatives)])
            spent = {"fit s": time.perf_counter() - clock, "fit processor s": time.process_time() - processor}
            for name, answer in self._asked(segmenter, task, classes).items():
                found[name][way] = answer | spent
        if self.options.head_alone:
            plain = self.segmenter(head, learn=False)
            plain.fit([self.example(each, task.classes) for each in task.examples])
            for name, answer in self._asked(plain, task, task.classes).items():
                found[name]["head alone"] = answer
        return found

    def _asked(self, segmenter: Segmenter, task: Task, classes: Sequence[str]) -> dict[str, Any]:
        answers: dict[str, Any] = {
            name: {"counts": [], "unrefined": [], "iou": [], "scores": [], "present": [], "there": []}
            for name in classes
        }
        for query in task.queries:
            before = segmenter.predict_unrefined(self.dataset.image(query))
            after = before.refined()
            for name, answer in answers.items():
                truth = self.truth(query, name)
                answer["there"].append(bool((truth == 1).any()))
                answer["scores"].append(after.scores[name])
                answer["present"].append(name in after.present)
                answer["counts"].append(_overlap(after.mask(name), truth))
                answer["unrefined"].append(_overlap(before.mask(name), truth))
                if answer["there"][-1]:
                    answer["iou"].append(iou(after.mask(name), truth))
        forecast = segmenter.forecast_
        for name, answer in answers.items():
            one = forecast.get(name)
            answer["forecast"] = None if one is None else one.iou
            answer["presence forecast"] = None if one is None else getattr(one, "auroc", one.presence)
            answer["accused"] = one is not None and one.least_agreeing is not None
            answer["refine"] = segmenter.decisions_.classes[name].refine
        return answers


def _overlap(found: NDArray[np.bool_], truth: NDArray[np.uint8]) -> list[int]:
    inside = truth == 1
    return [int((found & inside).sum()), int(((found & (truth != VOID)) | inside).sum())]


def photos_of(dataset: Dataset, lists: Sequence[Path], half: str | None = None) -> dict[str, list[str]]:
    """The photos of each class: of the lists of `name__class number`, else all that the data set has."""
    found: dict[str, list[str]] = defaultdict(list)
    if lists:
        for line in (line for path in lists for line in path.read_text().split()):
            name, number = line.rsplit("__", 1)
            found[dataset.classes[int(number) - 1]].append(name)
    else:
        for name, classes in dataset.class_areas().of(dataset.names):
            for index in classes:
                found[dataset.classes[index - 1]].append(name)
    if half is not None:
        found = {name: each[half == "odd" :: 2] for name, each in found.items()}
    return found


def tasks_of(root: Path, dataset: Dataset, options: argparse.Namespace) -> Iterator[tuple[Task, str]]:
    """All tasks of a data set with their heads, task by task through all classes, so that a stopped run is balanced."""
    heads = options.head or ["default"]
    by_head = [(h, options.list[i : i + 1] if len(heads) > 1 else options.list) for i, h in enumerate(heads)]
    photos = {head: photos_of(dataset, lists, options.half) for head, lists in by_head}
    for shots in (int(each) for each in options.examples.split(",")):
        for repeat in range(options.tasks):
            for head, by_class in photos.items():
                enough = [name for name, names in by_class.items() if len(names) > shots]
                draw = np.random.RandomState(1000 * options.seed + repeat)
                for classes in _groups(enough, options.joint, draw):
                    for negatives in (int(each) for each in options.negatives.split(",")):
                        task = _task(root.name, head, repeat, shots, classes, negatives, by_class, options)
                        if task is not None:
                            yield task, head


def _groups(names: Sequence[str], size: int, draw: np.random.RandomState) -> list[tuple[str, ...]]:
    """The classes, one at a time or in random groups."""
    if size <= 1:
        return [(name,) for name in names]
    order = [names[index] for index in draw.permutation(len(names))]
    return [tuple(order[first : first + size]) for first in range(0, len(order) - size + 1, size)]


def _task(
    root: str,
    head: str,
    repeat: int,
    shots: int,
    classes: tuple[str, ...],
    negatives: int,
    photos: dict[str, list[str]],
    options: argparse.Namespace,
) -> Task | None:
    """Draw the photos of a task: the same examples and queries for any number of negatives."""
    examples: list[str] = []
    queries: list[str] = []
    for number, name in enumerate(photos):
        if name not in classes:
            continue
        draw = np.random.RandomState(10_000 * options.seed + 100 * number + repeat)
        names = [photos[name][index] for index in draw.permutation(len(photos[name]))]
        names = [each for each in names if each not in (*examples, *queries)]
        examples += names[:shots]
        queries += names[shots : shots + options.queries]
    without: list[str] = []
    if options.negatives != "0":
        shown = {each for name in classes for each in photos[name]}
        others = sorted({each for names in photos.values() for each in names} - shown)
        draw = np.random.RandomState(10_000 * options.seed + repeat)
        without = [others[index] for index in draw.permutation(len(others))]
        queries += without[: options.queries]
        without = without[options.queries :]
        if len(without) < negatives:
            return None
    return Task(
        root, Path(head).stem, repeat, shots, classes, tuple(examples), tuple(without[:negatives]), tuple(queries)
    )


def measured(root: Path, options: argparse.Namespace, journal: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each number of examples and negatives."""
    dataset = open_dataset(root, masks=options.masks)
    bench = Bench(dataset, options)
    rows: dict[tuple[int, int], list[tuple[Task, dict[str, Any]]]] = defaultdict(list)
    for task, head in tasks_of(root, dataset, options):
        if task.key not in journal:
            if time.monotonic() > options.until:
                continue
            journal[task.key] = done = bench.task(task, head)
            if options.journal:
                with options.journal.open("a") as file:
                    file.write(json.dumps({"task": task.key, "found": done}) + "\n")
            print(root.name, task.shots, len(task.negatives), task.classes, _line([(task, done)]), flush=True)
        rows[task.shots, len(task.negatives)].append((task, journal[task.key]))
    for (shots, negatives), found in rows.items():
        start: dict[str, Any] = {"set": root.name, "examples": shots}
        if options.negatives != "0":
            start["negatives"] = negatives
        yield start | {"tasks": len(found)} | _line(found, intervals=True)


def _line(found: Sequence[tuple[Task, dict[str, Any]]], intervals: bool = False) -> dict[str, Any]:
    """The figures of some tasks."""
    ways = {way for _, done in found for answers in done.values() for way in answers}
    line: dict[str, Any] = {"mIoU": _percent(_miou(found, "together"))}
    if intervals:
        draw = np.random.RandomState(0)
        again = [
            _miou([found[index] for index in draw.randint(len(found), size=len(found))], "together")
            for _ in range(DRAWN_AGAIN)
        ]
        line["interval"] = " to ".join(str(_percent(np.percentile(again, each))) for each in (2.5, 97.5))
    line["unrefined"] = _percent(_miou(found, "together", "unrefined"))
    if "head alone" in ways:
        line["head alone"] = _percent(_miou(found, "head alone"))
    answers = [answer["together"] for _, done in found for answer in done.values()]
    if "alone" in ways:
        together, alone = (_by_class(found, way) for way in ("together", "alone"))
        line["one at a time"] = _percent(float(np.mean(list(alone.values()))))
        line["ratio"] = round(float(np.mean(list(together.values())) / np.mean(list(alone.values()))), 3)
        line["worst ratio"] = round(min(together[name] / max(alone[name], 1e-6) for name in alone), 2)
        answers += [answer["alone"] for _, done in found for answer in done.values()]
    verdicts = [
        (score, present, there)
        for _, done in found
        for each in done.values()
        for score, present, there in zip(
            *(each["together"][key] for key in ("scores", "present", "there")), strict=True
        )
    ]
    line["missed"] = _share([not present for _, present, there in verdicts if there])
    if not all(there for *_, there in verdicts):
        line["false alarms"] = _share([present for _, present, there in verdicts if not there])
        line["AUROC"] = round(float(np.mean([auroc for answer in answers if (auroc := _auroc(answer)) is not None])), 3)
    misses = [each["forecast"] - float(np.mean(each["iou"])) for each in answers if each["forecast"] is not None]
    line["forecast error"] = round(float(np.abs(misses).mean()), 3) if misses else None
    line["bias"] = round(float(np.mean(misses)), 3) if misses else None
    promised = [
        (each["presence forecast"], auroc)
        for each in answers
        if each["presence forecast"] is not None and (auroc := _auroc(each)) is not None
    ]
    if promised:
        line["AUROC forecast error"] = round(float(np.mean([abs(a - b) for a, b in promised])), 3)
    line["accused"] = _share([each["accused"] for each in answers])
    line["fit, processor s"] = round(float(np.mean([each.get("fit processor s", 0) for each in answers])), 2)
    return line


def _by_class(
    found: Sequence[tuple[Task, dict[str, Any]]], way: str, counts: str = "counts"
) -> dict[tuple[str, str], float]:
    """The IoU of each class over the photos that show it."""
    sums: dict[tuple[str, str], NDArray[np.int64]] = defaultdict(lambda: np.zeros(2, np.int64))
    for task, done in found:
        for name, answers in done.items():
            for both, there in zip(answers[way][counts], answers[way]["there"], strict=True):
                sums[task.dataset, name] += np.array(both) * there
    return {name: float(inside / max(union, 1)) for name, (inside, union) in sums.items()}


def _miou(found: Sequence[tuple[Task, dict[str, Any]]], way: str, counts: str = "counts") -> float:
    return float(np.mean(list(_by_class(found, way, counts).values())))


def _auroc(answer: dict[str, Any]) -> float | None:
    """How often a photo with the class has a higher score than one without it; ties count half."""
    both = list(zip(answer["scores"], answer["there"], strict=True))
    pairs = [(a, b) for a, there in both if there for b, also in both if not also]
    return sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs) if pairs else None


def _percent(share: float) -> float:
    return round(100 * float(share), 1)


def _share(verdicts: Sequence[bool]) -> float | None:
    return round(sum(verdicts) / len(verdicts), 3) if verdicts else None


def flipped(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A photo or mask, mirrored from left to right."""
    return np.ascontiguousarray(image[:, ::-1])


def times(root: Path, options: argparse.Namespace, journal: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Seconds of the clock and of the processor for a fit and a prediction, with and without the learner."""
    dataset = open_dataset(root, masks=options.masks)
    bench = Bench(dataset, options)
    name, names = next(iter(photos_of(dataset, options.list).items()))
    for count in (int(each) for each in options.examples.split(",")):
        examples = []
        for each in names[:count]:
            photo, mask = dataset.image(each), bench.truth(each, name)
            scale = TIMED_SIDE / max(photo.shape)
            size = (round(photo.shape[0] * scale), round(photo.shape[1] * scale))
            shown, mask = resize_photo(photo, size), resize_mask(mask, size)
            examples.append(Example(shown, {name: mask}))
        asked = resize_photo(dataset.image(names[count]), size)
        row: dict[str, Any] = {"set": root.name, "examples": count}
        for learn in (False, True):
            segmenter = bench.segmenter((options.head or ["default"])[0], learn)
            # Warmed up with mirrored photos, since MobileSAM's encodings of the last photos are kept.
            segmenter.fit([Example(flipped(shown), {name: flipped(mask)})]).predict(flipped(asked))
            acts: dict[str, Callable[[], object]] = {
                "fit": partial(segmenter.fit, examples),
                "predict": partial(segmenter.predict, asked),
                "predict unrefined": partial(segmenter.predict_unrefined, asked),
            }
            for what, act in acts.items():
                clock, processor = time.perf_counter(), time.process_time()
                act()
                kind = "" if learn else " by the head alone"
                row[f"{what}{kind} s"] = round(time.perf_counter() - clock, 2)
                row[f"{what}{kind}, processor s"] = round(time.process_time() - processor, 2)
        yield row


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", type=Path)
    parser.add_argument("--masks", type=Path, help="a folder or zip of VOC masks that are not with the photos")
    parser.add_argument("--list", type=Path, action="append", default=[], help="photos of a class: name__class number")
    parser.add_argument("--half", choices=["even", "odd"], help="only every second photo of a class")
    parser.add_argument("--examples", default="1,5", help="of each class")
    parser.add_argument("--tasks", type=int, default=2, help="of each class, or through all classes with --joint")
    parser.add_argument("--queries", type=int, default=10, help="of each class")
    parser.add_argument("--joint", type=int, default=1, metavar="CLASSES", help="fit so many classes together")
    parser.add_argument("--no-alone", action="store_true", help="with --joint: do not fit them one at a time as well")
    parser.add_argument("--negatives", default="0", help="photos without the class that are shown: 0,2,4,8")
    parser.add_argument("--head-alone", action="store_true", help="also without the learner")
    parser.add_argument("--times", action="store_true", help="measure seconds instead of masks")
    parser.add_argument("--head", action="append", help="one for all lists, or one for each --list")
    parser.add_argument("--size", type=int, help="longest side at which the learner sees photos")
    parser.add_argument("--one-threshold", action="store_true", help="the same for all photos, for comparison")
    parser.add_argument("--refine", choices=["auto", "mobilesam", "guided", "none"], default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--journal", type=Path, help="finished tasks are appended here and not done again")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no task after so long")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one_threshold:
        photo_threshold.FEWEST_PHOTOS = sys.maxsize  # no photo is enough for a threshold of its own
    options.until = time.monotonic() + 60 * options.minutes
    journal: dict[str, Any] = {}
    if options.journal and options.journal.exists():
        journal = {row["task"]: row["found"] for row in map(json.loads, options.journal.read_text().splitlines())}
    measure = times if options.times else measured
    rows = [row for root in options.datasets for row in measure(root, options, journal)]
    if not rows:
        parser.exit(1, "no task was done\n")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    columns = list(dict.fromkeys(column for row in rows for column in row))
    print("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join("" if (value := row.get(column)) is None else str(value) for column in columns) + " |")


if __name__ == "__main__":
    main()
