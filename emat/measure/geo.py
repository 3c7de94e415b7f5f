"""Where the pixels of a GeoTIFF lie on the ground."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emat.images.sources import identify, split_page

PIXEL_SCALE_TAG, TIE_POINT_TAG, TRANSFORMATION_TAG, KEYS_TAG = 33550, 33922, 34264, 34735
GEOGRAPHIC_KEY, PROJECTED_KEY, LINEAR_UNIT_KEY = 2048, 3072, 3076
METRE = 9001
USER_DEFINED = 32767


@dataclass(frozen=True)
class Ground:
    """The coordinates of a photo's pixels on the ground.

    Attributes:
        matrix: (2, 3): from x and y in pixels, counted from the photo's corner, to coordinates.
        crs: The coordinate system, such as EPSG:32632; None if the file does not name it.
        metres: The side of a pixel; None if coordinates are degrees, or pixels are not square.
    """

    matrix: NDArray[np.float64]
    crs: str | None
    metres: float | None

    def locate(self, corners: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the coordinates of corners of pixels (n, 2) of x, y."""
        return corners @ self.matrix[:, :2].T + self.matrix[:, 2]


def ground_of(path: Path) -> Ground | None:
    """Return where the pixels of a file lie; None if it does not say."""
    file, _ = split_page(path)
    try:
        with identify(file, ("TIFF",), str(path))[0] as image:
            tags: Mapping[int, Any] = dict(getattr(image, "tag_v2", {}))
        matrix, keys = _matrix(tags), _keys(tags.get(KEYS_TAG, ()))
    except Exception:  # tags of another type, or damaged: Pillow's readers raise nearly everything
        return None
    if matrix is None or not np.isfinite(matrix).all() or abs(np.linalg.det(matrix[:, :2])) < 1e-30:
        return None
    projected, geographic = keys.get(PROJECTED_KEY), keys.get(GEOGRAPHIC_KEY)
    code = next((each for each in (projected, geographic) if each not in (None, 0, USER_DEFINED)), None)
    sides = np.linalg.norm(matrix[:, :2], axis=0)
    metric = projected is not None and keys.get(LINEAR_UNIT_KEY, METRE) == METRE
    square = abs(sides[0] - sides[1]) <= 0.01 * sides.max()
    return Ground(matrix, None if code is None else f"EPSG:{code}", float(sides[0]) if metric and square else None)


def _matrix(tags: Mapping[int, Any]) -> NDArray[np.float64] | None:
    whole = tags.get(TRANSFORMATION_TAG)
    if whole is not None and len(whole) == 16:
        square = np.array(whole, np.float64).reshape(4, 4)
        return square[:2, [0, 1, 3]]
    scale, tie = tags.get(PIXEL_SCALE_TAG), tags.get(TIE_POINT_TAG)
    if scale is None or tie is None or len(scale) < 2 or len(tie) < 6:
        return None
    column, row, _, x, y = (float(each) for each in tie[:5])
    across, down = float(scale[0]), -float(scale[1])
    return np.array([[across, 0.0, x - across * column], [0.0, down, y - down * row]])


def _keys(values: Sequence[int]) -> dict[int, int]:
    """The keys of a GeoTIFF whose values are in the directory itself."""
    entries = [tuple(values[start : start + 4]) for start in range(4, len(values) - 3, 4)]
    return {int(key): int(value) for key, where, _, value in entries if where == 0}
