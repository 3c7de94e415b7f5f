"""Contact sheets: pages of small overlays, each with the name of its photo below."""

import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from emat.formats.drawing import LabelMap
from emat.formats.writing import Writer
from emat.images import VOID, Pixels, resize_mask, resize_photo
from emat.pictures.overlay import draw_overlay, save_jpeg
from emat.pictures.palette import colour_of

Font: TypeAlias = ImageFont.FreeTypeFont | ImageFont.ImageFont

TILE = 300  # the longer side of each overlay on the sheet, in pixels
COLUMNS, ROWS = 5, 6
GAP, CAPTION, LEGEND = 14, 26, 40
LETTERS = 14
GROUND, INK = (250, 250, 248), (40, 40, 44)
TILES = ".emat-tiles"  # the folder of the small overlays until the sheets are complete


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
        page = Image.new("RGB", (GAP + columns * step[0], LEGEND + rows * step[1]), GROUND)
        draw = ImageDraw.Draw(page)
        font = ImageFont.load_default(LETTERS)
        present = sorted({index for record in records for index in record["present"]})
        self._draw_legend(draw, font, present, page.width - GAP)
        for number, name in enumerate(str(record["name"]) for record in records):
            left, top = GAP + number % columns * step[0], LEGEND + number // columns * step[1]
            with Image.open(self.out / self.result_path(name), formats=["JPEG"]) as tile:
                page.paste(
                    ImageOps.pad(tile.convert("RGB"), (TILE, TILE), color=GROUND, centering=(0.5, 1)), (left, top)
                )
            caption = _shortened(name, font, TILE)
            draw.text((left + TILE / 2, top + TILE + CAPTION / 2), caption, fill=INK, font=font, anchor="mm")
        return page

    def _draw_legend(self, draw: ImageDraw.ImageDraw, font: Font, present: Sequence[int], right: float) -> None:
        left = float(GAP)
        for index, name in ((index, self.classes[index - 1]) for index in present):
            wide = 22 + font.getlength(name) + 18
            if left + wide > right:
                draw.text((left, LEGEND / 2), "...", fill=INK, font=font, anchor="lm")
                return
            square = (left, LEGEND / 2 - 7, left + 14, LEGEND / 2 + 7)
            draw.rounded_rectangle(square, radius=3, fill=colour_of(index))
            draw.text((left + 22, LEGEND / 2), name, fill=INK, font=font, anchor="lm")
            left += wide


def _shortened(name: str, font: Font, room: float) -> str:
    """Return `name`, without its beginning if it is wider than `room`."""
    if font.getlength(name) <= room:
        return name
    start = next((i for i in range(1, len(name)) if font.getlength("..." + name[i:]) <= room), len(name))
    return "..." + name[start:]
