"""Hostile inputs of every kind: each function damages a good input and gives it to the code that reads it.

An input is handled correctly if it is read, or refused with an `EmatError` of one line. Everything else is a finding.
"""

import base64
import io
import json
import math
import os
import random
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np
from PIL import Image

from emat.datasets.layouts import open_dataset
from emat.formats.coco import read_coco
from emat.formats.labelme import read_labelme
from emat.formats.run_lengths import pack
from emat.formats.yolo import read_yolo, read_yolo_names
from emat.images import ORIENTATION_TAG, photo_size, read_mask, read_object, read_photo
from emat.outputs import UNFINISHED

Kind = Callable[[random.Random, Path], bytes]
HOSTILE: list[Any] = [
    None, True, 0, -1, 1, 255, 256, 65536, 10**9, 10**400, -(10**9), 0.5, 1e7, 1e9, 1e300, math.nan, math.inf, "",
    "cat", "x" * 300, "../../x.jpg", "/etc/passwd", "a\0b", "\udce9", "ü", [], {}, [[]], [1, 2, 3], [[1, 2], [3, 4]],
    {"a": {"b": []}}, [[[[[[]]]]]], ["0", "1"],
]  # fmt: skip
FORMATS = ("PNG", "JPEG", "TIFF", "GIF", "BMP", "WEBP", "EPS", "HEIF")
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
    with suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener()
    mode, file_format = chance.choice(MODES), chance.choice(FORMATS)
    image = Image.fromarray((values * 60 % 256).astype(np.uint8))
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = chance.choice((1, 3, 6, 8, 9, 65535))
    image = image.convert("L").convert(mode) if mode in ("I;16", "F") else image.convert(mode)
    try:
        image.save(buffer, file_format, **({"exif": exif} if file_format in ("JPEG", "PNG", "WEBP") else {}))
    except (OSError, ValueError, KeyError):  # a mode that the format does not have, or a format without its package
        image.convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


def photos(chance: random.Random, folder: Path) -> bytes:
    """Photos and masks."""
    content = damaged(an_image(chance), chance) if chance.random() < 0.9 else an_image(chance)
    for read in (read_photo, read_object, read_mask):
        quietly(partial(read, content))

    def same_size() -> None:
        assert photo_size(content) == read_photo(content).shape[:2]

    quietly(same_size)
    return content


def _polygon(chance: random.Random, size: tuple[int, int]) -> list[float]:
    """An outline, which in a long photo reaches far beyond it."""
    if size == (20, 30):
        return [chance.uniform(-5, 35) for _ in range(2 * chance.randint(3, 6))]
    reach = chance.choice((1, 4, 4.9, 1e-3))
    return [chance.uniform(-0.8, 1) * reach * side for _ in range(chance.randint(3, 6)) for side in size[::-1]]


def _runs(chance: random.Random) -> list[Any] | str:
    """Run lengths, some of whose sums wrap around to the number of pixels."""
    power = chance.choice((58, 59, 62, 63))
    runs: list[Any] = [2**power] * 2 ** (64 - power) + [600]  # the sum is 600 modulo 2**64
    if chance.random() < 0.3:
        runs[chance.randrange(len(runs))] = chance.choice((-(2**power), 0.5, 599, 2**31, "1", None))
    try:
        return pack(runs) if chance.random() < 0.5 else runs
    except (OverflowError, TypeError, ValueError):  # not a number of 64 bits
        return runs


