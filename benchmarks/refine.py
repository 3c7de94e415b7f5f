"""How much refinement helps: unrefined, guided, MobileSAM and auto; mIoU, boundary F-score, seconds.

    python benchmarks/refine.py PASCAL --lists val/fold0.txt --lists val/fold1.txt --cache DIR
    python benchmarks/refine.py NUCLEI --cache DIR

A data set is a folder in VOC's layout: JPEGImages, and SegmentationClassAug or SegmentationClass. A task is a photo
of a class and one example of the class (or --shots). Whatever takes long, the head's probabilities and MobileSAM's
embedding of the query, is kept in --cache, so that a second run takes seconds.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from emat import Example, Segmenter
from emat.images import Pixels, read_mask, read_photo
from emat.inference.known_examples import thumbnail
from emat.refine.mobilesam import EncodedPhoto, MobileSAM, load_mobilesam
from emat.refine.refiner import Refinement, examples_suit, refine_maps

WAYS = ("unrefined", "guided", "mobilesam", "auto")
MASK_FOLDERS = ("SegmentationClassAug", "SegmentationClass")

BOUNDARY_TOLERANCE = 0.0075  # of the photo's diagonal, as in the DAVIS benchmark
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Task:
    """A query and the examples of its class."""

    query: str
    supports: tuple[str, ...]
    index: int  # of the class in the masks

    @property
    def title(self) -> str:
        return "-".join((self.query, str(self.index), *self.supports))


@dataclass(frozen=True)
class Prepared:
    """What refinement starts from."""

    photo: Pixels
    truth: Mask
    map: NDArray[np.float32]  # the head's foreground probability
    threshold: float
    encoded: EncodedPhoto
    suited: bool  # whether auto may refine, by the examples


def pascal_tasks(lists: list[Path], count: int, shots: int, seed: int = 0) -> list[Task]:
    """`count` tasks of the fold lists, lines such as 2007_000032__01; every class has its turn."""
    by_class: dict[int, list[str]] = {}
    for line in sorted({line for path in lists for line in path.read_text().split()}):
        name, index = line.split("__")
        by_class.setdefault(int(index), []).append(name)
    return list(_drawn(by_class, count, shots, seed))


def folder_tasks(masks: Path, count: int, shots: int, seed: int = 0) -> list[Task]:
    """`count` tasks of a folder of masks."""
    by_class: dict[int, list[str]] = {}
    for path in sorted(masks.glob("*.png")):
        for index in np.unique(read_mask(path)):
            if 0 < index < 255:
                by_class.setdefault(int(index), []).append(path.stem)
    return list(_drawn(by_class, count, shots, seed))


def _drawn(by_class: dict[int, list[str]], count: int, shots: int, seed: int) -> Iterator[Task]:
    random = np.random.default_rng(seed)
    classes = sorted(index for index, names in by_class.items() if len(names) > shots)
    for number in range(count):
        index = classes[number % len(classes)]
        query, *supports = random.choice(by_class[index], 1 + shots, replace=False)
        yield Task(str(query), tuple(map(str, supports)), index)


class Preparation:
    """Probabilities and embeddings, from the cache where they are."""

    def __init__(self, photos: Path, masks: Path, cache: Path, sam: MobileSAM) -> None:
        self.photos = {path.stem: path for path in photos.iterdir()}
        self.masks = masks
        self.cache = cache
        self.sam = sam
        self.segmenter = Segmenter.load("default", device="cpu")

    def __call__(self, task: Task) -> Prepared:
        photo = read_photo(self.photos[task.query])
        path = self.cache / f"{task.title}.npz"
        if not path.is_file():
            self._write(path, task, photo)
        with np.load(path) as kept:
            embedding = torch.from_numpy(kept["embedding"]).float()
            return Prepared(
                photo,
                self._mask(task.query, task.index),
                kept["map"].astype(np.float32),
                float(kept["threshold"]),
                EncodedPhoto(embedding, (photo.shape[0], photo.shape[1])),
                self._suited(task),
            )

    def _write(self, path: Path, task: Task, photo: Pixels) -> None:
        self.segmenter.fit([Example(self.photos[n], {"it": self._mask(n, task.index)}) for n in task.supports])
        prediction = self.segmenter.predict(photo)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(
            path,
            map=prediction.maps["it"].astype(np.float16),
            threshold=prediction.thresholds.mask,
            embedding=self.sam.encode(photo).embedding.numpy().astype(np.float16),
        )

    def _suited(self, task: Task) -> bool:
        path = self.cache / f"{task.title}.suited"
        if not path.is_file():
            path.write_text(str(int(examples_suit([self._thumbnail(name, task.index) for name in task.supports]))))
        return path.read_text() == "1"

    def _thumbnail(self, name: str, index: int) -> Mask:
        """What a segmenter keeps of an example."""
        kept = thumbnail(Example(self.photos[name], {"it": self._mask(name, index)}).read())
        return kept.masks["it"]

    def _mask(self, name: str, index: int) -> Mask:
        return read_mask(self.masks / f"{name}.png") == index


def boundary_f_score(mask: Mask, truth: Mask) -> float:
    """How much of either outline lies within the tolerance of the other; 1 if both are empty."""
    reach = max(1.0, BOUNDARY_TOLERANCE * float(np.hypot(*mask.shape)))
    outlines = [one & ~ndimage.binary_erosion(one, border_value=1) for one in (mask, truth)]
    if not (outlines[0].any() and outlines[1].any()):
        return float(outlines[0].any() == outlines[1].any())
    near = [ndimage.distance_transform_edt(~outline) <= reach for outline in outlines]
    precision, recall = near[1][outlines[0]].mean(), near[0][outlines[1]].mean()
    return float(2 * precision * recall / max(precision + recall, 1e-9))


def refined_mask(way: str, prepared: Prepared, sam: MobileSAM) -> tuple[Mask, str]:
    """The mask of one way to refine, at the photo's size, and what auto chose."""
    map_, chosen = prepared.map, "unrefined"
    if way != "unrefined" and (way != "auto" or prepared.suited):
        named = cast("Refinement", way)
        refined = refine_maps(prepared.photo, {"it": map_}, prepared.threshold, named, sam, lambda: prepared.encoded)
        map_, chosen = refined.maps["it"], refined.ways["it"]
    return map_ >= prepared.threshold, chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--lists", type=Path, action="append", default=[], help="fold lists; default: the masks tell")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--shots", type=int, default=1)
    parser.add_argument("--weights", type=Path, help="mobile_sam.pt; default: the cache or a download")
    parser.add_argument("--only-cached", action="store_true", help="leave out tasks that are not in the cache")
    parser.add_argument("--ways", default=",".join(WAYS))
    options = parser.parse_args()
    sam = load_mobilesam(options.weights)
    masks = next(folder for name in MASK_FOLDERS if (folder := options.data / name).is_dir())
    prepare = Preparation(options.data / "JPEGImages", masks, options.cache, sam)
    if options.lists:
        tasks = pascal_tasks(options.lists, options.tasks, options.shots)
    else:
        tasks = folder_tasks(masks, options.tasks, options.shots)
    if options.only_cached:
        tasks = [task for task in tasks if (options.cache / f"{task.title}.npz").is_file()]
    measured = {way: Measured() for way in options.ways.split(",")}
    for task in tasks:
        prepared = prepare(task)
        for way, sums in measured.items():
            started = time.perf_counter()
            mask, chosen = refined_mask(way, prepared, sam)
            sums.add(task.index, mask, prepared.truth, time.perf_counter() - started, chosen)
    print(f"{len(tasks)} tasks of {options.data.name}, {options.shots} example(s); seconds without MobileSAM's encoder")
    for way, sums in measured.items():
        print(json.dumps({"refine": way, **sums.summary()}))


