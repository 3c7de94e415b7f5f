"""Photos whose patches are colours, so that every similarity is known."""

import numpy as np
import torch
from numpy.typing import NDArray

from emat.methods.base import Features
from emat.methods.training_free import SupportPatches

GRID = (4, 6)
RED, GREY, BLUE = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)


def picture(colour: tuple[float, ...], rows: slice, columns: slice) -> NDArray[np.float64]:
    """A grey photo with a rectangle of another colour, (4, 6, 3)."""
    image = np.tile(np.array(GREY), (*GRID, 1))
    image[rows, columns] = colour
    return image


def features_of(image: NDArray[np.float64]) -> Features:
    """Features with one patch for each pixel of an image, for a backbone with a stride of 16."""
    patches = torch.tensor(image, dtype=torch.float32).reshape(1, -1, 3)
    tokens = torch.cat([torch.zeros(1, 1, 3), patches], dim=1).expand(2, -1, -1)
    return Features((tokens,), (16 * image.shape[0], 16 * image.shape[1]))


def support_of(image: NDArray[np.float64], mask: NDArray[np.float64]) -> SupportPatches:
    """A support whose patches are the colours of an image, as unit vectors."""
    inside = torch.tensor(mask, dtype=torch.float32).flatten()
    return SupportPatches(torch.tensor(image, dtype=torch.float32).reshape(-1, 3), inside, 1 - inside)
