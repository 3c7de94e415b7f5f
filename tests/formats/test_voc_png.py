"""VOC's masks, by index and by colour."""

import io

import numpy as np
from PIL import Image

from emat.formats.voc_png import VOC_CLASSES, read_voc_png
from emat.images import VOC_PALETTE


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
