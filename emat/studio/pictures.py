"""The pictures of the page: photos with what was found on them."""

import io

import numpy as np
from PIL import Image

from emat.errors import EmatError
from emat.formats.drawing import LabelMap
from emat.images import Pixels
from emat.pictures.overlay import draw_overlay
from emat.studio.masks import label_map, object_image
from emat.studio.session import Session, StudioQuery

QUALITY = 88
BORDER = 255  # of single objects: white is no class's colour


def small_picture(session: Session, query: StudioQuery) -> bytes:
    """The small picture of a photo with its masks, as JPEG."""
    small = query.photo.small
    labels = label_map(session, query, session.numbers, (small.shape[0], small.shape[1]))
    return _jpeg(_drawn(small, labels))


def large_picture(session: Session, query: StudioQuery, objects: bool) -> bytes:
    """A photo with its masks at its working size, as JPEG; on demand with a line between single objects."""
    labels = label_map(session, query, session.numbers, query.photo.working)
    picture = np.array(_drawn(query.photo.pixels, labels))
    if objects:
        apart = object_image(session, query, labels, session.numbers)
        picture[_borders(apart)] = BORDER
    return _jpeg(Image.fromarray(picture))


def example_picture(session: Session, index: int) -> bytes:
    """The small picture of an example with its masks, as JPEG."""
    examples = session.segmenter.examples_
    if not 0 <= index < len(examples):
        raise EmatError("this example is gone; reload the page")
    small = examples[index].thumbnail
    if small is None:
        return _jpeg(Image.new("RGB", (16, 16), "gray"))
    labels = np.zeros(small.photo.shape[:2], np.uint8)
    for name, mask in small.masks.items():
        labels[mask] = session.numbers.get(name, 0)
    return _jpeg(_drawn(small.photo, labels))


def _drawn(photo: Pixels, labels: LabelMap) -> Image.Image:
    return draw_overlay(photo, labels, {}, legend=False)


def _borders(
    apart: "np.ndarray[tuple[int, ...], np.dtype[np.int32]]",
) -> "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]":
    """The pixels of objects whose right or lower neighbour is not of the same object."""
    border = np.zeros(apart.shape, bool)
    border[:, :-1] |= apart[:, :-1] != apart[:, 1:]
    border[:-1] |= apart[:-1] != apart[1:]
    return border


def _jpeg(picture: Image.Image) -> bytes:
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=QUALITY)
    return data.getvalue()
