"""The mask of one object, from whatever a drawing program or a data set calls a mask.

One rule holds for all of them (docs/formats/masks.md). 0 is background. 255 beside small numbers is void, and every
other number is the object, so that class indices and numbers of instances are read in the same way. In an image of two
values, the brighter one is the object. The smooth edges of a black and white mask are cut at half. A mask whose object
cannot be determined is refused with the values that were found, because a wrong guess would not be noticed.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from emat.errors import EmatError
from emat.files import is_file
from emat.images.masks import VOC_PALETTE, VOID, is_grey
from emat.images.photos import DEEPEST, PREMULTIPLIED, Stretch, to_rgb
from emat.images.sources import (
    LOSSY_FORMATS,
    MASK_FORMATS,
    MAX_PIXELS,
    PHOTO_FORMATS,
    Pixels,
    Source,
    describe,
    load_image,
)

Mask: TypeAlias = NDArray[np.bool_]  # (H, W)

SMALL = 32  # numbers below it are class indices, not greys
DARK, BRIGHT = 1 / 8, 7 / 8  # shares of white; pixels between them are grey
LOSSY_DARK, LOSSY_BRIGHT = 1 / 4, 3 / 4  # the same for formats that change values
ALIKE = 12  # how far neighbouring values of one area may be apart in such a format
DIMMEST = 64  # the least brightness that is an object in such a format
FEW = 8  # values up to which an image has neither smooth edges nor the greys of a photo
SMOOTH = 0.3  # share of grey pixels that may equal both neighbours if edges are smooth
LEAST_FLAT = 0.5  # share of pixels that equal both neighbours: numbered regions have more, photos have fewer
SHOWN = 6  # values named in an error
SAME_HUE = 0.35  # how far the colours of one object may be apart after compression, as a share of their brightness
CHOICE = re.compile(r"(?:#[0-9a-fA-F]{6}|\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*)", re.ASCII)


@dataclass(frozen=True)
class ObjectMask:
    """Where an object is, and which pixels are undecided."""

    inside: Mask
    void: Mask


@dataclass(frozen=True)
class Choice:
    """The values or the colour of a mask that are the object, as chosen by the user.

    >>> Choice.read("1,4-6").values
    (1, 4, 5, 6)
    """

    values: tuple[int, ...] = ()
    colour: tuple[int, int, int] | None = None

    @classmethod
    def read(cls, text: str) -> "Choice":
        """Read `1`, `1,3`, `1-40` or `#ff0000`; EmatError if it is none of them."""
        if not CHOICE.fullmatch(text):
            raise EmatError(
                "unclear-option",
                f"{text!r} does not choose values of a mask; write 1, or 1,3, or 1-40, or a colour #ff0000",
            )
        if text.startswith("#"):
            return cls(colour=(int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)))
        numbers: list[int] = []
        for part in text.split(","):
            first, _, last = part.partition("-")
            low, high = int(first), int(last or first)
            if not 0 <= low <= high <= 65535:
                raise EmatError("bad-number", f"{part!r} does not choose values of a mask, which are 0 to 65535")
            numbers += range(low, high + 1)
        return cls(tuple(numbers))


def split_choice(path: Path | str) -> tuple[Path, Choice | None]:
    """Separate a path such as `mask.png:1` into the file and the choice; None if the path names a file itself."""
    text = str(path)
    file, colon, chosen = text.rpartition(":")
    if not colon or not CHOICE.fullmatch(chosen) or is_file(Path(text)) or not is_file(Path(file)):
        return Path(path), None
    return Path(file), Choice.read(chosen)


def read_object(
    source: Source, *, name: str | None = None, max_pixels: int = MAX_PIXELS, formats: tuple[str, ...] = PHOTO_FORMATS
) -> ObjectMask:
    """Read a mask that shows one object or the objects of one class, by the rule of this module.

    Args:
        source: A path, which may choose values as in `mask.png:1`; the bytes of a file, a PIL image, or an array (H, W)
            of whole numbers or truth values.
        name: What to call the mask in errors.
        max_pixels: The largest size that is accepted.
        formats: The file formats that are allowed.

    Raises:
        EmatError: The mask cannot be read, or does not say which of its values are the object.

    >>> read_object(np.array([[0, 1, 3, 255]], np.uint8)).inside.tolist()
    [[False, True, True, False]]
    """
    choice = None
    if isinstance(source, (str, Path)):
        source, choice = split_choice(source)
    name = name or describe(source)
    if isinstance(source, np.ndarray):
        if source.ndim != 2 or 0 in source.shape or source.dtype.kind not in "bui":
            raise EmatError("mask-shape", f"{name} must be (H, W) whole numbers, not {source.shape} {source.dtype}")
        return _from_numbers(source, name, choice, plain=True)
    image = load_image(source, formats, max_pixels, name)
    image = image.convert(PREMULTIPLIED[image.mode]) if image.mode in PREMULTIPLIED else image
    lossy = image.format in LOSSY_FORMATS
    if image.mode == "F":
        raise EmatError("mask-values", f"{name} holds fractions; save the mask as an indexed or greyscale PNG")
    if image.mode == "P" and not image.has_transparency_data:
        return _from_palette(image, name, choice)
    if image.mode in ("1", "L") or image.mode.startswith("I"):
        return _from_numbers(np.asarray(image), name, choice, lossy=lossy)
    colours = np.asarray(to_rgb(image, Stretch(), on="black"))
    if is_grey(colours):
        return _from_numbers(colours[..., 0], name, choice, lossy=lossy)
    return _from_colours(colours, name, choice, lossy)


def read_object_mask(source: Source, *, name: str | None = None, max_pixels: int = MAX_PIXELS) -> Mask:
    """Read where an object is, (H, W) bool, as `read_object` does; void is not the object.

    >>> read_object_mask(np.array([[0, 255]], np.uint8)).tolist()
    [[False, True]]
    """
    return read_object(source, name=name, max_pixels=max_pixels).inside


def read_one_class_mask(source: Path | bytes, *, name: str | None = None) -> Pixels:
    """Read a mask of a data set that has a single class: 1 is the class, 255 void."""
    read = read_object(source, name=name, formats=MASK_FORMATS)
    return np.where(read.void, VOID, read.inside).astype(np.uint8)


def _from_numbers(
    values: NDArray[Any], name: str, choice: Choice | None, *, lossy: bool = False, plain: bool = False
) -> ObjectMask:
    """Apply the rule to whole numbers (H, W). `plain` says that they are an array and not the greys of an image."""
    if values.dtype.kind == "b":
        return _certain(values.astype(bool))
    if values.min() < 0:
        raise EmatError("mask-values", f"{name} holds the value {values.min()}; values of a mask are 0 or more")
    numbers, times = np.unique(values, return_counts=True)
    if choice is not None:
        return _chosen(values, numbers, choice, name)
    low, high = int(numbers[0]), int(numbers[-1])
    if lossy:
        return _certain(_cut_lossy(values, name))
    if len(numbers) == 1:
        return _certain(values > 0)
    white = VOID if high <= VOID else DEEPEST
    if len(numbers) == 2:
        if low > 0 and (low < SMALL or high < white / 2 or low >= white / 2):
            raise _unclear(numbers, name, "and no background of 0")
        return _certain(values == high)
    others = numbers[(numbers > 0) & (numbers != white)]
    if not _is_flat(values) or _is_smooth(values, numbers, others, white):
        if not _is_black_and_white(numbers, times, white):
            raise _unclear(numbers, name, "as a photo or a picture in greys has")
        return _certain(values >= (white + 1) // 2)
    if high == white and (white == DEEPEST or not _are_numbered(others)):
        raise _unclear(numbers, name, f"of which {white} may be void or the object")
    void = values == VOID if high == VOID else np.zeros(values.shape, bool)
    return ObjectMask((values > 0) & ~void, void)


def _is_flat(values: NDArray[Any]) -> bool:
    """Whether many values lie in regions of equal value, as in label maps; in photos and smooth edges they do not.

    The largest region is not asked, because the ground of a photo or the inside of a painted object may be even.
    """
    numbers, times = np.unique(values[values > 0], return_counts=True)
    if len(numbers) <= FEW:
        return True
    return _flat_share(values, (values > 0) & (values != numbers[times.argmax()])) >= LEAST_FLAT


def _flat_share(values: NDArray[Any], among: Mask, apart: int = 0) -> float:
    """Return the share of the pixels `among` whose left and upper neighbours differ by at most `apart`."""
    work = values.astype(np.int64) if apart else values
    inner = work[1:, 1:]
    if apart:
        flat = (np.abs(inner - work[1:, :-1]) <= apart) & (np.abs(inner - work[:-1, 1:]) <= apart)
    else:
        flat = (inner == work[1:, :-1]) & (inner == work[:-1, 1:])
    return float((flat & among[1:, 1:]).sum() / max(1, among.sum()))


def _is_smooth(values: NDArray[Any], levels: NDArray[Any], others: NDArray[Any], white: int) -> bool:
    """Whether values change from pixel to pixel, as along painted edges; inside of numbered regions they do not."""
    if not white / 2 <= levels[-1] or len(levels) <= 3:
        return False
    between = (values >= DARK * white) & (values < BRIGHT * white)
    if not between.any():  # black and white that were compressed once have neighbouring values, numbers do not
        return not _are_numbered(others)
    return _flat_share(values, between) < SMOOTH


def _is_black_and_white(levels: NDArray[Any], times: NDArray[Any], white: int) -> bool:
    """Whether values are black, white and, in fewer pixels than both, greys between them."""
    dark, bright = times[levels < DARK * white].sum(), times[levels >= BRIGHT * white].sum()
    greys = times.sum() - dark - bright
    return bool(min(dark, bright) > 0 and greys <= min(dark, bright))


def _are_numbered(others: NDArray[Any]) -> bool:
    """Whether values beside 0 and 255 are class indices or numbers of instances, and not greys."""
    highest = int(others.max(initial=0))
    return highest < SMALL or (highest < VOID - 1 and 2 * len(others) >= highest)


def _cut_lossy(values: NDArray[Any], name: str) -> Mask:
    """Return where an image of a dark and a bright level is bright, after a format such as JPEG changed its values."""
    peak = int(values.max())
    dark, bright = values < LOSSY_DARK * peak, values >= LOSSY_BRIGHT * peak
    greys = ~dark & ~bright
    levels = np.unique(values)
    if peak < DIMMEST:
        raise _unclear(levels, name, "and its format changes values")
    if greys.sum() > min(dark.sum(), bright.sum()) and not bright.all():
        raise _unclear(levels, name, "as a photo or a picture in greys has")
    if _flat_share(values, greys, ALIKE) >= SMOOTH:
        raise _unclear(levels, name, "on more than two levels")
    return np.asarray(values >= peak / 2)


def _chosen(values: NDArray[Any], levels: NDArray[Any], choice: Choice, name: str) -> ObjectMask:
    if choice.colour is not None:
        if len(set(choice.colour)) != 1:
            raise EmatError(
                "no-such-value", f"{name} has no colours, only the values {_listed(levels)}; choose one of them"
            )
        choice = Choice((choice.colour[0],))
    inside = np.isin(values, choice.values)
    if not inside.any():
        raise EmatError("no-such-value", f"{name} has none of the values that were chosen; it has {_listed(levels)}")
    is_void = levels[-1] == VOID and VOID not in choice.values
    return ObjectMask(inside, values == VOID if is_void else np.zeros(values.shape, bool))


def _from_palette(image: Image.Image, name: str, choice: Choice | None) -> ObjectMask:
    """Apply the rule to the indices of a palette, or to its colours if index 0 is not black."""
    indices, colours = np.asarray(image), np.asarray(image.convert("RGB"))
    numbers = np.unique(indices)
    ground = colours[indices == 0]
    are_greys = is_grey(colours) and (len(numbers) == 2 or len(numbers) > FEW or ground.any())
    if are_greys and choice is None:
        return _from_numbers(colours[..., 0], name, None)
    if choice is not None and choice.colour is not None:
        return _from_colours(colours, name, choice, lossy=False)
    if choice is None and ground.any():  # the background is where black is, not where 0 is
        return _from_colours(colours, name, None, lossy=False)
    if choice is not None:
        return _chosen(indices, numbers, choice, name)
    if not _is_flat(indices):
        raise _unclear(numbers, name, "as a photo has")
    cream = VOC_PALETTE[VOID]
    alone = set(numbers.tolist()) <= {0, VOID}
    is_void = not alone or bool((colours[indices == VOID] == cream).all())
    void = (indices == VOID) & is_void
    return ObjectMask((indices > 0) & ~void, void)


def _from_colours(colours: Pixels, name: str, choice: Choice | None, lossy: bool) -> ObjectMask:
    """Find the one colour beside black, and VOC's void; refuse several."""
    if choice is not None:
        if choice.colour is None:
            raise EmatError(
                "ambiguous-mask", f"{name} is in colours; choose one of them, as in mask.png:{_colours(colours)[0]}"
            )
        inside = (colours == np.array(choice.colour, np.uint8)).all(axis=2)
        if not inside.any():
            raise EmatError(
                "no-such-value", f"{name} has no pixel of that colour; it has {', '.join(_colours(colours))}"
            )
        return _certain(inside)
    black = np.asarray(~colours.any(axis=2))
    kinds = np.unique(colours[~black].reshape(-1, 3), axis=0)  # (colours, 3)
    if lossy or len(kinds) > FEW:
        if (strong := _one_hue(colours, black, lossy)) is not None:
            return _certain(strong)
    else:
        void = (colours == VOC_PALETTE[VOID]).all(axis=2)
        others = kinds[(kinds != VOC_PALETTE[VOID]).any(axis=1)]
        if len(others) <= 1 and black.any():
            return ObjectMask(~black & ~void, void)
    shown = _colours(colours)
    raise EmatError(
        "ambiguous-mask",
        f"{name} has several colours ({', '.join(shown)}), of which any may be the object; choose one, as in "
        f"--mask cat=mask.png:{shown[0]}, or give a data set of indexed masks",
    )


