"""Hostile inputs of every kind: each function damages a good input and gives it to the code that reads it.

An input is handled correctly if it is read, or refused with an `EmatError` of one line. Everything else is a finding.
"""

import base64
import io
import json
import math
import os
import random
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from emat.datasets.layouts import open_dataset
from emat.formats.coco import read_coco
from emat.formats.labelme import read_labelme
from emat.formats.yolo import read_yolo, read_yolo_names
from emat.images import read_mask, read_object, read_photo

Kind = Callable[[random.Random, Path], bytes]
HOSTILE: list[Any] = [
    None, True, 0, -1, 1, 255, 256, 65536, 10**9, 10**400, -(10**9), 0.5, 1e7, 1e9, 1e300, math.nan, math.inf, "",
    "cat", "x" * 300, "../../x.jpg", "/etc/passwd", "a\0b", "\udce9", "ü", [], {}, [[]], [1, 2, 3], [[1, 2], [3, 4]],
    {"a": {"b": []}}, [[[[[[]]]]]], ["0", "1"],
]  # fmt: skip
MODES = ("L", "RGB", "RGBA", "P", "1", "LA", "I;16", "F", "CMYK")


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Change, cut, double or insert a few bytes."""
    value = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        if not value:
            break
        where = chance.randrange(len(value))
        way = chance.randrange(6)
        if way == 0:
            value[where] = chance.randrange(256)
        elif way == 1:
            value[where] ^= 1 << chance.randrange(8)
        elif way == 2:
            del value[where:]
        elif way == 3:
            value[where:where] = value[where : where + chance.randrange(64)]
        elif way == 4:
            value[where : where + 4] = chance.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"))
        else:
            value[where:where] = chance.randbytes(chance.randrange(1, 9))
    return bytes(value)


def altered(value: Any, chance: random.Random) -> Any:
    """Replace one part of a JSON value, at a random depth, by something that does not belong there."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: altered(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        index = chance.randrange(len(value))
        if chance.random() < 0.15:
            return value[:index] + [value[index]] * 2 + value[index + 1 :]
        return [*value[:index], altered(value[index], chance), *value[index + 1 :]]
    return chance.choice(HOSTILE)


def an_image(chance: random.Random) -> bytes:
    """A small image file of a random format and mode."""
    size = (chance.randint(1, 40), chance.randint(1, 40))
    values = np.random.default_rng(chance.randrange(2**32)).integers(
        0, chance.choice((2, 4, 256)), (size[1], size[0], 3)
    )
    buffer = io.BytesIO()
    mode, file_format = chance.choice(MODES), chance.choice(("PNG", "JPEG", "TIFF", "GIF", "BMP", "WEBP"))
    image = Image.fromarray((values * 60 % 256).astype(np.uint8))
    image = image.convert("L").convert(mode) if mode in ("I;16", "F") else image.convert(mode)
    try:
        image.save(buffer, file_format)
    except (OSError, ValueError, KeyError):  # a mode that the format does not have
        image.convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


def photos(chance: random.Random, folder: Path) -> bytes:
    """Photos and masks."""
    content = damaged(an_image(chance), chance) if chance.random() < 0.9 else an_image(chance)
    for read in (read_photo, read_object, read_mask):
        quietly(partial(read, content))
    return content


def _polygon(chance: random.Random) -> list[float]:
    return [chance.uniform(-5, 35) for _ in range(2 * chance.randint(3, 6))]


def coco(chance: random.Random, folder: Path) -> bytes:
    """COCO instance files."""
    content: Any = {
        "images": [{"id": n, "file_name": f"{n}.jpg", "height": 20, "width": 30} for n in (1, 2)],
        "categories": [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 3, "segmentation": [_polygon(chance)], "iscrowd": 0},
            {"id": 2, "image_id": 2, "category_id": 7, "segmentation": {"size": [20, 30], "counts": [5, 595]}},
            {"id": 3, "image_id": 2, "category_id": 7, "segmentation": {"size": [20, 30], "counts": "52ac"}},
        ],
    }
    text = _json(content, chance)
    (folder / "c.json").write_bytes(text)

    def read() -> None:
        instances = read_coco(folder / "c.json")
        for drawing in instances.drawings.values():
            quietly(partial(drawing.label_map, instances.classes))

    quietly(read)
    return text


def labelme(chance: random.Random, folder: Path) -> bytes:
    """LabelMe files."""
    small = io.BytesIO()
    Image.new("L", (3, 3), 255).save(small, "PNG")
    shapes: list[Any] = [
        {"label": "cat", "shape_type": "polygon", "points": [[1, 1], [9, 1], [9, 9]]},
        {"label": "cat", "shape_type": "rectangle", "points": [[1, 1], [9, 9]]},
        {"label": "cat", "shape_type": "circle", "points": [[9, 9], [12, 9]]},
        {"label": "dog", "shape_type": "mask", "points": [[2, 2], [4, 4]],
         "mask": base64.b64encode(small.getvalue()).decode()},
        {"label": "dog", "shape_type": "line", "points": [[2, 2], [4, 4]]},
    ]  # fmt: skip
    text = _json({"imagePath": "a.jpg", "imageHeight": 20, "imageWidth": 30, "shapes": shapes}, chance)
    (folder / "a.json").write_bytes(text)
    quietly(lambda: read_labelme(folder / "a.json").label_map(["cat", "dog"]))
    return text


