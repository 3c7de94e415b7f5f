"""Photos of leaves with lesions, drawn by rule, with the truth about each lesion."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

SIZE = (480, 640)


def leaf(seed: int, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """A green leaf with veins on a grey table, and brown lesions with yellow rims: the photo, and a number for each."""
    random = np.random.default_rng(seed)
    height, width = SIZE
    y, x = np.mgrid[:height, :width].astype(np.float32)

    def noise(scale: float) -> NDArray[np.float32]:
        return 2 * scale * ndimage.gaussian_filter(random.standard_normal(SIZE).astype(np.float32), scale)

    photo = np.full((*SIZE, 3), (190, 185, 178), np.float32) + 4 * noise(3)[..., None]
    inside = ((x - width / 2) / (0.46 * width)) ** 2 + ((y - height / 2) / (0.44 * height)) ** 2 < 1 + 0.06 * noise(25)
    photo[inside] = np.stack([70 + 8 * noise(6), 125 + 10 * noise(6), 50 + 6 * noise(6)], -1)[inside]
    veins = (abs(y - height / 2 + 8 * np.sin(x / 60)) < 3) | (abs((x - y) % 90) < 2)
    photo[inside & veins] = (120, 160, 85)
    depth = ndimage.distance_transform_edt(inside)
    lesions = np.zeros(SIZE, np.int32)
    placed: list[tuple[float, float, float]] = []
    while len(placed) < count:
        row, column, radius = random.uniform(0, height), random.uniform(0, width), random.uniform(6, 13)
        near = any(np.hypot(row - a, column - b) < radius + c + 6 for a, b, c in placed)
        if near or depth[int(row), int(column)] < radius + 6:
            continue
        placed.append((row, column, radius))
        angle, distance = np.arctan2(y - row, x - column), np.hypot(y - row, x - column)
        edge = radius * (1 + 0.18 * np.sin(2 * angle + random.uniform(0, 6)))
        photo[distance < 1.15 * edge] = (165, 150, 60)
        photo[distance < edge] = np.array((110, 65, 35)) + random.normal(0, 8)
        lesions[distance < edge] = len(placed)
    photo += random.normal(0, 5, photo.shape)
    return np.clip(ndimage.gaussian_filter(photo, (0.7, 0.7, 0)), 0, 255).astype(np.uint8), lesions