def _one_hue(colours: Pixels, black: Mask, lossy: bool) -> Mask | None:
    """Return where an object of one colour with smooth or compressed edges is; None if there is no such object."""
    brightness = colours.max(axis=2)
    try:
        strong = _cut_lossy(brightness, "")
    except EmatError:
        return None
    if strong.all() or (not lossy and _flat_share(brightness, ~black & ~strong) >= SMOOTH):
        return None  # nothing is background, or a darker object is there as well
    hues = colours[strong].astype(np.float32) / brightness[strong][:, None]  # (pixels, 3), the largest is 1
    return strong if np.ptp(hues, axis=0).max() <= SAME_HUE else None


def _colours(colours: Pixels) -> list[str]:
    """Return the most frequent colours but black."""
    kinds, times = np.unique(colours[colours.any(axis=2)].reshape(-1, 3), axis=0, return_counts=True)
    order = np.argsort(-times, kind="stable")[:SHOWN]
    return ["#{:02x}{:02x}{:02x}".format(*kinds[index].tolist()) for index in order]


def _certain(inside: Mask) -> ObjectMask:
    return ObjectMask(inside, np.zeros(inside.shape, bool))


def _unclear(levels: NDArray[Any], name: str, why: str) -> EmatError:
    return EmatError(
        "ambiguous-mask",
        f"{name} has the values {_listed(levels)} {why}, so it is not clear which are the object; choose them, as in "
        f"--mask cat=mask.png:{int(levels[-1])}, or give a data set of indexed masks",
    )


def _listed(levels: NDArray[Any]) -> str:
    numbers = [str(int(value)) for value in levels]
    if len(numbers) <= SHOWN:
        return ", ".join(numbers)
    return f"{', '.join(numbers[: SHOWN - 1])} ... {numbers[-1]} ({len(numbers)} values)"
