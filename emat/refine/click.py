"""Click an object, get its mask: for drawing examples."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.images import Source, read_photo
from emat.refine.mobilesam import Box, EncodedPhoto, MobileSAM, Prompt, at_photo_size
from emat.refine.refiner import shared_mobilesam

Points: TypeAlias = "Sequence[tuple[float, float]] | NDArray[np.floating]"

KEPT_PHOTOS = 8  # whose encodings are kept: a second click on a photo is answered at once


class Clicker:
    """Answers clicks on photos; the last photos are not encoded again."""

    def __init__(self, sam: MobileSAM) -> None:
        self._sam = sam
        self._photos: OrderedDict[str, EncodedPhoto] = OrderedDict()
        self._lock = threading.Lock()

    def mask(
        self, photo: Source, points: Points = (), labels: Sequence[int] | None = None, box: Box | None = None
    ) -> NDArray[np.bool_]:
        """See `click`."""
        pixels = read_photo(photo)
        prompt = _prompt(points, labels, box, (pixels.shape[0], pixels.shape[1]))
        with self._lock:
            encoded = self._encoded(pixels)
            answers = self._sam.answer(encoded, [prompt])[0]
        # One click can mean a part or the whole: the three answers are for that. More of a prompt leaves no doubt.
        alone = len(prompt.inside) + len(prompt.outside) == 1 and box is None
        choice = 1 + int(answers.iou[1:].argmax()) if alone else 0
        return at_photo_size(answers.logits[choice : choice + 1], encoded)[0].cpu().numpy() > 0

    def _encoded(self, photo: NDArray[np.uint8]) -> EncodedPhoto:
        key = sha256(repr(photo.shape).encode() + photo.tobytes()).hexdigest()
        if key not in self._photos:
            self._photos[key] = self._sam.encode(photo)
            while len(self._photos) > KEPT_PHOTOS:
                self._photos.popitem(last=False)
        self._photos.move_to_end(key)
        return self._photos[key]


_shared: list[Clicker] = []
_starting = threading.Lock()


def click(
    photo: Source, points: Points = (), labels: Sequence[int] | None = None, box: Box | None = None
) -> NDArray[np.bool_]:
    """Return the mask (H, W) of the object that is clicked on a photo, by MobileSAM.

    The first click on a photo takes about a second; further ones on the same photo take a few hundredths.

    Args:
        photo: A path, the bytes of a file, a PIL image or an array (H, W, 3).
        points: Pixels (x, y).
        labels: For each point 1 if it is on the object, 0 if it is not; by default all are on it.
        box: A box around the object: left, top, right, bottom.

    Raises:
        EmatError: If there is neither a point nor a box, one lies outside the photo, or MobileSAM's weights are not
            here and cannot be downloaded.

    Example:
        mask = emat.click("a.jpg", [(210, 150)])
        emat.Example("a.jpg", {"cat": mask})
    """
    with _starting:
        if not _shared:
            sam = shared_mobilesam("mobilesam")
            assert sam is not None
            _shared.append(Clicker(sam))
    return _shared[0].mask(photo, points, labels, box)


def _prompt(points: Points, labels: Sequence[int] | None, box: Box | None, size: tuple[int, int]) -> Prompt:
    height, width = size
    pairs = [(float(x), float(y)) for x, y in points]
    kinds = [1] * len(pairs) if labels is None else [int(label) for label in labels]
    if not pairs and box is None:
        raise EmatError("a click needs a point or a box; give points=[(x, y)] or box=(left, top, right, bottom)")
    if len(kinds) != len(pairs) or not set(kinds) <= {0, 1}:
        raise EmatError(f"labels are {kinds} for {len(pairs)} points; give 1 (on the object) or 0 (not on it) for each")
    for x, y in pairs:
        if not (0 <= x < width and 0 <= y < height):
            raise EmatError(f"the point ({x:g}, {y:g}) is outside the photo, which has {width} x {height} pixels")
    if box is not None:
        left, top, right, bottom = box
        if not (0 <= left < right <= width and 0 <= top < bottom <= height):
            raise EmatError(f"the box {tuple(box)} is not left, top, right, bottom within {width} x {height} pixels")
    inside = [pair for pair, kind in zip(pairs, kinds, strict=True) if kind]
    outside = [pair for pair, kind in zip(pairs, kinds, strict=True) if not kind]
    return Prompt(inside, outside, box)
