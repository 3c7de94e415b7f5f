"""From photos of more than 8 bits to 8 bits.

Cameras of microscopes and telescopes give 10, 12, 14 or 16 bits, and rarely use all of them: divided by 257, such a
photo is black. So the values of each photo are stretched between two of its percentiles, unless the user says
otherwise. Photos of 8 bits stay as they are.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.progress import tell_once

KINDS = ("none", "percentile", "min-max")
PERCENTILES = (0.1, 99.9)
SAMPLE = 4_000_000  # values from which percentiles are estimated
DEEPEST = 65535


@dataclass(frozen=True)
class Stretch:
    """How values of more than 8 bits become 0 to 255.

    Attributes:
        kind: "percentile": from the 0.1th percentile of the photo to the 99.9th. "min-max": from its lowest value to
            its highest. "none": the whole range of 16 bits, or 0 to 1 for fractions. "range": from `low` to `high`.
        low: The value that becomes 0.
        high: The value that becomes 255.

    >>> Stretch.read("100,4000")
    Stretch(kind='range', low=100.0, high=4000.0)
    >>> str(Stretch.read("100,4000")), str(Stretch())
    ('100,4000', 'percentile')
    """

    kind: str = "percentile"
    low: float = 0.0
    high: float = 0.0

    @classmethod
    def read(cls, text: str) -> "Stretch":
        """Read what --stretch says; EmatError if it is not a way to stretch."""
        if text in KINDS:
            return cls(text)
        low, comma, high = text.partition(",")
        try:
            limits = float(low), float(high)
        except ValueError:
            limits = np.nan, np.nan
        if not comma or not np.isfinite(limits).all() or limits[0] >= limits[1]:
            raise EmatError(
                f"--stretch is {text!r}; it must be {', '.join(KINDS)}, or two values LOW,HIGH as in 100,4000"
            )
        return cls("range", *limits)

    def __str__(self) -> str:
        return self.kind if self.kind != "range" else f"{self.low:.9g},{self.high:.9g}"

    def limits(self, values: NDArray[Any]) -> tuple[float, float]:
        """Return the values that become 0 and 255.

        Args:
            values: The photo or a sample of it, of whole numbers or fractions.

        Raises:
            EmatError: "none" is asked for, and the range of the values is not known.
        """
        if self.kind == "range":
            return self.low, self.high
        known = values[np.isfinite(values)] if values.dtype.kind == "f" else values.ravel()
        if not known.size:
            return 0.0, 1.0
        lowest, highest = float(known.min()), float(known.max())
        if values.dtype.kind == "f" and lowest >= 0 and highest <= 1 and self.kind != "min-max":
            return 0.0, 1.0  # fractions of white
        if self.kind == "none":
            if values.dtype.kind == "f" or lowest < 0 or highest > DEEPEST:
                raise EmatError(
                    f"its values reach from {lowest:.4g} to {highest:.4g}, whose black and white are not known; "
                    "give them with --stretch LOW,HIGH"
                )
            return 0.0, float(DEEPEST)
        if self.kind == "min-max":
            return lowest, highest
        step = max(1, known.size // SAMPLE)
        low, high = (float(value) for value in np.percentile(known[::step], PERCENTILES))
        # A few bright stars on a black sky: the percentiles fall together, the values do not.
        return (low, high) if high > low else (lowest, highest)

    def apply(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """Return the photo with 8 bits; values that are not numbers become black.

        Raises:
            EmatError: As `limits`.
        """
        low, high = self.limits(values)
        tell_once(_sentence(self))
        return scaled(values, low, high)


def scaled(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """Return values as 8 bits, so that `low` becomes 0 and `high` 255."""
    work: Any = np.float32 if values.dtype.itemsize <= 2 else np.float64  # 32 bits do not fit into the former
    unit = (values.astype(work) - work(low)) / work(max(high - low, 1e-30))
    return (np.nan_to_num(unit, nan=0.0, posinf=1.0, neginf=0.0).clip(0, 1) * 255 + 0.5).astype(np.uint8)


def _sentence(stretch: Stretch) -> str:
    ways = {
        "percentile": "from the percentiles 0.1 and 99.9 of each photo",
        "min-max": "from the lowest and the highest value of each photo",
        "none": "from the whole range of 16 bits",
    }
    way = ways.get(stretch.kind, f"from {stretch.low:.6g} and {stretch.high:.6g}")
    return f"photos of more than 8 bits are brought to 8 bits {way}; --stretch changes that"
