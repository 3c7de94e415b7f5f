"""Label Studio's run lengths for brush strokes: a mask as the bits of an RGBA image, run by run.

The bits are: the number of bytes of the image (32), the bits of a value less one (5), four lengths less one (4 each),
and then the runs. A run is a bit that says whether its values are all equal, the index of one of the four lengths (2),
its number of values less one in so many bits, and its value, or all its values one after the other.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CHANNELS = 4  # of RGBA
VALUE_BITS = 8
LENGTHS = (3, 4, 8, 16)  # bits for the number of values of a run
MOST_PIXELS = 2**28  # a forged annotation could claim any size


def encode_brush(mask: NDArray[np.bool_]) -> list[int]:
    """Return the run lengths of a mask (H, W) as Label Studio stores them, a list of bytes.

    >>> decode_brush(encode_brush(np.eye(3, dtype=bool)), (3, 3)).astype(int).tolist()
    [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    """
    flat = mask.ravel()
    edges = np.flatnonzero(np.diff(flat)) + 1
    starts = np.concatenate([[0], edges, [flat.size]])
    bits = [f"{flat.size * CHANNELS:032b}", f"{VALUE_BITS - 1:05b}", *(f"{each - 1:04b}" for each in LENGTHS)]
    for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        value = f"{255 if flat[start] else 0:08b}"
        left = (end - start) * CHANNELS
        while left:
            now = min(left, 2 ** LENGTHS[-1])
            index = next(number for number, each in enumerate(LENGTHS) if now <= 2**each)
            bits.append(f"1{index:02b}{now - 1:0{LENGTHS[index]}b}{value}")
            left -= now
    text = "".join(bits)
    text += "0" * (-len(text) % 8)
    return list(int(text, 2).to_bytes(len(text) // 8, "big"))


def decode_brush(runs: Sequence[int], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the mask (H, W) of run lengths; a pixel counts if it is not transparent.

    Raises:
        ValueError: If they are damaged, or of another size.
    """
    count = size[0] * size[1] * CHANNELS
    if not 0 < count <= MOST_PIXELS * CHANNELS:
        raise ValueError(f"an image of {size[1]} x {size[0]} pixels")
    bits = np.unpackbits(np.array(runs, np.uint8))
    reader = _Bits("".join(map(str, bits.tolist())))
    if reader.take(32) != count:
        raise ValueError(f"the run lengths are not of an image of {size[1]} x {size[0]} pixels")
    value_bits = reader.take(5) + 1
    lengths = [reader.take(4) + 1 for _ in range(4)]
    image = np.zeros(count, np.uint8)
    done = 0
    while done < count:
        is_run, length = reader.take(1), reader.take(lengths[reader.take(2)]) + 1
        if is_run:
            image[done : done + length] = min(255, reader.take(value_bits))
        else:
            image[done : done + length] = [min(255, reader.take(value_bits)) for _ in range(length)][: count - done]
        done += length
    return image.reshape(*size, CHANNELS)[:, :, CHANNELS - 1] > 0


class _Bits:
    """Numbers of any width from a text of bits."""

    def __init__(self, text: str) -> None:
        self._text, self._done = text, 0

    def take(self, count: int) -> int:
        found = self._text[self._done : self._done + count]
        if len(found) < count:
            raise ValueError("the run lengths end too early")
        self._done += count
        return int(found, 2)