def coco(chance: random.Random, folder: Path) -> bytes:
    """COCO instance files."""
    size = (20, 30) if chance.random() < 0.98 else chance.choice(((1, 89_000_000), (8_000_000, 9), (3, 20_000_000)))
    content: Any = {
        "images": [{"id": n, "file_name": f"{n}.jpg", "height": size[0], "width": size[1]} for n in (1, 2)],
        "categories": [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 3, "segmentation": [_polygon(chance, size)], "iscrowd": 0},
            {"id": 2, "image_id": 2, "category_id": 7, "segmentation": {"size": [20, 30], "counts": [5, 595]}},
            {"id": 3, "image_id": 2, "category_id": 7, "segmentation": {"size": [20, 30], "counts": "52ac"}},
            {"id": 4, "image_id": 1, "category_id": 7, "segmentation": {"size": [20, 30], "counts": _runs(chance)}},
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
        {"label": "dog", "shape_type": "mask", "points": chance.choice(([[2, 2], [4, 4]], [])),
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
    (folder / "a.txt").unlink(missing_ok=True)
    if chance.random() < 0.1:
        os.mkfifo(folder / "a.txt")
    else:
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
        archive.writestr("classes.txt", "cat\n" if chance.random() < 0.95 else b"\n" * (32 << 20))
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
        (folder / "set" / "images").mkdir()
        for part, scale in (("masks", 1), ("images", 99)):
            Image.fromarray(np.eye(9, dtype=np.uint8) * scale).save(folder / "set" / part / "a.png")
        fit = ["fit", str(folder / "set"), "-o", str(folder / "set" / "pets.emat"), "--no-learn"]
        run_line([*fit, "--model", "prototype", "--refine", "none"])
        os.mkfifo(folder / "pipe.png")
        (folder / "link.png").symlink_to(folder / "set" / "masks" / "a.png")
    things = ["", "-", "--", "x" * 300, "a\0b", str(folder), str(folder / "set"), str(folder / "pipe.png"), "/dev/null",
              "1e9", "-1", "nan", "png,coco", "gif", "--json", "--to", "--format", "--tiles", "100000", "--out",
              str(folder / "out"), "/proc/x", "--shapes", "polygons", "--tolerance", "inf",
              "caf\udce9.jpg", "~nobody-of-this-name/a", "1" * 5000, "--overwrite", "--threads", "--table",
              str(folder / "set" / "masks" / "a.png"), "--copy-photos", "--mask",
              "cat=" + "x" * 5000 + ":1", "--masks", "--html", "--region", "cat=otsu", "--within", "cat=cat",
              "--accept", "cat.area == 0", "cat.count <= " + "9" * 5000, " " * 3000, "--scale", "cat=1e9mm", "cat=2mm",
              "--pixel-size", "0.3um", "9" * 400 + "m", "--channels", "--project", "max", "--min-area", "3px",
              "--properties", "all", "csv,zarr,labels,rois,geojson", "--mask-values", "objects", "--touching",
              "--pages", "all", "--stretch", "1,2", str(folder / "set" / "classes.txt"), "--names", "--figures",
              str(folder / "link.png"), str(folder / "SET")]  # fmt: skip
    whole, photo = str(folder / "set"), str(folder / "set" / "images")  # and lines that are right as they are
    pets, out = str(folder / "set" / "pets.emat"), str(folder / chance.choice(("out", "results")))
    before = {path: path.read_bytes() for path in (folder / "set").rglob("*") if path.is_file()}
    verb = chance.choice(
        (["convert"], ["data", "check"], ["predict"], ["convert", str(folder / "set"), "--to", "coco"], ["fit"],
         ["measure"], ["measure", "--masks", str(folder / "set" / "masks"), str(folder / "set" / "masks"), "-o"],
         ["show"], ["report"], ["export"], ["tune"], ["tasks", "freeze", "--out"], ["eval", "--method", "prototype"],
         ["predict", pets, photo, "-o", out], ["measure", pets, photo, "-o", out], ["show", pets],
         ["convert", whole, "-o", out, "--to", "png"], ["fit", whole, "--model", "prototype", "--no-learn", "-o"])
    )  # fmt: skip
    line = [*verb, *(chance.choice(things) for _ in range(chance.randint(0, 5)))]
    code: object = 0
    try:
        main(line)
    except SystemExit as ended:
        code = ended.code
    if code not in (None, 0, 1, 2, 3):  # 1 is how `data check` says that it found faults
        raise AssertionError(f"{line} ended with {code}")
    if "--overwrite" not in line and any(path.read_bytes() != content for path, content in before.items()):
        raise AssertionError(f"{line} has overwritten its input")
    if unfinished := list(folder.rglob(f"{UNFINISHED}*")):
        raise AssertionError(f"{line} has left {unfinished[0]}")
    return json.dumps(line).encode()


def fitted(chance: random.Random, folder: Path) -> bytes:
    """Fitted files with tensors of another type, shape or range: they are refused, or their scores are numbers."""
    import torch

    from emat import Example, Segmenter
    from emat.cli.show import describe
    from emat.tensor_files import load_safetensors, read_metadata, write_tensors

    method = chance.choice(("prototype", "default"))
    good, path = folder / f"{method}.emat", folder / "changed.emat"
    photo = np.random.default_rng(0).integers(0, 255, (40, 50, 3), np.uint8)
    if not good.exists():
        # Where there is one example alone, no other one shows which shapes are right.
        other = Example(photo[::-1].copy(), {"cat": (5, 5, 30, 30), "dog": (30, 5, 45, 35)})
        shown = [Example(photo, {"cat": (5, 5, 30, 30)}), *([other] if method == "prototype" else [])]
        tiles = 2 if method == "prototype" else None
        Segmenter.load(method, device="cpu", refine=None, tiles=tiles).fit(shown).save(good)
    tensors, metadata = load_safetensors(good), read_metadata(good)
    own = [name for name in tensors if chance.random() < 0.1 or not name.startswith("head.")]
    for name in chance.sample(sorted(own), chance.choice((1, 1, 2))):
        value = tensors[name]
        way = chance.randrange(7)
        if way == 0:
            types = (torch.int32, torch.int64, torch.float16, torch.float64, torch.uint8, torch.bool, torch.bfloat16)
            tensors[name] = value.to(chance.choice(types))
        elif way == 1:
            tensors[name] = value.double().mul(chance.choice((1e4, 1e9, 1e20, 1e38, -1e38, 0))).to(value.dtype)
        elif way == 2 and value.is_floating_point():
            tensors[name] = value.clone().flatten().index_fill_(0, torch.tensor([0]), math.nan).reshape(value.shape)
        elif way == 3 and value.ndim:
            tensors[name] = value[: value.shape[0] // 2]
        elif way == 4:
            tensors[name] = value[None]
        elif way == 5 and value.ndim:
            tensors[name] = torch.cat([value] * 2, dim=chance.randrange(value.ndim))
        else:
            del tensors[name]
    if chance.random() < 0.2:
        key = chance.choice(sorted(metadata))
        metadata[key] = str(chance.choice(HOSTILE)).encode("utf-8", "replace").decode()
    elif chance.random() < 0.4:
        key = chance.choice(("decisions", "examples"))
        metadata[key] = json.dumps(altered(json.loads(metadata[key]), chance))
    write_tensors(path, {name: value.contiguous() for name, value in tensors.items()}, metadata)

    def predict() -> None:
        segmenter = Segmenter.load(path, device="cpu", refine=None)
        json.dumps(describe(segmenter, path))
        scores = segmenter.predict(photo).scores
        assert all(0 <= score <= 1 for score in scores.values()), scores

    quietly(predict)
    return path.read_bytes()


CONFIG = (
    '<View><Image name="i" value="$image"/><BrushLabels name="t" toName="i"><Label value="a"/></BrushLabels></View>'
)
_clients: list[Any] = []


def requests(chance: random.Random, folder: Path) -> bytes:
    """Requests to the server: everything that a client gets wrong is answered with 4xx."""
    from fastapi.testclient import TestClient

    from emat import Segmenter
    from emat.scale.requests import ServeOptions
    from emat.scale.serve import build_app

    if not _clients:
        app = build_app(Segmenter.load("prototype", device="cpu"), ServeOptions(label_studio=True))
        app.state.served.teach = lambda *_, **__: None
        _clients.append(TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False))
    sizes = {"original_width": 9, "original_height": 9}
    polygon = {"points": [[1, 1], [50, 50], [1, 50]], "polygonlabels": ["a"]}
    box = {"x": 1, "y": 1, "width": 20, "height": 30, "rectanglelabels": ["a"]}
    results = [
        {"type": "polygonlabels", "value": polygon, **sizes},
        {"type": "rectanglelabels", "value": box, **sizes},
        {
            "type": "brushlabels",
            "value": {"format": "rle", "rle": [0, 0, 1, 68, 57, 27], "brushlabels": ["a"]},
            **sizes,
        },
    ]
    task = {"id": 7, "data": {"image": "data:image/png;base64,AAAA"}}
    bodies: dict[str, Any] = {
        "/setup": {"schema": CONFIG, "hostname": "http://127.0.0.1:1", "access_token": "x"},
        "/predict": {"label_config": CONFIG, "tasks": [task]},
        "/webhook": {
            "action": "ANNOTATION_CREATED", "annotation": {"result": results}, "project": {"label_config": CONFIG},
            "task": task,
        },
    }  # fmt: skip
    address = chance.choice((*bodies, "/examples"))
    if address == "/examples":
        files = {chance.choice(("photo", "cat", "x" * 300, "a\nb")): an_image(chance) for _ in range(2)}
        sent = _clients[0].build_request("POST", address, files=files)
        content = damaged(sent.read(), chance)
        kind = sent.headers["content-type"]
    else:
        content, kind = _json(bodies[address], chance), "application/json"
    headers = {"content-type": kind}
    if chance.random() < 0.3:
        name = chance.choice(("authorization", "origin", "content-type", "host", "accept", "content-length"))
        headers[name] = chance.choice(
            ("", "Basic \xff", "http://localhost:3000", "null", "multipart/form-data", "9" * 99)
        )
    raw = [(name, value.encode("latin-1")) for name, value in headers.items()]
    answer = _clients[0].post(address, content=content, headers=raw)
    if answer.status_code >= 500:
        raise AssertionError(f"{address} answered {answer.status_code}: {answer.text[:200]}")
    return content


OME = {
    "pixels": {"DimensionOrder": "XYCZT", "Type": "uint8", "SizeX": 9, "SizeY": 8, "SizeC": 3, "SizeZ": 1, "SizeT": 1,
               "PhysicalSizeX": 0.5, "PhysicalSizeY": 0.5},
    "channel": {"SamplesPerPixel": 1, "Name": "DAPI"},
    "data": {"IFD": 0, "FirstC": 0, "PlaneCount": 3},
    "file": {"FileName": "b.tif"},
    "axis": {"Type": "lifetime", "Start": 0, "End": 3, "Step": 1},
}  # fmt: skip
TAGS = ((33550, 3), (33922, 6), (34264, 16), (34735, 8), (282, 1), (283, 1), (296, 1))


def stacks(chance: random.Random, folder: Path) -> bytes:
    """Stacks whose OME-XML, ImageJ description, tags or Zarr attributes say something else than they hold."""
    import tifffile

    if chance.random() < 0.2:
        return _zarr(chance, folder)
    said: Any = OME
    for _ in range(chance.choice((0, 1, 1, 2))):
        said = altered(said, chance)
    numbers = [chance.choice((3, 1, 0, -1, 2**31, 10**9, "x", 10**12)) for _ in range(3)]
    text = chance.choice(
        (_ome(said), _ome(said), "ImageJ=1.5\nimages={}\nchannels={}\nslices={}\n".format(*numbers), "")
    )
    tags = []
    for tag, count in TAGS if chance.random() < 0.4 else ():
        kind = chance.choice("dsHI")
        value = (
            chance.choice((0, 1, 2**16 - 1)) if kind in "HI" else chance.choice((0.0, 1.0, 1e308, math.nan, -1e-320))
        )
        count = chance.choice((count, 1, 5))
        tags.append((tag, kind, count, "x" * (count - 1) if kind == "s" else (value,) * count, True))
    path = folder / chance.choice(("a.ome.tif", "a.tif"))
    pages = np.random.default_rng(chance.randrange(2**32)).integers(0, 255, (3, 8, 9)).astype(np.uint8)
    description = text.encode("utf-8", "replace")
    try:
        tifffile.imwrite(path, pages, photometric="minisblack", description=description, metadata=None, extratags=tags)
    except (ValueError, TypeError, struct.error):  # tags that tifffile does not write
        tifffile.imwrite(path, pages, photometric="minisblack", description=description, metadata=None)
    if chance.random() < 0.3:
        path.write_bytes(damaged(path.read_bytes(), chance))
    _read_stack(path, chance)
    return path.read_bytes()


def _ome(said: Any) -> str:
    def part(name: str) -> str:
        values = said.get(name) if isinstance(said, dict) else None
        shown = values.items() if isinstance(values, dict) else ()
        return " ".join(f"{key}={quoteattr(str(value))}" for key, value in shown if str(key).isidentifier())

    # A series in several files, or with a further axis, only where it was altered.
    elsewhere = "" if part("file") == 'FileName="b.tif"' else f"<UUID {part('file')}>u</UUID>"
    further = 'Type="lifetime" Start="0" End="3" Step="1"'
    axis = (
        ""
        if part("axis") == further
        else f"<StructuredAnnotations><ModuloAlongZ {part('axis')}/></StructuredAnnotations>"
    )
    return (
        f'<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID="I">'
        f"<Pixels {part('pixels')}><Channel {part('channel')}/><TiffData {part('data')}>"
        f"{elsewhere}</TiffData></Pixels></Image>{axis}</OME>"
    )


def _zarr(chance: random.Random, folder: Path) -> bytes:
    import shutil

    from emat.images.stacks import write_zarr

    path = folder / "a.zarr"
    shutil.rmtree(path, ignore_errors=True)
    write_zarr(path, np.zeros((2, 8, 9), np.uint16), ["a", "b"], (0.5, "micrometer"))
    file = chance.choice([path / ".zattrs", path / "0" / ".zarray", path / ".zgroup"])
    content = altered(json.loads(file.read_text()), chance)
    file.write_text(json.dumps(content), encoding="utf-8")
    _read_stack(path, chance)
    return file.read_bytes()


def _read_stack(path: Path, chance: random.Random) -> None:
    from emat.images import Reading
    from emat.images.stacks import read_stack
    from emat.measure.units import ground_of, scale_in_file

    channels = chance.choice(((), ("0",), ("DAPI",), ("1" * 5000,), ("-1",)))
    reading = Reading(channels=channels, project=chance.choice(("none", "max", "mean")), max_pixels=10**6)
    quietly(partial(read_stack, path, reading))

    def known() -> None:
        scale = scale_in_file(path)
        assert scale is None or 0 < scale.in_unit("m").side < math.inf, scale

    quietly(known)
    if path.is_file():
        quietly(partial(read_photo, path, reading=reading))
        ground = ground_of(path)
        assert ground is None or np.isfinite(ground.matrix).all()


def hub(chance: random.Random, folder: Path) -> bytes:
    """Addresses on the hub: none leads out of the folder of copies, and none is asked for without a connection."""
    from emat.inference.hub import fetch_segmenter

    words = ["me", "..", ".", "a@b", "x" * 300, "%2e%2e", "a\0b", "ü", "-", "", "@", "main", "a\nb", "\\", "C:"]
    address = "hf://" + chance.choice("/@").join(chance.choice(words) for _ in range(chance.randint(1, 4)))
    os.environ["EMAT_OFFLINE"] = "1"
    quietly(partial(fetch_segmenter, address))
    home = Path(os.environ["EMAT_HOME"]).resolve()
    outside = [path for path in folder.rglob("*.lock") if home / "hub" not in path.resolve().parents]
    assert not outside, outside
    return address.encode(errors="replace")


_studios: list[Any] = []


def studio(chance: random.Random, folder: Path) -> bytes:
    """Requests to the studio: dropped files, buttons, paint and clicks that no page sends."""
    import http.client

    from emat.inference.segmenter import Segmenter
    from emat.studio.actions import ACTIONS
    from emat.studio.server import serving
    from tests.inference.colour_method import ColourMethod

    if not _studios:
        server = serving(Segmenter(ColourMethod()), private=True)
        _studios.extend((server, server.__enter__().removeprefix("http://").split("/")[0], {}))
    _, host, cookies = _studios[:3]

    def ask(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(host, timeout=60)
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in {"Content-Length": str(len(body)), **cookies}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        content = answer.read()
        if cookie := answer.headers.get("Set-Cookie"):
            cookies["Cookie"] = cookie.split(";")[0]
        connection.close()
        return answer.status, content

    if "Cookie" not in cookies:
        _studios.append(json.loads(ask("POST", "/api/session", b"{}")[1])["session"])
    start = f"/api/{_studios[3]}"
    values = {"text": "cat, dog", "number": 1, "key": 1, "index": 0, "value": 0.5, "parts": ["png", "scores", "emat"],
              "points": [{"x": 3, "y": 4, "inside": 1}], "box": {"left": 1, "top": 1, "right": 5, "bottom": 5},
              "objects": True}  # fmt: skip
    key = chance.choice(("1", "2", "0", "-1", "9" * 5000, "x", "%00"))
    kind = chance.choice(("drafts", "photos", "examples", "..", "x"))
    name = quote(
        chance.choice(("a.png", "a_mask.png", "a.json", "x" * 300, "😀" * 80, "../a.png", "a\0b.png", "=c().tif"))
    )
    act = chance.choice([*ACTIONS, "x"])
    if act == "demo":  # it fits, which takes long
        act = "add-classes"
    where = chance.choice(
        [f"{start}/act/{act}"] * 4
        + [f"{start}/upload?to={to}&name={name}" for to in ("examples", "photos", "fitted", "x")]
        + [f"{start}/{kind}/{key}/{what}" for what in ("click", "similar", "paint?then=example", "paint?then=correct")]
        + [f"{start}/export", f"{start}/measure", "/api/session", f"/api/{key}/state"]
    )
    if where.endswith("/measure"):
        values = {"unit": "points", "length": "10mm", "points": [1, 2, 3, 4], "inner": "cat", "outer": "dog",
                  "smallest": "20px", "accept": ["cat.area == 0"], "border": "drop"}  # fmt: skip
    is_picture = any(part in where for part in ("upload", "paint", "similar"))
    body = an_image(chance) if is_picture else _json(values, chance)
    if "upload" in where and chance.random() < 0.4:
        body = damaged(body, chance) if chance.random() < 0.5 else _json({"shapes": [], "imagePath": "a.png"}, chance)
    requests = [("POST", where, body)]
    requests += [
        ("GET", f"{start}/{kind}/{key}/{what}", b"")
        for what in ("small.jpg", "large.jpg", "result", "labels", "found", "measure", "measured.jpg", "photo.png")
    ]
    requests.append(("GET", f"{start}/{chance.choice(('measure', 'report.html', 'download', 'mobilesam'))}", b""))
    for method, path, sent in [*requests, ("POST", f"{start}/act/sort-drop", b"{}"), ("GET", f"{start}/state", b"")]:
        status, content = ask(method, path, sent)
        if status >= 500 and status != 503:  # 503 says that there are too many tabs
            raise AssertionError(f"{method} {path[:200]} answered {status}: {content[:200]!r}")
    return body


_videos: dict[str, bytes] = {}


def videos(chance: random.Random, folder: Path) -> bytes:
    """Videos: every frame is read, or refused."""
    import av

    from emat.images import Reading
    from emat.images.stacks import open_stack

    suffix = chance.choice((".mp4", ".mov", ".avi", ".mkv", ".webm"))
    path = folder / f"a{suffix}"
    if suffix not in _videos:
        with av.open(str(path), "w") as container:
            stream = container.add_stream("vp8" if suffix == ".webm" else "mpeg4", rate=10)
            stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
            for number in range(4):
                shown = np.full((32, 48, 3), 60 * number, np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(shown, format="rgb24")))
            container.mux(stream.encode())
        _videos[suffix] = path.read_bytes()
    content = damaged(_videos[suffix], chance)
    if chance.random() < 0.1:  # the content of another container
        content = chance.choice([*_videos.values(), an_image(chance), b"#EXTM3U\n/etc/passwd\n"])
    path.write_bytes(content)

    def read() -> None:
        stack = open_stack(path, Reading(max_pixels=10**6))
        assert stack is not None
        for plane in stack.planes("none")[:6]:
            quietly(partial(stack.values, plane, "none"))

    quietly(read)
    return content


def voc(chance: random.Random, folder: Path) -> bytes:
    """Trees of PASCAL VOC: lists of names, masks apart from photos, names that clash."""
    import shutil

    from emat.datasets.checking import inspect_all, report

    root = folder / "VOC"
    shutil.rmtree(root, ignore_errors=True)
    photos_in, masks_in, lists_in = (
        "JPEGImages",
        chance.choice(("SegmentationClass", "SegmentationClassAug")),
        "ImageSets",
    )
    names = ["a", "b", chance.choice(("A", "a.b", "x" * 200, "ü", "a b", "-"))]
    for number, name in enumerate(names):
        for part, suffix in ((photos_in, ".jpg"), (masks_in, ".png")):
            (root / part).mkdir(parents=True, exist_ok=True)
            buffer = io.BytesIO()
            shown = Image.fromarray(np.full((9, 8), number * 99, np.uint8))
            shown.save(buffer, "JPEG" if suffix == ".jpg" else "PNG")
            content = buffer.getvalue() if chance.random() < 0.8 else damaged(an_image(chance), chance)
            if chance.random() < 0.95:
                (root / part / f"{name}{suffix}").write_bytes(content)
    (root / lists_in / "Segmentation").mkdir(parents=True)
    words = [chance.choice((*names, "../a", "/etc/passwd", "a\0b", "x" * 5000, "")) for _ in range(5)]
    text = chance.choice(("\n", " 1\n", "\r\n", "\t")).join(words).encode()
    (root / lists_in / "Segmentation" / "train.txt").write_bytes(
        damaged(text, chance) if chance.random() < 0.3 else text
    )
    if chance.random() < 0.3:
        (root / "classes.txt").write_bytes(damaged(b"0 background\n1 cat\n255 void\n", chance))
    apart = root / masks_in if chance.random() < 0.3 else None

    def read() -> None:
        dataset = open_dataset(root / photos_in if apart else root, masks=apart)
        json.dumps(repr(report(dataset, inspect_all(dataset))))
        for name in dataset.names:
            quietly(partial(dataset.mask, name))

    quietly(read)
    return text


def measured(chance: random.Random, folder: Path) -> bytes:
    """Values of mask images that are measured: classes, numbers of objects, colours, deep and signed numbers."""
    import shutil

    import tifffile

    from emat.measure.mask_files import MaskFiles
    from emat.measure.measuring import MeasureOptions, measure
    from emat.measure.scene import Filters
    from emat.measure.units import Scale

    root = folder / "masks"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    size = (chance.randint(1, 20), chance.randint(1, 20))
    kind = chance.choice(("uint8", "uint16", "int16", "int32", "uint32", "float32", "image", "empty"))
    path = root / chance.choice(("a.png", "a.tif", "a_mask.png", "a_cp_masks.tif", "a.bmp", "a.gif"))
    values: Any = np.zeros(size, np.uint8)
    if kind == "image":
        path.write_bytes(damaged(an_image(chance), chance) if chance.random() < 0.3 else an_image(chance))
    elif kind != "empty":
        most = chance.choice((1, 2, 3, 254, 255, 256, 65535, 2**31 - 1, 2**32 - 1))
        random_values = np.random.default_rng(chance.randrange(2**32)).integers(-(most // 9), most + 1, size)
        blocks = np.kron(random_values[:2, :2], np.ones((12, 12), np.int64))[: size[0], : size[1]]
        values = (blocks if chance.random() < 0.7 else random_values).astype(kind)
        if kind == "float32" and chance.random() < 0.5:
            values.flat[0] = chance.choice((math.nan, math.inf, -math.inf))
        try:
            Image.fromarray(values).save(path)
        except (OSError, TypeError, ValueError):  # a type that the format does not have
            path = path.with_suffix(".tif")
            tifffile.imwrite(path, values, photometric="minisblack")
    if chance.random() < 0.5:
        (root / "classes.txt").write_text(chance.choice(("cat\ndog\n", "1 cat\n", "", "cat\ncat\n", "x\n" * 70000)))
    shape = np.zeros(size, np.uint8).shape if chance.random() < 0.9 else (7, 7)
    photo = np.random.default_rng(0).integers(0, 255, (*shape, 3)).astype(np.uint8)
    options = MeasureOptions(
        chance.choice((("size",), ("size", "shape", "skeleton", "intensity", "texture"))),
        chance.choice((None, Scale(0.5, "mm", "ruler"))),
        filters=Filters(None, chance.choice(("keep", "drop")), chance.random() < 0.5),
    )

    def read() -> None:
        masks = MaskFiles(root, chance.choice((None, "classes", "objects")))
        masks.belong_to(["a.jpg"])
        scene = masks.scene("a.jpg", photo, chance.choice(("split", "together")))
        found = measure(scene, options)
        for name in ("objects", "photos"):
            json.dumps(found.table(name), allow_nan=False)
        quietly(partial(masks.region, "a.jpg"))

    quietly(read)
    return path.read_bytes() if path.is_file() else b""


_results: list[Any] = []


def results(chance: random.Random, folder: Path) -> bytes:
    """Files that `emat report`, `emat eval --tasks` and `emat tasks` read: results, tasks and fold lists."""
    import pickle

    from emat.cli import main
    from emat.datasets.fold_lists import fold_lists_in, read_fold_list, read_folds
    from emat.tasks.task import read_task_file

    if not _results:
        make_set(folder / "good")
        said = ["--data", str(folder / "good"), "--folds", "2"]
        for line in (
            ["eval", *said, "--method", "prototype", "--tasks", "2", "--device", "cpu", "-o", str(folder / "r.json")],
            ["tasks", "freeze", *said, "--fold", "0", "--tasks", "3", "-o", str(folder / "t.jsonl")],
        ):
            with suppress(SystemExit):
                main(line)
        lines = (folder / "t.jsonl").read_text().splitlines()
        _results.extend((json.loads((folder / "r.json").read_text()), [json.loads(line) for line in lines]))
    kind = chance.randrange(3)
    if kind == 0:
        text = _json(_results[0], chance)
        (folder / "x.json").write_bytes(text)
        words = ["report", str(folder / "x.json"), *chance.choice(([], ["-o", str(folder / "t.csv")], ["-o", "t.tex"]))]
        run_line([*words, "--overwrite"])
    elif kind == 1:
        text = b"\n".join(
            _json(line, chance) if chance.random() < 0.3 else json.dumps(line).encode() for line in _results[1]
        )
        (folder / "x.jsonl").write_bytes(text)
        quietly(lambda: read_task_file(folder / "x.jsonl"))
    else:
        path = folder / "pascal" / "val" / chance.choice(("fold0.txt", "fold0.pkl", "fold0.list"))
        path.parent.mkdir(parents=True, exist_ok=True)
        entries = [chance.choice(("2007_000032__01", "a__1", "a__0", "__", "a__" + "9" * 5000, "../x__1"))] * 3
        header = ["# emat fold list", "# dataset: pascal", "# fold: 0", "# split: val", "# classes: 1", "# counts: 1"]
        listed = altered({0: ["a", "b"], 1: ["c"]}, chance)
        text = {
            ".txt": "\n".join(entries).encode(),
            ".pkl": pickle.dumps(listed, chance.choice((0, 2, 4))),
            ".list": "\n".join([*header, "# sha256: 0", "a\t1", *entries]).encode(),
        }[path.suffix]
        text = damaged(text, chance) if chance.random() < 0.5 else text
        path.write_bytes(text)
        quietly(lambda: read_fold_list(path))
        quietly(lambda: fold_lists_in(folder / "pascal"))
        quietly(lambda: read_folds(path, ["cat", "dog"]))
        path.unlink()
    return text


def settings(chance: random.Random, folder: Path) -> bytes:
    """Options of a training in YAML, and the records that commands leave in folders to go on from."""
    from emat.formats.writing import open_writer
    from emat.training.options import TrainingOptions, as_plain, config_text, from_plain, read_config

    path = folder / "train.yaml"
    if chance.random() < 0.5:
        plain: Any = as_plain(TrainingOptions(data=(Path("x"),)))
        text = json.dumps(altered(plain, chance)).encode()
        text = chance.choice(
            (text, b"a: &a [*a]\n" + text, b"? " * 3000, b"!!python/object:os.system x", b"&a [" * 900)
        )
        path.write_bytes(damaged(text, chance) if chance.random() < 0.2 else text)
        quietly(lambda: config_text(from_plain(read_config(path))))
        return text
    out, label_map = folder / "out", np.zeros((4, 4), np.uint8)
    for name in ("a.png", "b.png"):  # begun, as if it was killed
        with suppress(KeyboardInterrupt), open_writer("png,coco", out, ["cat"], run="1") as writer:
            writer.done(lambda _: "state")
            writer.write(name, label_map, None, None, None, {}, "state")
            raise KeyboardInterrupt
    hidden = [path for path in out.iterdir() if path.name.startswith(".emat-") and path.is_file()]
    path = chance.choice(sorted(hidden))
    lines = path.read_bytes().splitlines()
    lines = [_json(_parsed(line), chance) if chance.random() < 0.5 and line else line for line in lines]
    text = b"\n".join(lines) + chance.choice((b"\n", b""))
    path.write_bytes(damaged(text, chance) if chance.random() < 0.3 else text)

    def go_on() -> None:
        with open_writer("png,coco", out, ["cat"], run="1") as writer:
            writer.done(lambda _: "state")
            writer.write("c.png", label_map, None, None, None, {}, "state")

    quietly(go_on)
    return text


def _parsed(line: bytes) -> Any:
    """The JSON of a line, which may have a checksum before it."""
    return json.loads(line if line[:1] in b"{[" else line.partition(b" ")[2])


_saved: list[Any] = []


def sessions(chance: random.Random, folder: Path) -> bytes:
    """Sessions that the studio keeps: one that is damaged is refused, or all of it can be shown."""
    import shutil

    from emat.inference.segmenter import Segmenter
    from emat.studio import examples
    from emat.studio.session import Session
    from emat.studio.session_json import FILE, load_session, save_examples, save_session, saved_sessions, state
    from tests.inference.colour_method import ColourMethod

    kept, good = folder / "sessions", folder / "good"
    if not _saved:
        session = Session("s", "me", good / "s", Segmenter(ColourMethod()))
        examples.add_classes(session, "cat, dog")
        for name in ("a.png", "b.png"):
            picture = io.BytesIO()
            Image.fromarray(np.full((9, 8, 3), 99, np.uint8)).save(picture, "PNG")
            examples.add_photo(session, picture.getvalue(), name)
        save_session(session)
        save_examples(session)
        _saved.append(json.loads((good / "s" / FILE).read_text()))
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(good, kept)
    text = _json(_saved[0], chance)
    (kept / "s" / FILE).write_bytes(text)
    saved_sessions(kept, "me")

    def show() -> None:
        session = load_session(kept / "s", lambda: Segmenter(ColourMethod()), lambda path: Segmenter.load(path))
        json.dumps(state(session), allow_nan=False)

    quietly(show)
    return text


def make_set(root: Path) -> None:
    """A small data set of kind `folder`."""
    for part in ("images", "masks"):
        (root / part).mkdir(parents=True)
    (root / "classes.txt").write_text("cat\ndog\n")
    for number in range(4):
        mask = np.zeros((20, 30), np.uint8)
        mask[2:10, 2:15], mask[12:18, 10:25] = 1, 2
        Image.fromarray(mask).save(root / "masks" / f"{number}.png")
        Image.fromarray(np.repeat(mask[..., None] * 99, 3, axis=2)).save(root / "images" / f"{number}.png")


def run_line(line: list[str]) -> None:
    """Run a command line; it may end with 0, or with 2 and a sentence."""
    from emat.cli import main

    code: object = 0
    try:
        main(line)
    except SystemExit as ended:
        code = ended.code
    if code not in (None, 0, 2):
        raise AssertionError(f"{line} ended with {code}")


def quietly(read: Callable[[], object]) -> None:
    """Read something. An error of one line is allowed."""
    from emat.errors import EmatError

    try:
        read()
    except EmatError as error:
        if not str(error) or "\n" in str(error):
            raise AssertionError(f"an error is one line, not {str(error)!r}") from None


_INPUTS = (photos, coco, labelme, yolo, voc, archives, stacks, videos, measured)
_OWN_FILES = (weights, fitted, results, settings, sessions)
_DOORS = (arguments, requests, hub, studio)
KINDS: dict[str, Kind] = {kind.__name__: kind for kind in (*_INPUTS, *_OWN_FILES, *_DOORS)}
