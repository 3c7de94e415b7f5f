"""Reading the ROIs that `emat measure` writes for ImageJ, as ImageJ reads them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import roifile
from numpy.typing import NDArray
from skimage import draw


def read_rois(path: Path, size: tuple[int, int]) -> dict[str, NDArray[np.bool_]]:
    """The masks (H, W) of a zip of ROIs by their names; pixels whose middle is inside count."""
    rois = roifile.roiread(path)
    masks = {}
    for roi in rois if isinstance(rois, list) else [rois]:
        parts: Any = roi.coordinates(multi=True) if roi.shape_roi_size > 0 else [roi.coordinates()]
        masks[str(roi.name)] = even_odd(parts, size)
    return masks


def even_odd(rings: Sequence[NDArray[Any]], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Fill closed lines (n, 2) of x, y by the even-odd rule, (H, W): a pixel counts if its middle is inside."""
    mask = np.zeros(size, bool)
    for ring in rings:
        rows, columns = draw.polygon(ring[:, 1] - 0.5, ring[:, 0] - 0.5, size)
        mask[rows, columns] ^= True
    return mask
