"""Photos, masks, weights and tasks by rule, and what the plain evaluation says of them.

    python -m tests.parity.end_to_end

writes tests/parity/end_to_end.json again. Tasks are drawn here once more from the published protocol, and answered by
`tests.parity.plain_evaluation`, so that `emat eval` is compared with it from the photo to the score.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from emat.backbone.registry import find_backbone
from emat.datasets.fold_lists import FoldList, fold_classes, write_fold_list
from emat.images import write_indexed_png
from emat.model import build
from emat.model.plain import FORMS
from tests.backbone.test_vit import by_the_rule
from tests.parity.plain_evaluation import PlainMethod, Shot, plain_answer

GOLDEN = Path(__file__).with_suffix(".json")
SIDE, BACKBONE, CHANNELS = 112, "dinov2-s", 72
PHOTOS, VOID = 16, 255
THETA = {"pascal": 0.07, "coco": 0.03}
FOLD = {"pascal": 0, "coco": 1}
CLASSES = {"pascal": range(1, 6), "coco": range(2, 81, 4)}
FOLDS = 4

Mask = NDArray[np.uint8]  # (H, W) class ids


@dataclass(frozen=True)
class Case:
    """A configuration and the method that answers it."""

    method: str
    dataset: str
    way: int
    shot: int
    setting: str
    tasks: int
    split: str = "val"


@dataclass(frozen=True)
class DrawnTask:
    query: str
    ways: tuple[int, ...]
    shots: tuple[tuple[str, ...], ...]


SETTINGS = ("original", "partially-augmented", "fully-augmented")
CASES = (
    *(Case("emat", "pascal", 2, 1, setting, 8) for setting in SETTINGS),
    *(Case("emat", "coco", 2, 1, setting, 3) for setting in SETTINGS),
    Case("emat", "pascal", 1, 5, "original", 3),
    Case("emat", "pascal", 2, 5, "fully-augmented", 2),
    Case("emat", "coco", 1, 5, "original", 2),
    Case("emat", "pascal", 1, 1, "original", 4, split="0-15"),
    Case("emat-s", "pascal", 2, 1, "original", 4),
    Case("cst", "pascal", 2, 1, "original", 4),
)


def names(dataset: str) -> list[str]:
    """The names of all photos."""
    pattern = "photo{:02}" if dataset == "pascal" else "val2014/photo{:02}.jpg"
    return [pattern.format(number) for number in range(PHOTOS)]


def mask_of(dataset: str, number: int) -> Mask:
    """The label map of a photo: three rectangles of the fold's classes, or ten of COCO's, another class and void."""
    height, width = 61 + 7 * (number % 5), 83 + 9 * (number % 4)
    mask = np.zeros((height, width), np.uint8)
    if dataset == "coco":
        for cell in range(20):
            row, column = divmod(cell, 5)
            if (number + cell) % 2 == 0:
                top, left = row * height // 4, column * width // 5
                chosen = CLASSES["coco"][(5 * number + 7 * (cell // 2)) % 20]
                mask[top : top + height // 4 - number % 3, left : left + width // 5 - cell % 4] = chosen
        return mask
    for order, share in enumerate((0.55, 0.35, 0.18)):
        chosen = CLASSES["pascal"][(number + order * (1 + number // 5)) % 5]
        top, left = (number * 5 + order * 23) % (height // 2), (number * 11 + order * 31) % (width // 2)
        mask[top : top + int(height * share), left : left + int(width * share)] = chosen
    mask[-12:, : width // 3] = 6 + number % 15
    mask[:, -2:] = VOID
    return mask


def photo_of(dataset: str, number: int) -> NDArray[np.uint8]:
    """The photo: every class has a colour and a texture of its own, over a gradient."""
    mask = mask_of(dataset, number).astype(np.int64)
    y, x = np.mgrid[: mask.shape[0], : mask.shape[1]]
    ground = np.stack([2 * x + 9 * number, 3 * y + 5 * number, x + y + 40], axis=-1)
    shown = np.stack([37 * mask + 5 * (x % (2 + mask % 5)), 91 * mask + 9 * (y % 3), 53 * mask + x * y % 7], axis=-1)
    return (np.where(((mask > 0) & (mask < VOID))[..., None], shown, ground) % 256).astype(np.uint8)


def entries(dataset: str, split: str = "val") -> list[tuple[str, int]]:
    """The fold list: every photo with every class of the fold that it shows, or shows at the sizes of the split."""
    found = []
    for name, mask in zip(names(dataset), masks(dataset).values(), strict=True):
        for class_id in CLASSES[dataset]:
            low, high = (0.0, 1.1) if split == "val" else (int(each) / 100 for each in split.split("-"))
            if (mask == class_id).any() and low <= (mask == class_id).mean() < high:
                found.append((name, class_id))
    return found if dataset == "pascal" else sorted(found, key=lambda entry: entry[1])  # as COCO's files are


def masks(dataset: str) -> dict[str, Mask]:
    return {name: mask_of(dataset, number) for number, name in enumerate(names(dataset))}


def write_data(folder: Path, dataset: str) -> tuple[Path, Path]:
    """Write photos, masks and lists in the published layouts; return the folders of data and lists."""
    data, lists = folder / dataset, folder / "splits"
    for number, (name, mask) in enumerate(masks(dataset).items()):
        coco = dataset == "coco"
        photo = data / name if coco else data / "JPEGImages" / f"{name}.png"
        photo.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo_of(dataset, number)).save(photo, "PNG")  # without loss, whatever its name says
        labels = f"annotations/{name.removesuffix('.jpg')}" if coco else f"SegmentationClassAug/{name}"
        write_indexed_png(data / f"{labels}.png", mask)
    for split in {case.split for case in CASES if case.dataset == dataset}:
        for fold in range(FOLDS):
            listed = entries(dataset, split) if fold == FOLD[dataset] else []
            made = FoldList(dataset, fold, split, tuple(listed), fold_classes(dataset, fold))
            where = "val" if split == "val" else f"custom/{split}"
            write_fold_list(made, lists / dataset / where / f"fold{fold}.list")
    return data, lists


def drawn(case: Case) -> Iterator[DrawnTask]:
    """Draw the tasks of a case by the published protocol."""
    listed, class_ids = entries(case.dataset, case.split), list(CLASSES[case.dataset])
    if case.split != "val":
        order = list(dict.fromkeys(class_id for _, class_id in listed))
        listed = [entry for class_id in order for entry in listed if entry[1] == class_id]
        np.random.RandomState(0).shuffle(listed)
    by_class = {c: [name for name, each in entries(case.dataset, case.split) if each == c] for c in class_ids}
    class_ids = [class_id for class_id in class_ids if by_class[class_id]]
    shown = masks(case.dataset)
    for index in range(case.tasks):
        random = np.random.RandomState(index)

        def one(values: Sequence[Any], random: np.random.RandomState = random) -> Any:
            return random.choice(values, 1, replace=False)[0]

        if case.dataset == "pascal":
            query, query_class = listed[index % len(listed)]
        else:
            query_class = int(one(class_ids))
            query = str(one(by_class[query_class]))
        others = [class_id for class_id in class_ids if class_id != query_class]
        if case.split != "val":
            more = random.choice(others, case.way - 1, replace=False).tolist() if case.way > 1 else []
            ways = [query_class, *more]
        else:
            chances = [0.5 if class_id == query_class else 0.5 / len(others) for class_id in class_ids]
            ways = [int(way) for way in random.choice(class_ids, case.way, p=chances, replace=False)]
        shots: dict[int, list[str]] = {}
        for way in ways:
            shots[way] = []
            while len(shots[way]) < case.shot:
                name = str(one(by_class[way]))
                if name != query and name not in shots[way]:
                    shots[way].append(name)
        _augment(case, shots, shown, class_ids, random)
        yield DrawnTask(query, tuple(shots), tuple(map(tuple, shots.values())))


def _augment(
    case: Case,
    shots: dict[int, list[str]],
    shown: dict[str, Mask],
    class_ids: Sequence[int],
    random: np.random.RandomState,
) -> None:
    if case.setting == "original":
        return
    drawn = [(way, name) for way, some in shots.items() for name in some]
    for way, name in drawn:
        for class_id in np.unique(shown[name]).tolist():
            share = float((shown[name] == class_id).mean())
            if class_id in (0, VOID, way) or share <= THETA[case.dataset]:
                continue
            if class_id in shots or (case.setting == "fully-augmented" and class_id in class_ids):
                shots.setdefault(class_id, []).append(name)
    if sum(map(len, shots.values())) > len(drawn):
        most = max(map(len, shots.values()))
        for some in shots.values():
            while len(some) < most:
                some.append(some[random.randint(len(some))])


@cache
def plain_method(name: str) -> PlainMethod:
    """The method with the weights that small.json's rule gives every public name."""
    backbone = {key: by_the_rule(key, shape) for key, shape in find_backbone(BACKBONE).make().shapes().items()}
    learner = {key: by_the_rule(key, tuple(value.shape)) for key, value in build(name, CHANNELS).state_dict().items()}
    return PlainMethod(FORMS[name], backbone, learner, SIDE)


def answers(case: Case) -> list[dict[str, Any]]:
    """Every task of a case with the plain evaluation's answer."""
    method, shown = plain_method(case.method), masks(case.dataset)
    photos = {name: photo_of(case.dataset, number) for number, name in enumerate(shown)}
    found = []
    for task in drawn(case):
        by_way = zip(task.ways, task.shots, strict=True)
        ways = [[Shot(photos[name], shown[name] == way) for name in some] for way, some in by_way]
        answer = plain_answer(method, photos[task.query], ways, [shown[task.query] == way for way in task.ways])
        found.append({**asdict(task), **asdict(answer)})
    return found


if __name__ == "__main__":
    rows = []
    for case in CASES:
        lines = ",\n   ".join(json.dumps(task) for task in answers(case))
        rows.append(f' {{"case": {json.dumps(asdict(case))},\n  "tasks": [\n   {lines}]}}')
    GOLDEN.write_text('{"cases": [\n' + ",\n".join(rows) + "\n]}\n")
