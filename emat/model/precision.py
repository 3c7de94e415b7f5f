"""Which precision the hot path computes in: the network's own, or autocast's where the caller has switched that on."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def compute_dtype(parameter: Tensor) -> torch.dtype:
    """What products should be computed in: autocast's type for the parameter's device, else the parameter's own."""
    kind = parameter.device.type
    if parameter.is_floating_point() and torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return parameter.dtype


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Code that chooses its types itself: autocast would undo that, and differently in forward and backward."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
