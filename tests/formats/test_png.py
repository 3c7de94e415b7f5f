"""VOC's masks, by index and by colour."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from emat.datasets.layouts import open_dataset
from emat.errors import EmatError
from emat.formats.png import VOC_CLASSES, read_voc_png
from emat.formats.writing import open_writer
from emat.images import VOC_PALETTE
from tests.formats.label_maps import CLASSES, rich_label_map


def test_indexed_and_coloured_masks_say_the_same() -> None:
    indices = np.array([[0, 1, 20], [15, 255, 7]], np.uint8)
    palette = Image.fromarray(indices)
    palette.putpalette(VOC_PALETTE.tobytes())
    for image in (palette, Image.fromarray(VOC_PALETTE[indices])):
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        assert np.array_equal(read_voc_png(buffer.getvalue()), indices)


def test_voc_has_its_twenty_classes_in_order() -> None:
    assert (len(VOC_CLASSES), VOC_CLASSES[0], VOC_CLASSES[14], VOC_CLASSES[19]) == (
        20,
        "aeroplane",
        "person",
        "tvmonitor",
    )


def test_pillow_reads_indices_and_vocs_colours_from_what_is_written(tmp_path: Path) -> None:
    with open_writer("png", tmp_path, CLASSES) as writer:
        writer.write("x/a.b.jpg", rich_label_map())
    with Image.open(tmp_path / "masks" / "x" / "a.b.png") as image:
        assert image.mode == "P"
        assert np.array_equal(np.asarray(image), rich_label_map())
        assert np.array_equal(np.asarray(image.convert("RGB")), VOC_PALETTE[rich_label_map()])


def test_the_written_folder_opens_as_a_data_set(tmp_path: Path) -> None:
    with open_writer("png", tmp_path, CLASSES) as writer:
        writer.write("x/a.jpg", rich_label_map())
        writer.write("y/a.jpg", np.zeros((2, 3), np.uint8))
    dataset = open_dataset(tmp_path)
    assert (dataset.kind, dataset.classes, dataset.names) == ("folder", CLASSES, ("x/a", "y/a"))
    assert np.array_equal(dataset.mask("x/a"), rich_label_map())


def test_more_classes_than_a_byte_holds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EmatError, match="up to 254 classes, not 255"):
        open_writer("png", tmp_path, [str(number) for number in range(255)])
