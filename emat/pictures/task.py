"""A picture of a task: the support photos of each way with their masks, and the query beside them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from emat.datasets.dataset import Dataset
from emat.images import Pixels, resize_mask, resize_photo
from emat.pictures.palette import INK, PRINT_COLOURS, WHITE, Colour
from emat.tasks.task import Task

SHOT_BOX, QUERY_BOX = (200, 160), (420, 340)  # width and height that a photo is fitted into
MARGIN, GAP, LABEL_HEIGHT, TITLE_HEIGHT = 24, 12, 34, 54
SHOTS_PER_ROW = 5
TINT = 0.5  # the share of the way's colour inside its mask


@dataclass(frozen=True)
class _Layer:
    colour: Colour
    pixels: NDArray[np.bool_]  # (H, W)


def draw_task(task: Task, dataset: Dataset) -> Image.Image:
    """Draw a task: the supports of each way on the left, the query with its true mask on the right."""
    support = [Counter(names) for names in task.shots]  # a repeated shot is drawn once
    shots_wide = min(SHOTS_PER_ROW, max(map(len, support)))
    support_width = shots_wide * (SHOT_BOX[0] + GAP) - GAP
    rows = [-(-len(names) // SHOTS_PER_ROW) for names in support]
    support_height = sum(LABEL_HEIGHT + count * (SHOT_BOX[1] + GAP) for count in rows)
    query_height = LABEL_HEIGHT + QUERY_BOX[1] + GAP + LABEL_HEIGHT * len(task.ways)
    left, top = MARGIN, MARGIN + TITLE_HEIGHT
    query_left = left + support_width + 3 * MARGIN
    size = (query_left + QUERY_BOX[0] + MARGIN, top + max(support_height, query_height) + MARGIN)
    canvas = Image.new("RGB", size, WHITE)
    _write(canvas, (MARGIN, MARGIN), _title(task), 24)
    for way, names in enumerate(support):
        _label(canvas, (left, top), way, dataset.classes[task.ways[way] - 1])
        top += LABEL_HEIGHT
        for shot, (name, times) in enumerate(names.items()):
            row, column = divmod(shot, SHOTS_PER_ROW)
            where = (left + column * (SHOT_BOX[0] + GAP), top + row * (SHOT_BOX[1] + GAP))
            _paste(canvas, where, SHOT_BOX, dataset.image(name), _layers(task, dataset.mask(name), [way]))
            if times > 1:
                _badge(canvas, where, f"{times} ×")
        top += rows[way] * (SHOT_BOX[1] + GAP)
    _draw_query(canvas, (query_left, MARGIN + TITLE_HEIGHT), task, dataset)
    return canvas


def _draw_query(canvas: Image.Image, where: tuple[int, int], task: Task, dataset: Dataset) -> None:
    left, top = where
    mask = dataset.mask(task.query)
    _write(canvas, (left, top), f"Query {task.query}", 18)
    layers = _layers(task, mask, range(len(task.ways)))
    height = _paste(canvas, (left, top + LABEL_HEIGHT), QUERY_BOX, dataset.image(task.query), layers)
    top += LABEL_HEIGHT + height + GAP
    for way, present in enumerate(task.present(mask)):
        answer = "in the query" if present else "not in the query"
        _label(canvas, (left, top), way, f"{dataset.classes[task.ways[way] - 1]}: {answer}")
        top += LABEL_HEIGHT


def _title(task: Task) -> str:
    shots = max(map(len, task.shots))
    setting = task.setting.value.replace("-", " ") + " setting" + (", support extended" if task.augmented else "")
    return f"Task {task.index}  ·  {len(task.ways)}-way {shots}-shot  ·  {setting}"


def _layers(task: Task, mask: NDArray[np.integer], ways: Iterable[int]) -> list[_Layer]:
    return [_Layer(PRINT_COLOURS[way % len(PRINT_COLOURS)], mask == task.ways[way]) for way in ways]


def _paste(
    canvas: Image.Image, where: tuple[int, int], box: tuple[int, int], photo: Pixels, layers: list[_Layer]
) -> int:
    """Paste `photo` with its masks, fitted into `box`, and return its height on the canvas."""
    height, width = photo.shape[:2]
    scale = min(box[0] / width, box[1] / height)
    size = (max(1, int(height * scale)), max(1, int(width * scale)))
    small = resize_photo(photo, size).astype(np.float32)  # (h, w, 3)
    for layer in layers:
        inside = resize_mask(layer.pixels.astype(np.uint8), size) > 0  # (h, w)
        tint(small, inside, layer.colour, TINT, outline=2)
    canvas.paste(Image.fromarray(small.astype(np.uint8)), where)
    return size[0]


def tint(picture: NDArray[np.float32], inside: NDArray[np.bool_], colour: Colour, share: float, outline: int) -> None:
    """Colour a mask (h, w) in a picture (h, w, 3), by a share, and its outermost pixels altogether."""
    picture[inside] = (1 - share) * picture[inside] + share * np.array(colour, np.float32)
    core = ndimage.binary_erosion(inside, iterations=outline, border_value=1)
    picture[inside & ~core] = colour


def _label(canvas: Image.Image, where: tuple[int, int], way: int, text: str) -> None:
    left, top = where
    box = (left, top + 4, left + 18, top + 22)
    ImageDraw.Draw(canvas).rounded_rectangle(box, radius=4, fill=PRINT_COLOURS[way % len(PRINT_COLOURS)])
    _write(canvas, (left + 28, top), text, 18)


def _badge(canvas: Image.Image, where: tuple[int, int], text: str) -> None:
    left, top = where[0] + 6, where[1] + 6
    width = round(ImageFont.load_default(15).getlength(text)) + 12
    ImageDraw.Draw(canvas).rounded_rectangle((left, top, left + width, top + 22), radius=5, fill=INK)
    _write(canvas, (left + 6, top + 2), text, 15, WHITE)


def _write(canvas: Image.Image, where: tuple[int, int], text: str, size: int, colour: Colour = INK) -> None:
    ImageDraw.Draw(canvas).text(where, text, fill=colour, font=ImageFont.load_default(size))
