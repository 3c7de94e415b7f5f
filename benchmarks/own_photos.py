"""What examples are worth: the head alone, the learner alone, both, and two simple ways, on the same tasks.

    python benchmarks/own_photos.py nuclei/ steel/ --examples 1,5 --tasks 4 --json own-photos.json
    python benchmarks/own_photos.py pascal/ --list val/fold0.txt --head heads/emat-fold0.safetensors --examples 5
    python benchmarks/own_photos.py nuclei/ steel/ --presence

Each data set is anything that `emat fit` takes. For every class, `--tasks` times so many examples are drawn, and
`--queries` other photos of the class are asked about. mIoU: intersection and union are summed over a class, then
classes averaged.

- forest: scikit-learn's random forest on the classical features of the same pixels, the way of interactive tools;
- colour: the nearer of two mean colours, inside and outside the masks;
- forecast error: by how much the forecast IoU misses the mean IoU of the photos, on average over tasks;
- fit s, predict s: processor seconds, photos read and encoded included; head s: of a prediction by the head alone.

With `--presence`, three photos with the class and three without it are shown, the latter as examples of nothing, and as
many photos with and without it are asked about: the AUROC of the score, the share of right verdicts and the mIoU of the
photos with the class.

A line is printed per class as it is done, and Markdown at the end.
"""

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from emat.datasets.dataset import Dataset
from emat.datasets.layouts import open_dataset
from emat.images import VOID, Pixels
from emat.inference.forecast import expected_iou
from emat.methods.base import Features, LabelledFeatures, TaskEvidence
from emat.methods.learner import LabelledPhoto, at_grid, train
from emat.methods.mixture import HEAD_ALONE, Mixture
from emat.methods.trained_head import load_head
from emat.methods.with_learner import LearningMethod, parts_of

SHOWN_FOR_PRESENCE = 3  # photos with the class, and as many without it
LEARNER_ALONE = Mixture(0.0, 1.0, 0.0)
COLUMNS = ("head", "learner", "both", "forest", "colour")


@dataclass
class Sums:
    """What was counted for one data set and number of examples."""

    overlap: dict[tuple[str, str], NDArray[np.int64]] = field(
        default_factory=lambda: defaultdict(lambda: np.zeros(2, np.int64))
    )  # (column, class): intersection and union
    misses: list[float] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def miou(self, column: str) -> float:
        """In per cent, over classes."""
        found = [100 * i / max(u, 1) for (name, _), (i, u) in self.overlap.items() if name == column]
        return float(np.mean(found)) if found else float("nan")


def photos_of(dataset: Dataset, lists: Sequence[Path]) -> dict[str, list[str]]:
    """The photos of each class: of the lists of `name__class number`, else all that the data set has."""
    found: dict[str, list[str]] = defaultdict(list)
    if lists:
        for line in (line for path in lists for line in path.read_text().split()):
            name, number = line.rsplit("__", 1)
            found[dataset.classes[int(number) - 1]].append(name)
        return found
    for entry in dataset.entries:
        for index in entry.classes:
            found[dataset.classes[index - 1]].append(entry.name)
    return found


