"""What examples are worth: the head alone, the learner alone, both, and two simple ways, on the same tasks.

    python benchmarks/own_photos.py nuclei/ steel/ --examples 1,5 --journal own-photos.jsonl
    python benchmarks/own_photos.py pascal/ --masks voc2012-masks.zip --list val/fold0.txt --list val/fold1.txt \\
        --head heads/emat-fold0.safetensors --head heads/emat-fold1.safetensors --examples 5 --tasks 1
    python benchmarks/own_photos.py nuclei/ steel/ --presence
    python benchmarks/own_photos.py pascal/ --masks voc2012-masks.zip --times

Each data set is anything that `emat fit` takes. For every class, `--tasks` times so many examples are drawn, and
`--queries` other photos of the class are asked about. mIoU: intersection and union are summed over a class, then
classes averaged; void pixels do not count.

- forest: scikit-learn's random forest on the classical features of the same pixels, the way of interactive tools;
- colour: the nearer of two mean colours, inside and outside the masks;
- forecast error: by how much the forecast IoU misses the mean IoU of the new photos, on average over tasks with at
  least ten new photos; bias: the mean of forecast less reached.

With `--presence`, three photos with the class and three without it are shown, the latter as examples of nothing, and as
many photos with and without it are asked about: the AUROC of the score, the share of right verdicts and the mIoU of the
photos with the class. With `--times`, `Segmenter.fit` and `Segmenter.predict` are timed with and without the learner,
on photos brought to 500 pixels.

A line is printed per task as it is done, and Markdown at the end. `--journal` keeps finished tasks, so that a stopped
run continues where it stopped; `--minutes` stops it.
"""

import argparse
import json
import math
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from emat.datasets.dataset import Dataset
from emat.datasets.layouts import open_dataset
from emat.images import VOID, resize_mask, resize_photo
from emat.inference.example import Example
from emat.inference.forecast import expected_iou
from emat.inference.segmenter import Segmenter
from emat.methods.base import Features, LabelledFeatures, TaskEvidence
from emat.methods.learner import LabelledPhoto, at_grid, train
from emat.methods.mixture import HEAD_ALONE, ONE_SHIFT, Mixture
from emat.methods.pixel_features import side_for
from emat.methods.trained_head import load_head
from emat.methods.with_learner import LearningMethod, parts_of

SHOWN_FOR_PRESENCE = 3  # photos with the class, and as many without it
LEARNER_ALONE = Mixture(0.0, 1.0, 0.0)
COLUMNS = ("head", "learner", "both", "forest", "colour")
ENOUGH_QUERIES = 10  # new photos from which their mean IoU is worth a forecast
KEPT_PHOTOS = 60  # features of so many photos stay in memory
TIMED_SIDE = 500  # pixels of the longest side
Answer = Callable[[Features, tuple[int, int]], Iterator[tuple[str, NDArray[np.bool_]]]]


