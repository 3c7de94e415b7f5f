"""PASCAL VOC: a palette PNG for each photo whose values are class indices, 255 where it is not decided."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.formats.drawing import LabelMap
from emat.formats.photo_names import without_suffix
from emat.formats.whole_files import write_text
from emat.formats.writing import WriteOptions, Writer
from emat.images import VOID, Pixels, Source, read_mask, write_indexed_png

VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair",
    "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip


def read_voc_png(source: Source, name: str | None = None) -> Pixels:
    """The class indices, (H, W) uint8, of an indexed PNG or of an RGB one in VOC's colours."""
    return read_mask(source, name=name)


class PngWriter(Writer):
    """`masks/<name>.png` with VOC's palette and 255 for void, and `classes.txt`, as `emat.datasets` opens it."""

    format = "png"

    def __init__(self, out: Path, classes: Sequence[str], options: WriteOptions, run: str) -> None:
        if len(classes) >= VOID:
            raise EmatError(f"an indexed PNG holds up to {VOID - 1} classes, not {len(classes)}; write coco instead")
        super().__init__(out, classes, options, run)

    def place(self, name: str) -> str:
        """The mask's path."""
        return f"masks/{without_suffix(name)}.png"

    def _write(self, name: str, label_map: LabelMap, photo: Pixels | None, photo_file: Path | None) -> dict[str, Any]:
        try:
            write_indexed_png(self.out / self.place(name), label_map)
        except OSError as error:
            raise EmatError(f"{self.out / self.place(name)} cannot be written: {error.strerror or error}") from None
        return {}

    def _begin(self) -> None:
        # With the index before every name, a class may be called anything, "3 series" too.
        lines = ["0 background", *(f"{i} {name}" for i, name in enumerate(self.classes, start=1)), f"{VOID} void"]
        write_text(self.out / "classes.txt", "\n".join(lines) + "\n")
