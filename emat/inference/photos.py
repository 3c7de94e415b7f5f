"""Photos on their way to the network: read ahead of it, and prepared as it was trained."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from emat.errors import EmatError
from emat.images import Pixels, Source, read_photo, to_pixels
from emat.method import Preparation

READ_AHEAD = 2  # photos in memory beside the one being predicted
MOST_DETAIL = 1024  # pixels of a side at which probabilities are kept; masks come from a far coarser grid

Photo: TypeAlias = Source


@dataclass(frozen=True)
class ReadPhoto:
    """A photo that was read, or why it could not be."""

    source: Photo
    pixels: Pixels | None
    problem: EmatError | None


def read_ahead(sources: Iterable[Photo], ahead: int = READ_AHEAD) -> Iterator[ReadPhoto]:
    """The photos in order, read by a thread while the ones before are worked on; never more than `ahead` of them."""
    waiting: deque[Future[ReadPhoto]] = deque()
    reader = ThreadPoolExecutor(1, thread_name_prefix="emat-reader")
    try:
        for source in sources:
            waiting.append(reader.submit(_read, source))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        reader.shutdown(wait=True, cancel_futures=True)


def _read(source: Photo) -> ReadPhoto:
    try:
        return ReadPhoto(source, read_photo(source), None)
    except EmatError as error:
        return ReadPhoto(source, None, error)


def prepared(photo: Pixels, preparation: Preparation, device: torch.device) -> Tensor:
    """(1, 3, S, S): the photo squashed to the square that the network was trained with, normalised."""
    side = preparation.image_size
    pixels = to_pixels(photo, (side, side), preparation.mean, preparation.std)
    return torch.from_numpy(pixels)[None].to(device)


def detail_size(size: tuple[int, int]) -> tuple[int, int]:
    """The size (h, w) at which the probabilities of a photo of `size` are kept: its own, or a smaller one.

    >>> detail_size((375, 500)), detail_size((3000, 4000))
    ((375, 500), (768, 1024))
    """
    scale = min(1.0, MOST_DETAIL / max(size))
    height, width = (max(1, round(side * scale)) for side in size)
    return height, width