@dataclass(frozen=True)
class Task:
    """Examples of one class, and photos to ask about."""

    dataset: str
    name: str  # of the class
    head: str
    examples: tuple[str, ...]
    queries: tuple[str, ...]

    @property
    def key(self) -> str:
        """The same for the same task."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass
class Verdicts:
    """What was said about photos with and without a class."""

    scores: list[tuple[float, float, bool]] = field(default_factory=list)  # with the learner, by the head alone, truth
    overlap: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2, np.int64))

    def auroc(self, column: int) -> float:
        """How often a photo with the class has a higher score than one without it; ties count half."""
        pairs = [(a[column], b[column]) for a in self.scores for b in self.scores if a[2] and not b[2]]
        return sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs)

    def row(self, threshold: float) -> dict[str, float]:
        """The figures of one class."""
        right = [(score >= threshold) == inside for score, _, inside in self.scores]
        iou = self.overlap[0] / max(self.overlap[1], 1)
        named = {"AUROC": self.auroc(0), "AUROC head": self.auroc(1), "right": sum(right) / len(right), "IoU": iou}
        return {key: round(float(value), 3) for key, value in named.items()}


class Bench:
    """Answers tasks of one data set by every way."""

    def __init__(self, dataset: Dataset, head: str, options: argparse.Namespace) -> None:
        loaded = load_head(head)
        self.head = replace(
            loaded, method=options.method or loaded.method, image_size=options.head_size or loaded.image_size
        )
        self.method = LearningMethod(self.head.build("cpu"), self.head.thresholds)
        self.dataset, self.options = dataset, options
        self.kept: OrderedDict[tuple[str, int], Features] = OrderedDict()

    def choose_side(self, names: Sequence[str], number: int) -> None:
        """See photos at the size that `fit` would choose for these examples, or at the one that was asked for."""
        masks = [self.dataset.mask(name) == number for name in names]
        self.method = self.method.at_side(self.options.size or side_for([masks]))

    def features(self, name: str) -> Features:
        """The features of a photo, kept for other tasks."""
        key = name, self.method.working_side
        if key not in self.kept:
            self.kept[key] = self.method.photo_features(self.dataset.image(name))
        self.kept.move_to_end(key)
        while len(self.kept) > KEPT_PHOTOS:
            self.kept.popitem(last=False)
        return self.kept[key]

    def shown(self, name: str, number: int) -> tuple[LabelledFeatures, Any]:
        """An example for the learner and for the head."""
        features, mask = self.features(name), _known(self.dataset.mask(name), number)
        known = torch.from_numpy(mask)
        signed = (known == 1).float() - (known == VOID).float() * self.method.takes_undecided
        support = self.method.encode_support(features, signed) if (mask == 1).any() else None
        return LabelledFeatures(features, known[None]), support

    @torch.no_grad()
    def presence(self, name: str, positives: Sequence[str], negatives: Sequence[str]) -> Verdicts:
        """Show three photos of each kind, and ask about the others."""
        number = 1 + list(self.dataset.classes).index(name)
        self.choose_side(positives[:SHOWN_FOR_PRESENCE], number)
        told = [] if self.options.no_negatives else negatives[:SHOWN_FOR_PRESENCE]
        examples = [self.shown(each, number) for each in [*positives[:SHOWN_FOR_PRESENCE], *told]]
        learnt = self.method.learn([known for known, _ in examples])
        supports = [support for _, support in examples if support is not None]
        verdicts = Verdicts()
        for inside, names in ((True, positives), (False, negatives)):
            for query in names[SHOWN_FOR_PRESENCE:]:
                known = _known(self.dataset.mask(query), number)
                encoding = self.method.encode_query(self.features(query))
                evidence = TaskEvidence([self.method.compare(encoding, supports)], (known.shape[0], known.shape[1]))
                applied = replace(evidence, learnt=self.method.apply_learnt(encoding, learnt))
                answer = self.method.decide(applied, self.head.thresholds)
                plain = self.method.inner.decide(evidence, self.head.thresholds)
                verdicts.scores.append((answer.certainty[0], plain.certainty[0], inside))
                if inside:
                    verdicts.overlap += _overlap(answer.label_map > 0, known)
        return verdicts

    @torch.no_grad()
    def task(self, task: Task) -> dict[str, Any]:
        """Answer one task.

        Returns:
            Intersection and union of each query by each column, the forecast and what it came from.
        """
        number = 1 + list(self.dataset.classes).index(task.name)
        self.choose_side(task.examples, number)
        shown = [self.shown(each, number) for each in task.examples]
        known, supports = [each for each, _ in shown], [support for _, support in shown]
        learnt = self.method.learn(known)
        simple = self._simple(known)
        counts: dict[str, list[list[int]]] = defaultdict(list)
        for query in task.queries:
            truth = _known(self.dataset.mask(query), number)
            size = (truth.shape[0], truth.shape[1])
            photo = self.features(query)
            encoding = self.method.encode_query(photo)
            evidence = [self.method.compare(encoding, supports)]
            applied = self.method.apply_learnt(encoding, learnt)
            mixtures = {"head": HEAD_ALONE, "learner": LEARNER_ALONE, "both": None} | self.options.mixtures
            for column, mixture in mixtures.items():
                used = applied
                if mixture is not None:
                    used = replace(applied, learnt=replace(learnt, mixtures=torch.tensor([tuple(mixture)])))
                answer = self.method.decide(TaskEvidence(evidence, size, used), self.head.thresholds)
                counts[column].append(_overlap(answer.label_map > 0, truth).tolist())
            for column, mask in simple(photo, size):
                counts[column].append(_overlap(mask, truth).tolist())
        left_out = [value for value in learnt.left_out_iou[:, 0].tolist() if not math.isnan(value)]
        return {
            "counts": counts,
            "left out": left_out,
            "forecast": expected_iou(left_out),
            "mixture": tuple(learnt.mixture(0)),
            "side": self.method.working_side,
        }

    def _simple(self, known: Sequence[LabelledFeatures]) -> Answer:
        """Forest and colour, as a function from a photo's features to masks."""
        photos = [LabelledPhoto(parts_of(each.features)[1], each.masks) for each in known]
        grids = [(photo.features.maps[0], at_grid(photo.masks, photo.features.grid)[0]) for photo in photos]
        values = torch.cat([maps.flatten(1).T for maps, _ in grids])
        labels = torch.cat([mask.flatten() for _, mask in grids])
        inside, outside = (values[labels == label][:, :3].mean(dim=0) for label in (1, 0))
        forest = None if self.options.no_forest else _forest(photos)

        def answer(features: Features, size: tuple[int, int]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
            maps = parts_of(features)[1].maps[0]
            colour = maps[:3].permute(1, 2, 0)
            nearer = (colour - outside).norm(dim=-1) - (colour - inside).norm(dim=-1)  # (h, w)
            yield "colour", _enlarged(nearer, size)
            if forest is not None:
                found = forest.predict_proba(maps.flatten(1).T.numpy())[:, -1].reshape(maps.shape[1:])
                yield "forest", _enlarged(torch.from_numpy(found).float() - 0.5, size)

        return answer


def _forest(photos: Sequence[LabelledPhoto]) -> Any:
    """A random forest on the very pixels that the learner sees."""
    from sklearn.ensemble import RandomForestClassifier

    samples = train(photos).samples
    picked = []
    for index, photo in enumerate(photos):
        points = samples.points[samples.photo == index]
        height, width = photo.features.grid
        rows = (points[:, 1] * height).long().clamp(max=height - 1)
        columns = (points[:, 0] * width).long().clamp(max=width - 1)
        picked.append(photo.features.maps[0][:, rows, columns].T)
    told = samples.labels[:, 0] != VOID
    forest = RandomForestClassifier(100, min_samples_leaf=2, random_state=0)
    return forest.fit(
        torch.cat(picked)[told].numpy(), samples.labels[told, 0].numpy(), sample_weight=samples.shares[told].numpy()
    )


def _known(label_map: NDArray[Any], number: int) -> NDArray[np.uint8]:
    """1 inside of the class, 255 where nothing is known, 0 elsewhere."""
    return np.where(label_map == VOID, VOID, label_map == number).astype(np.uint8)


def _enlarged(logits: torch.Tensor, size: tuple[int, int]) -> NDArray[np.bool_]:
    return (F.interpolate(logits[None, None], size, mode="bilinear", align_corners=False)[0, 0] >= 0).numpy()


def _overlap(found: NDArray[np.bool_], truth: NDArray[np.uint8]) -> NDArray[np.int64]:
    inside = truth == 1
    return np.array([(found & inside).sum(), ((found & (truth != VOID)) | inside).sum()], np.int64)


def photos_of(dataset: Dataset, lists: Sequence[Path], half: str | None = None) -> dict[str, list[str]]:
    """The photos of each class: of the lists of `name__class number`, else all that the data set has."""
    found: dict[str, list[str]] = defaultdict(list)
    if lists:
        for line in (line for path in lists for line in path.read_text().split()):
            name, number = line.rsplit("__", 1)
            found[dataset.classes[int(number) - 1]].append(name)
    else:
        for entry in dataset.entries:
            for index in entry.classes:
                found[dataset.classes[index - 1]].append(entry.name)
    if half is not None:
        found = {name: each[half == "odd" :: 2] for name, each in found.items()}
    return found


def tasks_of(root: Path, dataset: Dataset, options: argparse.Namespace) -> Iterator[Task]:
    """All tasks of a data set: first one of each class, then the next of each, so that a stopped run is balanced."""
    heads = options.head or ["default"]
    by_head = [(h, options.list[i : i + 1] if len(heads) > 1 else options.list) for i, h in enumerate(heads)]
    photos = {head: photos_of(dataset, lists, options.half) for head, lists in by_head}
    for count in (int(each) for each in options.examples.split(",")):
        for repeat in range(options.tasks):
            for head, classes in photos.items():
                for number, (name, names) in enumerate(classes.items()):
                    if len(names) <= count:
                        continue
                    order = np.random.RandomState(100 * number + repeat).permutation(len(names))
                    drawn = tuple(names[index] for index in order[: count + options.queries])
                    yield Task(root.name, name, Path(head).stem, drawn[:count], drawn[count:])


def masks(root: Path, options: argparse.Namespace, journal: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each number of examples: masks by every way."""
    dataset = open_dataset(root, masks=options.masks)
    heads = {Path(head).stem: head for head in options.head or ["default"]}
    bench: tuple[str, Bench] | None = None
    by_count: dict[int, list[tuple[Task, dict[str, Any]]]] = defaultdict(list)
    for task in tasks_of(root, dataset, options):
        if task.key not in journal:
            if time.monotonic() > options.until:
                continue
            if bench is None or bench[0] != task.head:
                bench = task.head, Bench(dataset, heads[task.head], options)
            journal[task.key] = done = bench[1].task(task)
            if options.journal:
                with options.journal.open("a") as file:
                    file.write(json.dumps({"task": task.key, **done}) + "\n")
            print(root.name, len(task.examples), task.name, _line([(task, done)]), flush=True)
        by_count[len(task.examples)].append((task, journal[task.key]))
    for count, found in by_count.items():
        yield {"set": root.name, "examples": count, "tasks": len(found)} | _line(found)


def _line(found: Sequence[tuple[Task, dict[str, Any]]]) -> dict[str, Any]:
    """The figures of some tasks."""
    line: dict[str, Any] = {}
    for column in (*COLUMNS, *sorted({name for _, done in found for name in done["counts"]} - {*COLUMNS})):
        sums: dict[str, NDArray[np.int64]] = defaultdict(lambda: np.zeros(2, np.int64))
        for task, done in found:
            if done["counts"].get(column):
                sums[task.name] += np.sum(done["counts"][column], axis=0)
        line[column] = round(float(np.mean([100 * i / max(u, 1) for i, u in sums.values()])), 1) if sums else None
    misses = [
        done["forecast"] - float(np.mean([i / max(u, 1) for i, u in done["counts"]["both"]]))
        for task, done in found
        if done["forecast"] is not None and len(task.queries) >= ENOUGH_QUERIES
    ]
    line["forecast error"] = round(float(np.abs(misses).mean()), 3) if misses else None
    line["bias"] = round(float(np.mean(misses)), 3) if misses else None
    return line


def presence(root: Path, options: argparse.Namespace, journal: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each class: whether it is there, where photos of the other classes are those without it."""
    dataset = open_dataset(root, masks=options.masks)
    bench = Bench(dataset, (options.head or ["default"])[0], options)
    photos = photos_of(dataset, options.list)
    for seed, (name, names) in enumerate(photos.items()):
        others = sorted({each for other in photos for each in photos[other] if each not in names})
        draw, most = np.random.RandomState(seed), SHOWN_FOR_PRESENCE + options.queries
        with_it, without = ([group[i] for i in draw.permutation(len(group))[:most]] for group in (names, others))
        row = bench.presence(name, with_it, without).row(bench.head.thresholds.presence)
        print(root.name, name, row, flush=True)
        yield {"set": root.name, "class": name} | row


def times(root: Path, options: argparse.Namespace, journal: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Seconds of the clock and of the processor for a fit and a prediction, with and without the learner."""
    dataset = open_dataset(root, masks=options.masks)
    name, names = next(iter(photos_of(dataset, options.list).items()))
    number = 1 + list(dataset.classes).index(name)
    for count in (int(each) for each in options.examples.split(",")):
        examples = []
        for each in names[:count]:
            photo, mask = dataset.image(each), _known(dataset.mask(each), number)
            scale = TIMED_SIDE / max(photo.shape)
            size = (round(photo.shape[0] * scale), round(photo.shape[1] * scale))
            examples.append(Example(resize_photo(photo, size), {name: resize_mask(mask, size)}))
        asked = resize_photo(dataset.image(names[count]), size)
        row: dict[str, Any] = {"set": root.name, "examples": count}
        for learn in (False, True):
            segmenter = Segmenter.load((options.head or ["default"])[0], device="cpu", learn=learn)
            segmenter.fit(examples[:1]).predict(asked)  # warm
            for what, act in (("fit", lambda: segmenter.fit(examples)), ("predict", lambda: segmenter.predict(asked))):  # noqa: B023
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
    parser.add_argument("--examples", default="1,3,5,10")
    parser.add_argument("--tasks", type=int, default=3, help="of each class")
    parser.add_argument("--queries", type=int, default=10, help="of each task")
    parser.add_argument("--presence", action="store_true", help="measure presence instead of masks")
    parser.add_argument("--no-negatives", action="store_true", help="with --presence: show none without the class")
    parser.add_argument("--times", action="store_true", help="measure seconds instead of masks")
    parser.add_argument("--head", action="append", help="one for all lists, or one for each --list")
    parser.add_argument("--method", help="another method that can use the head, such as emat-prior")
    parser.add_argument("--head-size", type=int, help="side of the square at which the head sees photos")
    parser.add_argument("--size", type=int, help="longest side at which the learner sees photos")
    parser.add_argument("--no-forest", action="store_true")
    parser.add_argument("--weights", help="columns in which the learner always has one of these weights: 0.1,1")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--journal", type=Path, help="finished tasks are appended here and not done again")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no task after so long")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.until = time.monotonic() + 60 * options.minutes
    weights = [float(each) for each in options.weights.split(",")] if options.weights else []
    options.mixtures = {f"weight {weight:g}": Mixture(1.0, weight, ONE_SHIFT) for weight in weights}
    journal: dict[str, Any] = {}
    if options.journal and options.journal.exists():
        journal = {row.pop("task"): row for row in map(json.loads, options.journal.read_text().splitlines())}
    measure = presence if options.presence else times if options.times else masks
    rows = [row for root in options.datasets for row in measure(root, options, journal)]
    if not rows:
        parser.exit(1, "no task was done\n")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join("" if value is None else str(value) for value in row.values()) + " |")


if __name__ == "__main__":
    main()