@dataclass(frozen=True)
class Draw:
    """How many tasks of each class, and of how many photos."""

    examples: int
    tasks: int
    queries: int

    def of(self, names: Sequence[str], seed: int) -> Iterator[tuple[list[str], list[str]]]:
        """Examples and queries of each task."""
        draw = np.random.RandomState(seed)
        for _ in range(self.tasks):
            order = [names[index] for index in draw.permutation(len(names))[: self.examples + self.queries]]
            yield order[: self.examples], order[self.examples :]


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
    """Answers tasks by every way."""

    def __init__(self, head: str, forest: bool = False, negatives: bool = True) -> None:
        self.head, self.forest, self.negatives = load_head(head), forest, negatives
        self.method = LearningMethod(self.head.build("cpu"), self.head.thresholds)

    def shown(self, photo: Pixels, mask: NDArray[np.uint8]) -> tuple[LabelledFeatures, Any]:
        """An example for the learner and for the head; its mask is 1 inside and 255 where nothing is known."""
        features = self.method.photo_features(photo)
        known = torch.from_numpy(mask)
        support = self.method.encode_support(features, (known == 1).float()) if (mask == 1).any() else None
        return LabelledFeatures(features, known[None]), support

    @torch.no_grad()
    def presence(self, dataset: Dataset, name: str, positives: Sequence[str], negatives: Sequence[str]) -> Verdicts:
        """Show three photos of each kind, and ask about the others."""
        number = 1 + list(dataset.classes).index(name)
        first = [*positives[:SHOWN_FOR_PRESENCE], *(negatives[:SHOWN_FOR_PRESENCE] if self.negatives else [])]
        examples = [self.shown(dataset.image(each), _known(dataset.mask(each), number)) for each in first]
        learnt = self.method.learn([known for known, _ in examples])
        supports = [support for _, support in examples if support is not None]
        verdicts = Verdicts()
        for inside, names in ((True, positives), (False, negatives)):
            for query in names[SHOWN_FOR_PRESENCE:]:
                truth = dataset.mask(query) == number
                encoding = self.method.encode_query(self.method.photo_features(dataset.image(query)))
                evidence = [self.method.compare(encoding, supports)]
                applied = self.method.apply_learnt(encoding, learnt)
                answer = self.method.decide(TaskEvidence(evidence, truth.shape, applied), self.head.thresholds)
                plain = self.method.inner.decide(TaskEvidence(evidence, truth.shape), self.head.thresholds)
                verdicts.scores.append((answer.certainty[0], plain.certainty[0], inside))
                if inside:
                    verdicts.overlap += _overlap(answer.label_map > 0, truth)
        return verdicts

    @torch.no_grad()
    def task(self, dataset: Dataset, name: str, examples: Sequence[str], queries: Sequence[str], sums: Sums) -> None:
        """Count one task."""
        number = 1 + list(dataset.classes).index(name)
        start = time.process_time()
        shown = [self.shown(dataset.image(each), _known(dataset.mask(each), number)) for each in examples]
        known, supports = [each for each, _ in shown], [support for _, support in shown]
        learnt = self.method.learn(known)
        sums.seconds["fit"].append(time.process_time() - start)
        simple = self._simple(known)
        reached = []
        for query in queries:
            truth = dataset.mask(query) == number
            start = time.process_time()
            pixels = dataset.image(query)
            photo = self.method.photo_features(pixels)
            encoding = self.method.encode_query(photo)
            evidence = [self.method.compare(encoding, supports)]
            applied = self.method.apply_learnt(encoding, learnt)
            middle = time.process_time()
            size = (truth.shape[0], truth.shape[1])
            for column, mixture in (("head", HEAD_ALONE), ("learner", LEARNER_ALONE), ("both", None)):
                used = applied
                if mixture is not None:
                    used = replace(applied, learnt=replace(learnt, mixtures=torch.tensor([tuple(mixture)])))
                begun = time.process_time()
                answer = self.method.decide(TaskEvidence(evidence, size, used), self.head.thresholds)
                if column == "both":
                    sums.seconds["predict"].append(middle - start + time.process_time() - begun)
                counted = _overlap(answer.label_map > 0, truth)
                sums.overlap[column, name] += counted
                if column == "both":
                    reached.append(counted[0] / max(counted[1], 1))
            for column, mask in simple(photo, size):
                sums.overlap[column, name] += _overlap(mask, truth)
            start = time.process_time()
            own = self.method.inner
            alone = own.compare(own.encode_query(own.photo_features(pixels)), supports)
            own.decide(TaskEvidence([alone], size), self.head.thresholds)
            sums.seconds["head"].append(time.process_time() - start)
        forecast = expected_iou([value for value in learnt.left_out_iou[:, 0].tolist() if not math.isnan(value)])
        if forecast is not None:
            sums.misses.append(forecast - float(np.mean(reached)))

    def _simple(self, known: Sequence[LabelledFeatures]):  # type: ignore[no-untyped-def]
        """Forest and colour, as a function from a photo's features to masks."""
        photos = [LabelledPhoto(parts_of(each.features)[1], each.masks) for each in known]
        grids = [(photo.features.maps[0], at_grid(photo.masks, photo.features.grid)[0]) for photo in photos]
        values = torch.cat([maps.flatten(1).T for maps, _ in grids])
        labels = torch.cat([mask.flatten() for _, mask in grids])
        inside, outside = (values[labels == label][:, :3].mean(dim=0) for label in (1, 0))
        forest = None
        if self.forest:
            from sklearn.ensemble import RandomForestClassifier

            samples = train(photos).samples  # the very pixels that the learner sees
            picked = torch.cat(
                [
                    photo.features.maps[0][
                        :, (p[:, 1] * h).long().clamp(max=h - 1), (p[:, 0] * w).long().clamp(max=w - 1)
                    ].T
                    for index, photo in enumerate(photos)
                    for (h, w), p in [(photo.features.grid, samples.points[samples.photo == index])]
                ]
            )
            forest = RandomForestClassifier(100, min_samples_leaf=2, random_state=0)
            forest.fit(picked.numpy(), samples.labels[:, 0].numpy(), sample_weight=samples.shares.numpy())

        def answer(features: Features, size: tuple[int, int]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
            maps = parts_of(features)[1].maps[0]
            colour = maps[:3].permute(1, 2, 0)
            nearer = (colour - outside).norm(dim=-1) - (colour - inside).norm(dim=-1)  # (h, w)
            yield "colour", _enlarged(nearer, size)
            if forest is not None:
                found = forest.predict_proba(maps.flatten(1).T.numpy())[:, -1].reshape(maps.shape[1:])
                yield "forest", _enlarged(torch.from_numpy(found).float() - 0.5, size)

        return answer


def _known(label_map: NDArray[Any], number: int) -> NDArray[np.uint8]:
    """1 inside of the class, 255 where nothing is known, 0 elsewhere."""
    return np.where(label_map == VOID, VOID, label_map == number).astype(np.uint8)


def _enlarged(logits: torch.Tensor, size: tuple[int, int]) -> NDArray[np.bool_]:
    return (F.interpolate(logits[None, None], size, mode="bilinear", align_corners=False)[0, 0] >= 0).numpy()


def _overlap(found: NDArray[np.bool_], truth: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.array([(found & truth).sum(), (found | truth).sum()], np.int64)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", type=Path)
    parser.add_argument("--list", type=Path, action="append", default=[], help="photos of a class: name__class number")
    parser.add_argument("--examples", default="1,3,5,10")
    parser.add_argument("--tasks", type=int, default=4, help="of each class")
    parser.add_argument("--queries", type=int, default=3, help="of each task")
    parser.add_argument("--presence", action="store_true", help="measure presence instead of masks")
    parser.add_argument("--no-negatives", action="store_true", help="with --presence: show none without the class")
    parser.add_argument("--head", action="append", help="one for all lists, or one for each --list")
    parser.add_argument("--no-forest", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [row for root in options.datasets for row in (presence if options.presence else masks)(root, options)]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join("" if value is None else str(value) for value in row.values()) + " |")


def masks(root: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each number of examples: masks by every way."""
    dataset = open_dataset(root)
    heads = options.head or ["default"]
    for draw in [Draw(int(count), options.tasks, options.queries) for count in options.examples.split(",")]:
        sums = Sums()
        for index, head in enumerate(heads):
            bench = Bench(head, not options.no_forest)
            lists = options.list[index : index + 1] if len(heads) > 1 else options.list
            for number, (name, names) in enumerate(photos_of(dataset, lists).items()):
                if len(names) <= draw.examples:
                    continue
                for shown, queries in draw.of(names, number):
                    bench.task(dataset, name, shown, queries, sums)
                found = {column: sums.overlap[column, name] for column in COLUMNS}
                line = {column: round(100 * float(i / max(u, 1)), 1) for column, (i, u) in found.items()}
                print(
                    root.name, draw.examples, name, line, round(sums.misses[-1], 2) if sums.misses else "", flush=True
                )
        yield (
            {"set": root.name, "examples": draw.examples}
            | {column: round(sums.miou(column), 1) for column in COLUMNS}
            | {"forecast error": round(float(np.abs(sums.misses).mean()), 3) if sums.misses else None}
            | {f"{key} s": round(float(np.median(value)), 2) for key, value in sums.seconds.items()}
        )


def presence(root: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each class: whether it is there, where photos of the other classes are those without it."""
    dataset = open_dataset(root)
    bench = Bench((options.head or ["default"])[0], negatives=not options.no_negatives)
    photos = photos_of(dataset, options.list)
    for seed, (name, names) in enumerate(photos.items()):
        others = sorted({each for other in photos for each in photos[other] if each not in names})
        draw, most = np.random.RandomState(seed), SHOWN_FOR_PRESENCE + options.queries
        with_it, without = ([group[i] for i in draw.permutation(len(group))[:most]] for group in (names, others))
        row = bench.presence(dataset, name, with_it, without).row(bench.head.thresholds.presence)
        print(root.name, name, row, flush=True)
        yield {"set": root.name, "class": name} | row


if __name__ == "__main__":
    main()
