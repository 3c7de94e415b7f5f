"""Click an object, get its mask: for drawing examples."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emat.errors import EmatError
from emat.images import Source, read_photo
from emat.refine.mobilesam import Box, MobileSAM, Prompt, at_photo_size, required_mobilesam

Points: TypeAlias = "Sequence[tuple[float, float]] | NDArray[np.floating]"

ANSWER_STRIDE = 4  # MobileSAM scales a photo to 1024 pixels and answers with masks of 256
LARGEST_OBJECT = 0.95  # share of the photo: an answer that covers more is the photo itself, not an object in it
LOWERED_IOU = 2.0  # is subtracted from the expected IoU of an answer that is no object, so that any other one wins
KEPT_PHOTOS = 8  # `click` keeps the encodings of so many photos, so that a second click is answered at once


class Clicker:
    """Answers any number of clicks on one photo, which is encoded when the object is made.

    Encoding takes about a second, a click a few hundredths. Several threads may click at once.

    Args:
        photo: A path, the bytes of a file, a PIL image or an array (H, W, 3).
        sam: MobileSAM; by default the one that this process shares, whose weights are downloaded if need be.

    Raises:
        EmatError: If the photo cannot be read, or MobileSAM's weights are not here and cannot be downloaded.

    Example:
        clicker = emat.Clicker("a.jpg")
        clicker.mask([(210, 150)])
        clicker.mask([(210, 150), (40, 30)], labels=[1, 0])
    """

    def __init__(self, photo: Source, sam: MobileSAM | None = None) -> None:
        pixels = read_photo(photo)
        self._sam = sam or required_mobilesam()
        self._encoded = self._sam.encode(pixels)

    def mask(
        self, points: Points = (), labels: Sequence[int] | None = None, box: Box | None = None
    ) -> NDArray[np.bool_]:
        """Return the mask (H, W) of the object that is clicked.

        Args:
            points: Pixels (x, y).
            labels: For each point 1 if it is on the object, 0 if it is not; by default all are on it.
            box: A box around the object: left, top, right, bottom.

        Raises:
            EmatError: If there is neither a point nor a box, or one lies outside the photo.
        """
        prompt = _prompt(points, labels, box, self._encoded.size)
        answers = self._sam.answer(self._encoded, [prompt])[0]
        # A single click is ambiguous: it can mean an object or a part of it. MobileSAM gives answers 1 to 3 for that
        # case, and answer 0 for prompts with more points or a box.
        alone = len(prompt.inside) + len(prompt.outside) == 1 and box is None
        choice = 1 + self._best_object(answers.logits[1:], answers.iou[1:]) if alone else 0
        return at_photo_size(answers.logits[choice : choice + 1], self._encoded)[0].cpu().numpy() > 0

    def _best_object(self, logits: Tensor, iou: Tensor) -> int:
        """Return the index of the answer to one click: the best one that is not the photo as a whole.

        On microscope pictures and other even surfaces, the whole photo is often what the network is surest of.
        """
        height, width = (max(1, side // ANSWER_STRIDE) for side in self._encoded.inner)
        shares = (logits[:, :height, :width] > 0).float().mean((1, 2))  # (3,)
        objects = torch.where(shares < LARGEST_OBJECT, iou, iou - LOWERED_IOU)
        return int(objects.argmax())


_clickers: OrderedDict[str, Clicker] = OrderedDict()  # by a hash of the photo, the last used last
_encoding = threading.Lock()


def click(
    photo: Source, points: Points = (), labels: Sequence[int] | None = None, box: Box | None = None
) -> NDArray[np.bool_]:
    """Return the mask (H, W) of the object that is clicked on a photo, by MobileSAM.

    The first click on a photo takes about a second; further ones on the same photo take a few hundredths. `Clicker`
    does the same for one photo.

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
    pixels = read_photo(photo)
    _prompt(points, labels, box, (pixels.shape[0], pixels.shape[1]))  # report mistakes before the slow encoding
    key = sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()
    with _encoding:
        clicker = _clickers.pop(key, None) or Clicker(pixels)
        _clickers[key] = clicker
        while len(_clickers) > KEPT_PHOTOS:
            _clickers.popitem(last=False)
    return clicker.mask(points, labels, box)


def _prompt(points: Points, labels: Sequence[int] | None, box: Box | None, size: tuple[int, int]) -> Prompt:
    height, width = size
    pairs = [(float(x), float(y)) for x, y in points]
    kinds = [1] * len(pairs) if labels is None else [int(label) for label in labels]
    if not pairs and box is None:
        raise EmatError(
            "bad-click", "a click needs a point or a box; give points=[(x, y)] or box=(left, top, right, bottom)"
        )
    if len(kinds) != len(pairs) or not set(kinds) <= {0, 1}:
        raise EmatError(
            "bad-click", f"labels are {kinds} for {len(pairs)} points; give 1 (on the object) or 0 (not on it) for each"
        )
    for x, y in pairs:
        if not (0 <= x < width and 0 <= y < height):
            raise EmatError(
                "bad-click", f"the point ({x:g}, {y:g}) is outside the photo, which has {width} x {height} pixels"
            )
    if box is not None:
        left, top, right, bottom = box
        if not (0 <= left < right <= width and 0 <= top < bottom <= height):
            raise EmatError(
                "bad-click", f"the box {tuple(box)} is not left, top, right, bottom within {width} x {height} pixels"
            )
    inside = [pair for pair, kind in zip(pairs, kinds, strict=True) if kind]
    outside = [pair for pair, kind in zip(pairs, kinds, strict=True) if not kind]
    return Prompt(inside, outside, box)
