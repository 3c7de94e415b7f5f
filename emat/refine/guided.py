"""Guided upsampling: a probability map drawn again along the photo's edges, without any weights.

In every small window the map is explained as a linear function of the photo's colours (the guided filter of He, Sun and
Tang), so that it changes where the colours change and is smooth where they are.
"""

import numpy as np
from scipy import ndimage

from emat.images import Pixels, resize_map, resize_photo
from emat.refine.regions import Map

RADIUS = 0.02  # of a window, as a share of the longer side
EDGE = 0.02  # differences of colour, of 0 to 1, that begin to count as an edge
LONGEST_SIDE = 640  # at which the filter works: what it finds is smooth enough to be enlarged


def guided(probability: Map, photo: Pixels, radius: float = RADIUS, edge: float = EDGE) -> Map:
    """Draw a probability map (h, w) again along the edges of a photo (H, W, 3).

    Args:
        probability: how likely each pixel belongs to a class; of any size.
        photo: the photo it is about.
        radius: of the windows, as a share of the longer side.
        edge: how different colours, of 0 to 1, must be to count as an edge.

    >>> photo = np.zeros((40, 60, 3), np.uint8)
    >>> photo[:, 33:] = 255
    >>> blurred = np.clip((np.arange(60, dtype=np.float32) - 20) / 20, 0, 1)[None].repeat(40, axis=0)
    >>> sharp = guided(blurred, photo, radius=0.1)
    >>> blurred[20, [31, 34]].astype(float).round(2).tolist(), sharp[20, [31, 34]].astype(float).round(2).tolist()
    ([0.55, 0.7], [0.42, 0.81])
    """
    height, width = probability.shape
    shrink = min(1.0, LONGEST_SIDE / max(height, width))
    size = max(1, round(height * shrink)), max(1, round(width * shrink))
    guide = resize_photo(photo, size).astype(np.float32) / np.float32(255)  # (h', w', 3)
    drawn = _filtered(resize_map(probability, size), guide, max(1, round(radius * max(size))), edge**2)
    return np.clip(resize_map(drawn, (height, width)), 0, 1)


def _filtered(values: Map, guide: Map, radius: int, smoothness: float) -> Map:
    """The guided filter with a colour guide (h, w, 3)."""

    def mean(x: Map) -> Map:
        return np.asarray(
            ndimage.uniform_filter(x, (2 * radius + 1, 2 * radius + 1, *[0] * (x.ndim - 2)), mode="nearest")
        )

    centre, level = mean(guide), mean(values)  # (h, w, 3), (h, w)
    products = guide[..., :, None] * guide[..., None, :]  # (h, w, 3, 3)
    covariance = mean(products) - centre[..., :, None] * centre[..., None, :] + smoothness * np.eye(3, dtype=np.float32)
    together = mean(guide * values[..., None]) - centre * level[..., None]  # (h, w, 3)
    slope = np.linalg.solve(covariance, together[..., None])[..., 0]
    offset = level - (slope * centre).sum(axis=2)
    return np.asarray((mean(slope) * guide).sum(axis=2) + mean(offset), np.float32)