def _json(content: Any, chance: random.Random) -> bytes:
    for _ in range(chance.choice((1, 1, 2, 3))):
        content = altered(content, chance)
    text = json.dumps(content).encode()
    return damaged(text, chance) if chance.random() < 0.2 else text


def yolo(chance: random.Random, folder: Path) -> bytes:
    """YOLO outlines and class names."""
    numbers = [
        str(chance.choice((0, 0.5, 1, 1e9, "nan", "-inf", -1, 2, "x", 10**400))) for _ in range(chance.randint(0, 9))
    ]
    line = f"{chance.choice((0, 1, -1, 10**30, 'cat'))} {' '.join(numbers)}\n".encode()
    names = f"names: {json.dumps(altered({'0': 'cat', '1': 'dog'}, chance))}\nnc: 2\n".encode("utf-8", "surrogatepass")
    (folder / "a.txt").write_bytes(damaged(line, chance) if chance.random() < 0.3 else line)
    names = damaged(names, chance) if chance.random() < 0.5 else names
    (folder / "data.yaml").write_bytes(names)
    quietly(lambda: read_yolo(folder / "a.txt", "a", (20, 30), ["cat", "dog"]).label_map(["cat", "dog"]))
    quietly(lambda: read_yolo_names(folder / "data.yaml"))
    return line + names


def archives(chance: random.Random, folder: Path) -> bytes:
    """Data sets in a zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        picture = io.BytesIO()
        Image.fromarray(np.eye(9, dtype=np.uint8)).save(picture, "PNG")
        archive.writestr("classes.txt", "cat\n")
        for name in ("images/a.png", "masks/a.png", chance.choice(("../x.png", "masks/b.png", "masks/" + "x" * 300))):
            archive.writestr(name, picture.getvalue())
    content = damaged(buffer.getvalue(), chance)
    (folder / "set.zip").write_bytes(content)

    def read() -> None:
        dataset = open_dataset(folder / "set.zip")
        for name in dataset.names:
            quietly(partial(dataset.mask, name))
            quietly(partial(dataset.image, name))

    quietly(read)
    return content


def weights(chance: random.Random, folder: Path) -> bytes:
    """Heads and fitted files: safetensors and checkpoints."""
    import torch
    from safetensors.torch import save

    from emat.inference.fitted_file import is_fitted, read_fitted
    from emat.tensor_files import read_tensors

    tensors = {
        "head.a": torch.zeros(2),
        "example.0.0.cells": torch.zeros(4, 2, 3, 5),
        "example.0.0.kept": torch.zeros(2, 1, 5),
        "example.0.0.kept_later": torch.zeros(1, dtype=torch.int64),
    }
    listed = altered([{"name": "a", "classes": ["cat"], "encodings": ["correlation"]}], chance)
    metadata = {"format": "emat-segmenter", "version": "1", "examples": json.dumps(listed), "method": "emat",
                "backbone": "efficientnet-lite2", "image_size": str(chance.choice((64, -5, 99999, "x", 1e9))),
                "stretch": chance.choice(("percentile", "9,1", "nan,nan", ""))}  # fmt: skip
    content = save(tensors, metadata)
    if chance.random() < 0.3:
        buffer = io.BytesIO()
        torch.save({"state_dict": tensors}, buffer, _use_new_zipfile_serialization=chance.random() < 0.5)
        content = buffer.getvalue()
    if chance.random() < 0.7:
        content = damaged(content, chance)
    path = folder / "x.emat"
    path.write_bytes(content)
    quietly(lambda: read_tensors(path))
    quietly(lambda: is_fitted(path) and read_fitted(path))
    return content


def arguments(chance: random.Random, folder: Path) -> bytes:
    """Command lines."""
    from emat.cli import main

    if not (folder / "set").exists():
        (folder / "set" / "masks").mkdir(parents=True)
        (folder / "set" / "classes.txt").write_text("cat\n")
        Image.fromarray(np.eye(9, dtype=np.uint8)).save(folder / "set" / "masks" / "a.png")
        os.mkfifo(folder / "pipe.png")
    things = ["", "-", "--", "x" * 300, "a\0b", str(folder), str(folder / "set"), str(folder / "pipe.png"), "/dev/null",
              "1e9", "-1", "nan", "png,coco", "gif", "--json", "--to", "--format", "--tiles", "100000", "--out",
              str(folder / "out"), "/proc/x", "--shapes", "polygons", "--tolerance", "inf",
              "caf\udce9.jpg"]  # fmt: skip
    verb = chance.choice(
        (["convert"], ["data", "check"], ["predict"], ["convert", str(folder / "set"), "--to", "coco"])
    )
    line = [*verb, *(chance.choice(things) for _ in range(chance.randint(0, 5)))]
    code: object = 0
    try:
        main(line)
    except SystemExit as ended:
        code = ended.code
    if code not in (None, 0, 1, 2, 3):  # 1 is how `data check` says that it found faults
        raise AssertionError(f"{line} ended with {code}")
    return json.dumps(line).encode()


def quietly(read: Callable[[], object]) -> None:
    """Read something. An error of one line is allowed."""
    from emat.errors import EmatError

    try:
        read()
    except EmatError as error:
        if not str(error) or "\n" in str(error):
            raise AssertionError(f"an error is one line, not {str(error)!r}") from None


KINDS: dict[str, Kind] = {kind.__name__: kind for kind in (photos, coco, labelme, yolo, archives, weights, arguments)}
