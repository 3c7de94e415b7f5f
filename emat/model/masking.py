"""Which support tokens a layer's attention may look at."""

import torch.nn.functional as F
from torch import Tensor


def kept_cells(mask: Tensor, grid: int) -> Tensor:
    """Row-major indices (k,) of the cells of a grid x grid support that `mask` (H, W) covers.

    The mask is resized bilinearly with its corners aligned, and any value above 0 counts: a cell is kept when one of
    the four mask pixels around its sampling point is foreground. Small objects can vanish here; then none is kept.

    >>> import torch
    >>> mask = torch.zeros(100, 100)
    >>> mask[:50, :50] = 1
    >>> kept_cells(mask, 4)
    tensor([0, 1, 4, 5])
    """
    small = F.interpolate(mask[None, None].float(), (grid, grid), mode="bilinear", align_corners=True)
    return (small.flatten() > 0).nonzero().squeeze(1)
