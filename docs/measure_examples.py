"""Makes the photos of the tutorials on measuring, whose true values are known, and their pictures.

    python docs/measure_examples.py FOLDER        # examples and photos of leaves, nuclei and cracks

Each has a folder of examples for `emat fit`, a folder of photos for `emat measure`, and the truth in `truth.json`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from scipy import ndimage

COIN = 23.25  # mm, the diameter of a euro
NUCLEUS_PIXEL = 0.325  # um
EXAMPLES, PHOTOS = 4, 3

Mask = NDArray[np.bool_]


def noise(random: np.random.Generator, size: tuple[int, int], smooth: float, strength: float) -> NDArray[np.float64]:
    """Return smooth noise of a standard deviation."""
    field = ndimage.gaussian_filter(random.normal(size=size), smooth)
    return np.asarray(strength * field / field.std())


def save_label_map(folder: Path, name: str, classes: tuple[str, ...], masks: dict[str, Mask]) -> None:
    """Write a label map and the names of its classes."""
    size = next(iter(masks.values())).shape
    label_map = np.zeros(size, np.uint8)
    for index, each in enumerate(classes, start=1):
        label_map[masks[each]] = index
    (folder / "masks").mkdir(parents=True, exist_ok=True)
    Image.fromarray(label_map).save(folder / "masks" / f"{name}.png")
    (folder / "classes.txt").write_text("\n".join(classes) + "\n")


def leaf(seed: int) -> tuple[NDArray[np.uint8], dict[str, Mask], dict[str, float]]:
    """A leaf with lesions and a coin on grey paper, from a distance that differs."""
    random = np.random.default_rng(seed)
    size = (420, 560)
    y, x = np.mgrid[: size[0], : size[1]]
    zoom = random.uniform(0.85, 1.1)
    angle = random.uniform(-0.3, 0.3)
    along = ((x - 225) * np.cos(angle) + (y - 215) * np.sin(angle)) / zoom
    across = (-(x - 225) * np.sin(angle) + (y - 215) * np.cos(angle)) / zoom
    shape = (np.abs(along) < 190) & (np.abs(across) < 105 * np.cos((along / 190).clip(-1, 1) * np.pi / 2) ** 0.8)
    spots = np.zeros(size, bool)
    for _ in range(int(random.integers(5, 12))):
        place_x, place_y = random.uniform(90, 360), random.uniform(150, 280)
        spots |= np.hypot(x - place_x, (y - place_y) * 1.1) < zoom * random.uniform(7, 20)
    lesion = shape & (ndimage.gaussian_filter(spots.astype(float), 1.5) > 0.5)
    radius = 44 * zoom
    coin = np.hypot(x - 490, y - 80) < radius
    photo = np.full((*size, 3), (205, 207, 210), np.float64)
    photo[shape] = (74, 132, 58)
    photo[shape & (np.abs(across) < 2.2)] = (120, 165, 95)
    photo[lesion] = (128, 88, 46)
    photo[coin] = (168, 150, 96)
    photo[coin & (np.hypot(x - 490, y - 80) > 0.78 * radius)] = (150, 150, 152)
    photo = ndimage.gaussian_filter(photo, (0.8, 0.8, 0))
    photo += noise(random, size, 6, 5)[..., None] + random.normal(0, 3, photo.shape)
    truth = {"severity": 100 * lesion.sum() / shape.sum(), "leaf_mm2": shape.sum() * (COIN / (2 * radius)) ** 2}
    masks = {"leaf": shape & ~lesion, "lesion": lesion, "coin": coin}
    return photo.clip(0, 255).astype(np.uint8), masks, truth


def nuclei(seed: int) -> tuple[NDArray[np.uint16], Mask, dict[str, float]]:
    """Nuclei in two channels of 16 bits: DAPI shows them, GFP is bright in some."""
    random = np.random.default_rng(seed)
    size = (240, 240)
    y, x = np.mgrid[: size[0], : size[1]]
    mask = np.zeros(size, bool)
    dapi, gfp = np.full(size, 400.0), np.full(size, 300.0)
    positive = count = 0
    centres: list[tuple[float, float]] = []
    while count < 22:
        cy, cx = random.uniform(18, 222, 2)
        if any(np.hypot(cy - other_y, cx - other_x) < 32 for other_y, other_x in centres):
            continue
        centres.append((cy, cx))
        angle, long, short = random.uniform(0, np.pi), random.uniform(11, 14), random.uniform(8, 10)
        u = (x - cx) * np.cos(angle) + (y - cy) * np.sin(angle)
        v = -(x - cx) * np.sin(angle) + (y - cy) * np.cos(angle)
        inside = (u / long) ** 2 + (v / short) ** 2 < 1
        mask |= inside
        dapi[inside] = random.uniform(5000, 9000)
        bright = random.random() < 0.4
        positive += bright
        gfp[inside] = random.uniform(9000, 12000) if bright else random.uniform(600, 900)
        count += 1
    planes = np.stack([dapi, gfp])
    planes = ndimage.gaussian_filter(planes, (0, 1.2, 1.2))
    planes += random.normal(0, 120, planes.shape)
    truth = {"count": count, "positive": positive, "area_um2": mask.sum() * NUCLEUS_PIXEL**2}
    return planes.clip(0, 65535).astype(np.uint16), mask, truth


def crack(seed: int, with_crack: bool = True) -> tuple[NDArray[np.uint8], Mask, dict[str, float]]:
    """Concrete with a crack of known width; 0.1 mm a pixel."""
    random = np.random.default_rng(seed)
    size = (320, 420)
    photo = 150 + noise(random, size, 8, 7) + noise(random, size, 1, 5)
    width = float(random.uniform(5, 10))
    mask = np.zeros(size, bool)
    if with_crack:
        image = Image.new("L", (size[1] * 4, size[0] * 4))
        draw = ImageDraw.Draw(image)
        points = [(40 + 34 * step, 160 + 26 * np.sin(step / 1.9) + random.uniform(-9, 9)) for step in range(11)]
        scaled = [(4 * px, 4 * py) for px, py in points]
        draw.line(scaled, fill=255, width=round(4 * width), joint="curve")
        mask = np.asarray(image.resize((size[1], size[0]), Image.Resampling.BOX)) > 127
    dark = ndimage.gaussian_filter(mask.astype(float), 0.7)
    photo = photo * (1 - 0.62 * dark)
    colours = np.stack([photo, photo * 0.99, photo * 0.96], axis=2) + random.normal(0, 2, (*size, 3))
    return colours.clip(0, 255).astype(np.uint8), mask, {"width_mm": 0.1 * width if with_crack else 0.0}


def write_all(folder: Path) -> None:
    """Write all examples and photos, and what is true of them."""
    truth: dict[str, dict[str, Any]] = {"leaves": {}, "nuclei": {}, "cracks": {}}
    for number in range(EXAMPLES + PHOTOS):
        is_example = number < EXAMPLES
        name = f"{'example' if is_example else 'photo'}-{number}"
        for kind in truth:
            (folder / kind / ("examples/images" if is_example else "photos")).mkdir(parents=True, exist_ok=True)
        places = {kind: folder / kind / ("examples/images" if is_example else "photos") for kind in truth}
        photo, masks, known = leaf(number)
        Image.fromarray(photo).save(places["leaves"] / f"{name}.jpg", quality=95)
        truth["leaves"][f"{name}.jpg"] = known
        planes, mask, known = nuclei(number)
        metadata = {"axes": "CYX", "Channel": {"Name": ["DAPI", "GFP"]}}
        for axis in "XY":
            metadata[f"PhysicalSize{axis}"], metadata[f"PhysicalSize{axis}Unit"] = NUCLEUS_PIXEL, "µm"  # type: ignore[assignment]
        tifffile.imwrite(
            places["nuclei"] / f"{name}.ome.tif", planes, ome=True, metadata=metadata, photometric="minisblack"
        )
        truth["nuclei"][f"{name}.ome.tif"] = known
        surface, line, width = crack(number, with_crack=number != EXAMPLES + PHOTOS - 1)
        Image.fromarray(surface).save(places["cracks"] / f"{name}.jpg", quality=95)
        truth["cracks"][f"{name}.jpg"] = width
        if is_example:
            save_label_map(folder / "leaves" / "examples", name, ("leaf", "lesion", "coin"), masks)
            save_label_map(folder / "nuclei" / "examples", f"{name}.ome", ("nucleus",), {"nucleus": mask})
            save_label_map(folder / "cracks" / "examples", name, ("crack",), {"crack": line})
    for kind, known in truth.items():
        (folder / kind / "truth.json").write_text(json.dumps(known, indent=2))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write_all(Path(sys.argv[1]))
