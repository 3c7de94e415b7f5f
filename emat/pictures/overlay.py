"""Overlays: photos with their label maps, as single pictures and as contact sheets.

In an overlay, each class has a tint and a contour, and a legend names the classes. A contact sheet is a page of small
overlays, each with the name of its photo below.
"""

import io
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont, ImageOps

from emat.files import without_suffix
from emat.formats.drawing import LabelMap
from emat.formats.writing import Writer
from emat.images import MAX_PIXELS, VOID, Pixels, resize_mask, resize_photo
from emat.images.sources import load_image
from emat.outputs import whole_file
from emat.pictures.palette import VOID_COLOUR, colour_of

Font: TypeAlias = ImageFont.FreeTypeFont | ImageFont.ImageFont

TINT = 0.42  # the share of the class colour inside a region
CONTOUR = 1 / 350  # width of the contour, relative to the shorter side of the photo
HALO = 0.65  # the share of black just outside a contour, which makes it visible on any background
LETTERS = 1 / 32  # height of the legend's letters, relative to the shorter side of the photo
SMALLEST_LETTERS = 10  # pixels
QUALITY, PAGE_QUALITY = 92, 88

# Of contact sheets; lengths in pixels.
TILE = 300  # the longer side of each overlay
COLUMNS, ROWS = 5, 6
GAP, CAPTION, LEGEND = 14, 26, 40
SHEET_LETTERS = 14
SHEET_GROUND, SHEET_INK = (250, 250, 248), (40, 40, 44)
TILES = ".emat-tiles"  # the folder of the small overlays until the sheets are complete


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


def draw_numbers(image: Image.Image, centres: Mapping[int, tuple[float, float]]) -> None:
    """Write numbers on a picture, each with its middle at its centre (x, y): white with a black rim, for any ground."""
    letters = ImageFont.load_default(max(SMALLEST_LETTERS, round(min(image.size) * LETTERS)))
    pen = ImageDraw.Draw(image)
    for number, centre in centres.items():
        pen.text(
            centre, str(number), fill=(255, 255, 255), font=letters, anchor="mm", stroke_width=2, stroke_fill=(0, 0, 0)
        )


def save_jpeg(image: Image.Image, path: Path) -> None:
    """Save a picture as JPEG, in a quality that keeps text and contours sharp, whole or not at all."""
    with whole_file(path) as unfinished:
        image.save(unfinished, "JPEG", quality=QUALITY, subsampling=0)


def as_jpeg(image: Image.Image) -> bytes:
    """Return a picture as JPEG for a page, smaller than `save_jpeg` makes it."""
    data = io.BytesIO()
    image.save(data, "JPEG", quality=PAGE_QUALITY)
    return data.getvalue()


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


class SheetWriter(Writer):
    """Writes `sheet-1.jpg`, `sheet-2.jpg` and so on, each with thirty photos and a legend."""

    format = "sheet"
    needs_photo = True

    def result_path(self, name: str) -> str:
        """Return the path of a small overlay, which is removed when the sheets are complete."""
        return f"{TILES}/{name}.jpg"

    def _write(self, name: str, label_map: LabelMap, photo: Pixels | None, photo_file: Path | None) -> dict[str, Any]:
        assert photo is not None
        height, width = photo.shape[:2]
        scale = TILE / max(height, width)
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        tiny = resize_mask(label_map, size)
        small = draw_overlay(resize_photo(photo, size), tiny, {}, legend=False)
        save_jpeg(small, self.out / self.result_path(name))
        return {"present": [index for index in np.unique(tiny).tolist() if index not in (0, VOID)]}

    def _finish(self) -> None:
        for number, page in enumerate(self._pages(), start=1):
            save_jpeg(self._page(page), self.out / f"sheet-{number}.jpg")
        shutil.rmtree(self.out / TILES, ignore_errors=True)

    def _pages(self) -> Iterator[list[dict[str, Any]]]:
        rest = self._records()
        while page := list(islice(rest, COLUMNS * ROWS)):
            yield page

    def _page(self, records: Sequence[dict[str, Any]]) -> Image.Image:
        columns = min(COLUMNS, len(records))
        rows = -(-len(records) // columns)
        step = (TILE + GAP, TILE + CAPTION + GAP)
        page = Image.new("RGB", (GAP + columns * step[0], LEGEND + rows * step[1]), SHEET_GROUND)
        draw = ImageDraw.Draw(page)
        font = ImageFont.load_default(SHEET_LETTERS)
        present = sorted({index for record in records for index in record["present"]})
        self._draw_legend(draw, font, present, page.width - GAP)
        for number, name in enumerate(str(record["name"]) for record in records):
            left, top = GAP + number % columns * step[0], LEGEND + number // columns * step[1]
            tile = load_image(self.out / self.result_path(name), ("JPEG",), MAX_PIXELS, name).convert("RGB")
            page.paste(ImageOps.pad(tile, (TILE, TILE), color=SHEET_GROUND, centering=(0.5, 1)), (left, top))
            caption = _shortened(name, font, TILE)
            draw.text((left + TILE / 2, top + TILE + CAPTION / 2), caption, fill=SHEET_INK, font=font, anchor="mm")
        return page

    def _draw_legend(self, draw: ImageDraw.ImageDraw, font: Font, present: Sequence[int], right: float) -> None:
        left = float(GAP)
        for index, name in ((index, self.classes[index - 1]) for index in present):
            wide = 22 + font.getlength(name) + 18
            if left + wide > right:
                draw.text((left, LEGEND / 2), "...", fill=SHEET_INK, font=font, anchor="lm")
                return
            square = (left, LEGEND / 2 - 7, left + 14, LEGEND / 2 + 7)
            draw.rounded_rectangle(square, radius=3, fill=colour_of(index))
            draw.text((left + 22, LEGEND / 2), name, fill=SHEET_INK, font=font, anchor="lm")
            left += wide


def _shortened(name: str, font: Font, room: float) -> str:
    """Return `name`, without its beginning if it is wider than `room`."""
    if font.getlength(name) <= room:
        return name
    start = next((i for i in range(1, len(name)) if font.getlength("..." + name[i:]) <= room), len(name))
    return "..." + name[start:]
