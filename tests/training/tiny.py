"""A tiny real data set: coloured squares on noise, eight classes in 24 photos of 64 x 48 pixels, two in each."""

from pathlib import Path

import numpy as np
from PIL import Image

from emat.images import write_indexed_png
from emat.training.options import TrainingOptions

CLASSES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")
COLOURS = [(230, 30, 30), (30, 230, 30), (30, 30, 230), (230, 230, 30), (230, 30, 230), (30, 230, 230), (9, 9, 9)]
COLOURS.append((250, 250, 250))
HEIGHT, WIDTH, PHOTOS_PER_CLASS = 48, 64, 3


def tiny_dataset(root: Path, classes: tuple[str, ...] = CLASSES) -> Path:
    """Photo `k` of class c shows c on the left and the next class on the right."""
    random = np.random.default_rng(0)
    for index in range(len(classes)):
        for photo in range(PHOTOS_PER_CLASS):
            pixels = random.integers(90, 160, (HEIGHT, WIDTH, 3), dtype=np.uint8)
            mask = np.zeros((HEIGHT, WIDTH), np.uint8)
            other = (index + 1) % len(classes)
            for value, left in ((index, 4 + photo), (other, 36 + photo)):
                top = 8 + 6 * photo
                pixels[top : top + 20, left : left + 22] = COLOURS[value]
                mask[top : top + 20, left : left + 22] = value + 1
            name = f"{classes[index]}{photo}"
            (root / "images").mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(root / "images" / f"{name}.png")
            write_indexed_png(root / "masks" / f"{name}.png", mask)
    (root / "classes.txt").write_text("\n".join(classes) + "\n")
    return root


def tiny_options(data: Path, out: Path, **changes: object) -> TrainingOptions:
    """A run of a few seconds: 2 epochs of 3 steps at 64 pixels."""
    values: dict[str, object] = {
        "data": (data,),
        "fold": 0,
        "size": 64,
        "out": out,
        "epochs": 2,
        "tasks_per_epoch": 11,
        "batch": 4,
        "val_tasks": 6,
        "mask_size": 32,
        "ema": 0.9,
        "device": "cpu",
        "save_every": 1,
    }
    return TrainingOptions(**{**values, **changes})  # type: ignore[arg-type]
