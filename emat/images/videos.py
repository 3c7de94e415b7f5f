"""Videos, frame by frame, as stacks whose only axis beside the photo's is time.

PyAV (the extra `video`) decodes them. The container is taken from the suffix and never guessed, and nothing but the
file itself is opened, because some formats refer to other files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError, install_command
from emat.images.sources import MAX_PIXELS, too_large

CONTAINERS = {
    ".mp4": "mov", ".mov": "mov", ".m4v": "mov", ".avi": "avi", ".mkv": "matroska", ".webm": "matroska",
}  # fmt: skip
VIDEO_SUFFIXES = tuple(CONTAINERS)
ONLY_FILES = {"protocol_whitelist": "file"}
CHANNELS = ("red", "green", "blue")


class Video:
    """The frames of a video, upright. They are quickest in order; going back begins anew.

    Args:
        path: The file.
        max_pixels: The largest frame that is decoded.

    Raises:
        EmatError: PyAV is not installed, its frames are too large, or there is no video in the file.
    """

    def __init__(self, path: Path, max_pixels: int = MAX_PIXELS) -> None:
        self.path, self._max_pixels = path, max_pixels
        self._frames: Iterator[NDArray[np.uint8]] = self._decoded()
        first = next(self._frames, None)
        if first is None:
            raise EmatError("damaged-file", f"{path} has no frame that can be read; convert it to MP4 and try again")
        self._last, self._next = first, 1  # the last frame that was decoded, and the number of the next
        self.size = (int(first.shape[0]), int(first.shape[1]))
        self.count = self._counted()

    def frame(self, index: int) -> NDArray[np.uint8]:
        """Return a frame (H, W, 3), counted from 0."""
        if index < self._next - 1:
            self._frames, self._next = self._decoded(), 0
        while self._next <= index:
            frame = next(self._frames, None)
            if frame is None or frame.shape[:2] != self.size:
                raise EmatError(
                    "damaged-file", f"{self.path} ends or changes its size at frame {self._next}; cut it there"
                )
            self._last, self._next = frame, self._next + 1
        return self._last

    def _decoded(self) -> Iterator[NDArray[np.uint8]]:
        with self._opened() as container:
            for frame in container.decode(video=0):
                turns = round(getattr(frame, "rotation", 0) / 90) % 4
                yield np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), turns))

    def _counted(self) -> int:
        """The number of frames: packets are counted, because what the header says may be wrong."""
        with self._opened() as container:
            return sum(packet.pts is not None for packet in container.demux(video=0))

    def _opened(self) -> Any:
        av = _av()
        try:
            container = av.open(str(self.path), format=CONTAINERS[self.path.suffix.lower()], options=ONLY_FILES)
        except (av.FFmpegError, OSError, ValueError) as error:
            raise EmatError("damaged-file", f"{self.path} cannot be read ({error}); convert it to MP4") from None
        if not container.streams.video:
            container.close()
            raise EmatError("damaged-file", f"{self.path} has no video in it; check the name")
        context = container.streams.video[0].codec_context
        if context is None:  # for example of a file that was cut off
            container.close()
            raise EmatError("damaged-file", f"{self.path} has a video of an unknown kind; convert it to MP4")
        if context.width * context.height > self._max_pixels:
            container.close()
            size = (context.width, context.height)
            raise EmatError("photo-too-large", too_large(str(self.path), self._max_pixels, size))
        return container


def _av() -> ModuleType:
    try:
        import av
    except ImportError:
        raise EmatError("missing-package", f"videos need PyAV; install it with: {install_command('video')}") from None
    return av
