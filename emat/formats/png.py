"""PNG masks as in PASCAL VOC: for each photo a palette PNG of class indices, in which 255 is void."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.files import without_suffix, write_text
from emat.formats.drawing import LabelMap
from emat.formats.writing import WriteOptions, Writer
from emat.images import VOID, Pixels, Source, read_mask, write_indexed_png

VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair",
    "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip


def read_voc_png(source: Source, name: str | None = None) -> Pixels:
    """Read the class indices, (H, W) uint8, of an indexed PNG or of an RGB PNG in VOC's colours."""
    return read_mask(source, name=name)


class PngWriter(Writer):
    """Writes `masks/<name>.png` with VOC's palette, and `classes.txt`. `open_dataset` reads this layout."""

    format = "png"

    def __init__(self, out: Path, classes: Sequence[str], options: WriteOptions) -> None:
        if len(classes) >= VOID:
            raise EmatError(f"an indexed PNG holds up to {VOID - 1} classes, not {len(classes)}; write coco instead")
        super().__init__(out, classes, options)

    def result_path(self, name: str) -> str:
        """Return the path of the mask."""
        return f"masks/{without_suffix(name)}.png"

    def _write(self, name: str, label_map: LabelMap, photo: Pixels | None, photo_file: Path | None) -> dict[str, Any]:
        write_indexed_png(self.out / self.result_path(name), label_map)
        return {}

    def _begin(self) -> None:
        # With an index before every name, a class name may start with a number, such as "3 series".
        lines = ["0 background", *(f"{i} {name}" for i, name in enumerate(self.classes, start=1)), f"{VOID} void"]
        write_text(self.out / "classes.txt", "\n".join(lines) + "\n")
