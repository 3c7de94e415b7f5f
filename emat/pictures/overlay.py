"""Overlays: photos with their label maps, a tint and a contour for each class, and a legend."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from emat.files import whole_file, without_suffix
from emat.formats.drawing import LabelMap
from emat.formats.writing import Writer
from emat.images import Pixels
from emat.pictures.palette import VOID_COLOUR, colour_of

TINT = 0.42  # the share of the class colour inside a region
CONTOUR = 1 / 350  # width of the contour, relative to the shorter side of the photo
HALO = 0.65  # the share of black just outside a contour, which makes it visible on any background
LETTERS = 1 / 32  # height of the legend's letters, relative to the shorter side of the photo
SMALLEST_LETTERS = 10  # pixels
QUALITY = 92


def draw_overlay(photo: Pixels, label_map: LabelMap, names: Mapping[int, str], *, legend: bool = True) -> Image.Image:
    """Draw a photo with its label map.

    Args:
        photo: Pixels, (H, W, 3) uint8.
        label_map: Class indices, (H, W).
        names: The names of the class indices, for the legend.
        legend: Whether to draw a legend of the classes in the label map.

    Returns:
        The picture, at the size of the photo.
    """
    width = max(1.0, min(photo.shape[:2]) * CONTOUR)
    picture = photo.astype(np.float32)
    present = [index for index in np.flatnonzero(np.bincount(label_map.ravel())).tolist() if index]
    for index in present:
        _paint(picture, label_map == index, colour_of(index), width)
    image = Image.fromarray(picture.round().clip(0, 255).astype(np.uint8))
    if legend and present:
        _draw_legend(image, [(names.get(index, "void"), colour_of(index)) for index in present])
    return image


def save_jpeg(image: Image.Image, path: Path) -> None:
    """Save a picture as JPEG, in a quality that keeps text and contours sharp, whole or not at all."""
    with whole_file(path) as unfinished:
        image.save(unfinished, "JPEG", quality=QUALITY, subsampling=0)


class OverlayWriter(Writer):
    """Writes `<name>.jpg`, the photo with coloured masks, contours and a legend."""

    format = "overlay"
    needs_photo = True

    def result_path(self, name: str) -> str:
        """Return the path of the picture."""
        return f"{without_suffix(name)}.jpg"

    def _write(self, name: str, label_map: LabelMap, photo: Pixels | None, photo_file: Path | None) -> dict[str, Any]:
        assert photo is not None
        overlay = draw_overlay(photo, label_map, dict(enumerate(self.classes, start=1)))
        save_jpeg(overlay, self.out / self.result_path(name))
        return {}


def _paint(picture: NDArray[np.float32], mask: NDArray[np.bool_], colour: tuple[int, int, int], width: float) -> None:
    """Tint the pixels of `mask` (H, W) and draw their contour. This changes `picture` (H, W, 3)."""
    margin = int(np.ceil(4 * width))
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    window = (
        slice(max(0, rows[0] - margin), rows[-1] + margin + 1),
        slice(max(0, columns[0] - margin), columns[-1] + margin + 1),
    )
    inside = mask[window]
    drawn = Image.fromarray(inside.astype(np.uint8) * 255)
    near = np.asarray(drawn.filter(ImageFilter.GaussianBlur(width)), np.float32) / 255  # 1/2 on the border
    halo = np.where(inside, 0, HALO * np.clip(3 * near, 0, 1))[..., None]
    contour = np.where(inside, np.clip(4.5 - 5 * near, 0, 1), 0)[..., None]
    if colour == VOID_COLOUR:  # void often surrounds objects; a contour of it would hide theirs
        halo, contour = np.zeros_like(halo), np.zeros_like(contour)
    part = picture[window]
    ground = part * (1 - halo)
    tinted = ground + (np.array(colour, np.float32) - ground) * np.where(inside, TINT, 0)[..., None]
    part[...] = tinted + (np.array(colour, np.float32) - tinted) * contour


def _draw_legend(image: Image.Image, entries: list[tuple[str, tuple[int, int, int]]]) -> None:
    """Draw a dark panel at the lower left, with a coloured square and a name for each entry."""
    letters = max(SMALLEST_LETTERS, round(min(image.size) * LETTERS))
    font = ImageFont.load_default(letters)
    line, pad = round(letters * 1.5), round(letters * 0.6)
    room = max(1, (image.height - 4 * pad) // line)
    if len(entries) > room:
        entries = [*entries[: room - 1], (f"and {len(entries) - room + 1} more", VOID_COLOUR)]
    wide = round(max(font.getlength(name) for name, _ in entries)) + letters + 3 * pad
    tall = line * len(entries) + pad
    panel = Image.new("RGBA", (wide, tall))
    draw = ImageDraw.Draw(panel)
    draw.rounded_rectangle((0, 0, wide - 1, tall - 1), radius=pad, fill=(16, 18, 24, 190))
    for number, (name, colour) in enumerate(entries):
        middle = pad / 2 + line * (number + 0.5)
        square = (pad, middle - letters * 0.4, pad + letters * 0.8, middle + letters * 0.4)
        draw.rounded_rectangle(square, radius=letters * 0.2, fill=(*colour, 255))
        draw.text((2 * pad + letters * 0.8, middle), name, fill="white", font=font, anchor="lm")
    image.paste(panel, (pad, image.height - tall - pad), panel)  # a panel that is too large is cut off
