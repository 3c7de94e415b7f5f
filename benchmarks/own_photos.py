"""What examples are worth: the head alone, the learner alone, both, and two simple ways, on the same tasks.

    python benchmarks/own_photos.py nuclei/ steel/ --examples 1,5 --tasks 4 --json own-photos.json
    python benchmarks/own_photos.py pascal/ --list val/fold0.txt --list val/fold1.txt --examples 5 --tasks 1

Each data set is anything that `emat fit` takes. For every class, `--tasks` times so many examples are drawn, and three
other photos of the class are asked about. mIoU: intersection and union are summed over a class, then classes averaged.

- forest: scikit-learn's random forest on the classical features of the same pixels, the way of interactive tools;
- colour: the nearer of two mean colours, inside and outside the masks;
- forecast error: by how much the forecast IoU misses the mean IoU of the three photos, on average over tasks.

A line is printed per class as it is done, and Markdown at the end.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from emat.datasets.dataset import Dataset
from emat.datasets.layouts import open_dataset
from emat.methods.base import Features, LabelledFeatures, TaskEvidence
from emat.methods.learner import LabelledPhoto, at_grid, train
from emat.methods.mixture import HEAD_ALONE, Mixture
from emat.methods.trained_head import load_head
from emat.methods.with_learner import LearningMethod, parts_of

QUERIES = 3
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


def drawn(names: Sequence[str], examples: int, tasks: int, seed: int) -> Iterator[tuple[list[str], list[str]]]:
    """Examples and queries of each task."""
    draw = np.random.RandomState(seed)
    for _ in range(tasks):
        order = [names[index] for index in draw.permutation(len(names))[: examples + QUERIES]]
        yield order[:examples], order[examples:]


class Bench:
    """Answers tasks by every way."""

    def __init__(self, head: str, forest: bool) -> None:
        self.head, self.forest = load_head(head), forest
        self.method = LearningMethod(self.head.build("cpu"), self.head.thresholds)

    @torch.no_grad()
    def task(self, dataset: Dataset, name: str, examples: Sequence[str], queries: Sequence[str], sums: Sums) -> None:
        """Count one task."""
        number = 1 + list(dataset.classes).index(name)
        shown = [dataset.mask(each) == number for each in examples]
        start = time.perf_counter()
        features = [self.method.photo_features(dataset.image(each)) for each in examples]
        supports = [
            self.method.encode_support(each, torch.from_numpy(mask).float())
            for each, mask in zip(features, shown, strict=True)
        ]
        known = [
            LabelledFeatures(each, torch.from_numpy(np.where(dataset.mask(photo) == 255, 255, mask)[None]).byte())
            for each, mask, photo in zip(features, shown, examples, strict=True)
        ]
        learnt = self.method.learn(known)
        sums.seconds["fit"].append(time.perf_counter() - start)
        simple = self._simple(known)
        reached = []
        for query in queries:
            truth = dataset.mask(query) == number
            start = time.perf_counter()
            photo = self.method.photo_features(dataset.image(query))
            encoding = self.method.encode_query(photo)
            evidence = [self.method.compare(encoding, supports)]
            applied = self.method.apply_learnt(encoding, learnt)
            middle = time.perf_counter()
            size = (truth.shape[0], truth.shape[1])
            for column, mixture in (("head", HEAD_ALONE), ("learner", LEARNER_ALONE), ("both", None)):
                used = applied
                if mixture is not None:
                    used = replace(applied, learnt=replace(learnt, mixtures=torch.tensor([tuple(mixture)])))
                begun = time.perf_counter()
                answer = self.method.decide(TaskEvidence(evidence, size, used), self.head.thresholds)
                if column == "both":
                    sums.seconds["predict"].append(middle - start + time.perf_counter() - begun)
                counted = _overlap(answer.label_map > 0, truth)
                sums.overlap[column, name] += counted
                if column == "both":
                    reached.append(counted[0] / max(counted[1], 1))
            for column, mask in simple(photo, size):
                sums.overlap[column, name] += _overlap(mask, truth)
        forecast = learnt.left_out_iou[:, 0]
        if not bool(torch.isnan(forecast).all()):
            sums.misses.append(abs(float(forecast.nanmean()) - float(np.mean(reached))))

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
    parser.add_argument("--head", default="default")
    parser.add_argument("--no-forest", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    bench = Bench(options.head, not options.no_forest)
    rows = []
    for root in options.datasets:
        dataset = open_dataset(root)
        photos = photos_of(dataset, options.list)
        for examples in map(int, options.examples.split(",")):
            sums = Sums()
            for number, (name, names) in enumerate(photos.items()):
                if len(names) < examples + 1:
                    continue
                for shown, queries in drawn(names, examples, options.tasks, number):
                    bench.task(dataset, name, shown, queries, sums)
                line = {
                    column: 100 * sums.overlap[column, name][0] / max(sums.overlap[column, name][1], 1)
                    for column in COLUMNS
                }
                print(
                    root.name, examples, name, {key: round(float(value), 1) for key, value in line.items()}, flush=True
                )
            rows.append(
                {"set": root.name, "examples": examples}
                | {column: round(sums.miou(column), 1) for column in COLUMNS}
                | {"forecast error": round(float(np.mean(sums.misses)), 3) if sums.misses else None}
                | {f"{key} s": round(float(np.median(value)), 2) for key, value in sums.seconds.items()}
            )
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join("" if value is None else str(value) for value in row.values()) + " |")


if __name__ == "__main__":
    main()
