"""A widget for napari: paint labels on one image, get the same labels on another.

Every label above 0 that is painted on the example is a class. Where nothing is painted, the example shows the
background. The result has the same numbers, so a labels layer goes in and a labels layer comes out.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.images import read_photo
from emat.inference.example import Example
from emat.inference.segmenter import Segmenter

if TYPE_CHECKING:
    import napari.types


def find_labels(
    example: "napari.types.ImageData",
    painted: "napari.types.LabelsData",
    photo: "napari.types.ImageData",
    model: str = "default",
    learn: bool = True,
) -> "napari.types.LabelsData":
    """Find what is painted on one image in another; napari makes a widget of this function.

    Args:
        example: An image layer, grey or RGB.
        painted: A labels layer of the same size; every number above 0 is a class.
        photo: The image layer to find the classes in.
        model: The head: "default", "best" or another name of `emat weights list`.
        learn: Whether to train a pixel classifier on the example beside the head.

    Returns:
        Labels (H, W) of the image `photo`, with the numbers of `painted`.

    Raises:
        EmatError: If nothing is painted, or an array is not an image.
    """
    labels = np.asarray(painted)
    numbers = [int(number) for number in np.unique(labels) if number > 0]
    if not numbers:
        raise EmatError("empty-mask", "nothing is painted; paint the object in the labels layer first")
    shown = Example(as_photo(example), {str(number): labels == number for number in numbers}, name="the example")
    segmenter = _segmenter(model, learn).copy().fit([shown])
    label_map = segmenter.predict(as_photo(photo)).label_map
    return np.array([0, *numbers])[label_map].astype(labels.dtype)


def as_photo(image: Any) -> NDArray[np.uint8]:
    """Return an image layer's data as a photo (H, W, 3); values other than bytes are stretched as a file's are."""
    array = np.asarray(image)
    if array.dtype.kind not in "uf" or (array.dtype.kind == "u" and array.dtype.itemsize > 2):
        array = array.astype(np.float64)  # whole numbers of many bits, which no photo file has
    return read_photo(array)


@lru_cache(maxsize=2)
def _segmenter(model: str, learn: bool) -> Segmenter:
    """The network is loaded once, however often the widget runs."""
    return Segmenter.load(model, learn=learn)
