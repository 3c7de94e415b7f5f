"""PASCAL VOC: a palette PNG for each photo whose values are class indices, 255 where it is not decided."""

from emat.images import Pixels, Source, read_mask

VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair",
    "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip


def read_voc_png(source: Source, name: str | None = None) -> Pixels:
    """The class indices, (H, W) uint8, of an indexed PNG or of an RGB one in VOC's colours."""
    return read_mask(source, name=name)
