"""Windows of files that are too large for the memory, such as whole slides of a microscope.

Only the tiles or strips that a window touches are decoded. This needs tifffile (the extra `science`), because
Pillow decodes a page as a whole. A slide is a page of a TIFF (`Slide`), or has channels (`StackSlide`).
"""

from dataclasses import replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from emat.errors import EmatError, needs_extra
from emat.images.photos import DEFAULT_READING, Reading, scaled, to_rgb
from emat.images.sources import PHOTO_FORMATS, TIFF_SUFFIXES, Pixels, open_image, pages, refuse_missing, split_page
from emat.images.stacks import LARGEST_PIECE, Stack, open_stack

ANY_SIZE = 1 << 62  # pixels
SAMPLE = 256  # pixels a side of what is sampled of a slide with channels
SAMPLED = 64  # pieces from which the stretch of the whole slide is estimated
MIN_IS_WHITE = 0


class Slide:
    """One page of a TIFF file, from which windows are read. Use it in a `with` block and from one thread.

    Args:
        path: The file, which may end in a page as in `slide.tif[2]`.
        reading: How photos are read; its limit of pixels does not count here.

    Raises:
        EmatError: tifffile is missing, or the file is damaged or of a kind that is not read.
    """

    def __init__(self, path: Path, reading: Reading = DEFAULT_READING) -> None:
        self._name = str(path)
        file, page = split_page(path)
        refuse_missing(file)
        if page is None and len(pages(file, self._name)) > 1:
            raise EmatError("several-pages", f"{path} is a stack of pages; name one of them as in '{path}[1]'")
        tifffile = _tifffile()
        try:
            self._file = tifffile.TiffFile(file)
            self._page = self._file.pages[(page or 1) - 1]
            self._check()
            self._whole = tifffile.memmap(file, page=(page or 1) - 1, mode="r") if self._page.is_memmappable else None
            self._limits = self._stretch_limits(reading)
        except EmatError:
            raise
        except Exception as error:  # tifffile and its codecs raise many kinds of errors for damaged files
            raise self._damaged(error) from None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return int(self._page.imagelength), int(self._page.imagewidth)

    def read(self, top: int, left: int, height: int, width: int) -> Pixels:
        """Return a window as a photo (height, width, 3).

        Raises:
            EmatError: The file is damaged there.
        """
        try:
            values = self._values(top, left, height, width)  # (height, width, samples)
        except Exception as error:
            raise self._damaged(error) from None
        return self._photo(values)

    def whole(self) -> Pixels:
        """Return the whole page as a photo (H, W, 3)."""
        return self.read(0, 0, *self.size)

    @property
    def has_values(self) -> bool:
        """Whether there is more in it than the photo shows: more than 8 bits."""
        return self._limits is not None

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of its channels, if it names them: colours have no other name."""
        return ()

    def values(self, top: int = 0, left: int = 0, height: int | None = None, width: int | None = None) -> NDArray[Any]:
        """Return the values of a window as they are stored, (height, width, samples); by default of the whole page.

        Raises:
            EmatError: The file is damaged there.
        """
        try:
            return self._values(top, left, height or self.size[0], width or self.size[1])
        except Exception as error:
            raise self._damaged(error) from None

    def _photo(self, values: NDArray[Any]) -> Pixels:
        colours = values[..., :3] if values.shape[2] > 2 else values[..., 0]
        if self._limits is not None:
            colours = scaled(colours, *self._limits)
        if self._page.photometric == MIN_IS_WHITE:
            colours = 255 - colours
        return np.array(to_rgb(Image.fromarray(np.ascontiguousarray(colours)), DEFAULT_READING.stretch))

    def _values(self, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        samples = int(self._page.samplesperpixel)
        if self._whole is not None:
            part = np.asarray(self._whole)
            if part.ndim == 3 and part.shape[0] == samples and self._page.planarconfig == 2:
                part = part[:, top : top + height, left : left + width].transpose(1, 2, 0)
            else:
                part = part[top : top + height, left : left + width]
            return np.array(part).reshape(height, width, samples)
        rows, columns = self._piece_size()
        across, down = -(-self.size[1] // columns), -(-self.size[0] // rows)
        planes = samples if self._page.planarconfig == 2 else 1
        window = np.zeros((height, width, samples), self._page.dtype)
        for plane in range(planes):
            for row in range(top // rows, -(-(top + height) // rows)):
                for column in range(left // columns, -(-(left + width) // columns)):
                    piece = self._decode((plane * down + row) * across + column)  # (rows, columns, samples)
                    if piece is None:
                        continue  # a piece that the file leaves out is black
                    channels = slice(plane, plane + 1) if planes > 1 else slice(None)
                    _paste(window, piece, (row * rows - top, column * columns - left), channels)
        return window

    def _decode(self, index: int) -> NDArray[Any] | None:
        offset, length = self._page.dataoffsets[index], self._page.databytecounts[index]
        if not length:
            return None
        self._file.filehandle.seek(offset)
        content = self._file.filehandle.read(length)
        tables = {"jpegtables": self._page.jpegtables} if self._page.jpegtables is not None else {}
        decoded = self._page.decode(content, index, **tables)[0]
        return None if decoded is None else decoded[0]  # without its axis of depth

    def _piece_size(self) -> tuple[int, int]:
        if self._page.is_tiled:
            return int(self._page.tilelength), int(self._page.tilewidth)
        return min(int(self._page.rowsperstrip), self.size[0]), self.size[1]

    def _stretch_limits(self, reading: Reading) -> tuple[float, float] | None:
        """The values that become 0 and 255, the same for all windows; None for 8 bits."""
        if self._page.dtype == np.uint8:
            return None
        rows, columns = self._piece_size()
        height, width = self.size
        corners = [(y, x) for y in range(0, height, rows) for x in range(0, width, columns)]
        chosen = corners[:: max(1, len(corners) // SAMPLED)]
        parts = [self._values(y, x, min(rows, height - y), min(columns, width - x))[::4, ::4] for y, x in chosen]
        return reading.stretch.limits(np.concatenate([part.ravel() for part in parts]))

    def _check(self) -> None:
        page = self._page
        if page.dtype is None or np.dtype(page.dtype).kind not in "uif" or page.samplesperpixel not in (1, 2, 3, 4):
            raise EmatError(
                "not-an-image",
                f"{self._name} has {page.samplesperpixel} channels of {page.dtype}, which are not a photo",
            )
        if page.imagedepth != 1 or page.photometric == 3:
            raise EmatError("not-an-image", f"{self._name} is a volume or has a palette; save it as grey or RGB")
        rows, columns = self._piece_size()
        if not page.is_memmappable and rows * columns * page.samplesperpixel * page.dtype.itemsize > LARGEST_PIECE:
            raise EmatError(
                "photo-too-large", f"{self._name} is stored in pieces that are too large; save it as a tiled TIFF"
            )

    def _damaged(self, error: Exception) -> EmatError:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        return EmatError(
            "damaged-file", f"{self._name} cannot be read as a TIFF ({reason}); save it again or leave it out"
        )

    def __enter__(self) -> "Slide":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class StackSlide:
    """A slide with channels, as OME-TIFF, ImageJ's TIFF or OME-Zarr. It is used as a `Slide`.

    Args:
        path: The file or folder.
        reading: Which channels the photo shows; its limit of pixels does not count here.

    Raises:
        EmatError: It has several planes, or a channel does not exist.
    """

    has_values = True

    def __init__(self, path: Path, stack: Stack, reading: Reading = DEFAULT_READING) -> None:
        self._stack, self._reading = stack, reading
        self._plane = stack.only_plane(reading.project)
        self.channels, self.size = stack.channels, stack.shape[3:]
        parts = [self.values(top, left, SAMPLE, SAMPLE)[::4, ::4] for top, left in _spread(self.size)]
        samples = np.concatenate([part.reshape(-1, part.shape[2]) for part in parts])  # (n, channels)
        self._limits = stack.limits(samples, reading)

    def read(self, top: int, left: int, height: int, width: int) -> Pixels:
        """Return a window as a photo (height, width, 3), or with more channels as `read_channels` gives it."""
        return self._stack.photo(self.values(top, left, height, width), self._reading, self._limits)

    def values(self, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return the values of a window as they are stored, (height, width, channels)."""
        window = slice(top, top + height), slice(left, left + width)
        return self._stack.values(self._plane, self._reading.project, window)

    def __enter__(self) -> "StackSlide":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open between windows."""


def open_slide(path: Path, reading: Reading = DEFAULT_READING) -> Slide | StackSlide:
    """Open a slide, with channels or without.

    Raises:
        EmatError: As `Slide` and `StackSlide`.
    """
    stack = open_stack(path, replace(reading, max_pixels=ANY_SIZE))
    return Slide(path, reading) if stack is None else StackSlide(path, stack, reading)


def is_slide(path: Path, reading: Reading) -> bool:
    """Whether a file has more pixels than `reading` allows, and can be read window by window."""
    try:
        stack = open_stack(path, replace(reading, max_pixels=ANY_SIZE))
        if stack is not None:
            return len(stack.planes(reading.project)) == 1 and stack.shape[3] * stack.shape[4] > reading.max_pixels
        if split_page(path)[0].suffix.lower() not in TIFF_SUFFIXES:
            return False
        with open_image(path, PHOTO_FORMATS, ANY_SIZE, str(path)) as image:
            return image.format == "TIFF" and image.width * image.height > reading.max_pixels
    except EmatError:
        return False


def _spread(size: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the corners of a few samples that are spread over a slide of a size (H, W)."""
    tops, lefts = (np.linspace(0, max(0, side - SAMPLE), round(SAMPLED**0.5), dtype=int) for side in size)
    return sorted({(top, left) for top in tops.tolist() for left in lefts.tolist()})


def _paste(window: NDArray[Any], piece: NDArray[Any], corner: tuple[int, int], channels: slice) -> None:
    """Copy the part of `piece` that lies inside `window`; `corner` is its place, which may be negative."""
    (top, left), (height, width) = corner, window.shape[:2]
    bottom, right = min(height, top + piece.shape[0]), min(width, left + piece.shape[1])
    inside = piece[max(0, -top) : bottom - top, max(0, -left) : right - left]
    window[max(0, top) : bottom, max(0, left) : right, channels] = inside


def _tifffile() -> ModuleType:
    with needs_extra("a window of a TIFF", "science"):
        import tifffile
    return tifffile