class Measured:
    """Sums of one way to refine."""

    def __init__(self) -> None:
        self.intersection: Counter[int] = Counter()
        self.union: Counter[int] = Counter()
        self.ious: list[float] = []
        self.boundary: list[float] = []
        self.seconds: list[float] = []
        self.chosen: Counter[str] = Counter()

    def add(self, index: int, mask: Mask, truth: Mask, seconds: float, chosen: str) -> None:
        both, either = int((mask & truth).sum()), int((mask | truth).sum())
        self.intersection[index] += both
        self.union[index] += either
        self.ious.append(both / max(either, 1))
        self.boundary.append(boundary_f_score(mask, truth))
        self.seconds.append(seconds)
        self.chosen[chosen] += 1

    def summary(self) -> dict[str, object]:
        """mIoU as the paper has it (sums by class), the mean IoU of tasks, and the rest."""
        by_class = [self.intersection[index] / max(self.union[index], 1) for index in self.union]
        return {
            "miou": round(100 * float(np.mean(by_class)), 1),
            "task_iou": round(100 * float(np.mean(self.ious)), 1),
            "boundary_f": round(100 * float(np.mean(self.boundary)), 1),
            "seconds": round(float(np.median(self.seconds)), 3),
            "ways": dict(self.chosen),
        }


if __name__ == "__main__":
    main()
