"""A moving average of the weights that training changes: steadier than any single step's."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """The exponential moving average of a module's trainable parameters; with decay 0 it is the parameters."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
        self.decay = decay
        self.tensors = {name: value.detach().clone() for name, value in self._parameters.items()} if decay else {}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the parameters after step `step`, counted from 0; the first ones weigh more, to forget the start."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, average in self.tensors.items():
            average.lerp_(self._parameters[name].detach().to(average.device), 1 - decay)

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from an average that was kept; without one, from the parameters as they are now."""
        for name, average in self.tensors.items():
            average.copy_(tensors.get(name, self._parameters[name].detach()))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The module has the averaged parameters inside the block, and its own again after it."""
        own = {name: self._parameters[name].detach().clone() for name in self.tensors}
        self._put(self.tensors)
        try:
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, tensors: Mapping[str, Tensor]) -> None:
        for name, value in tensors.items():
            self._parameters[name].copy_(value)
