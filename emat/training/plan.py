"""How a run is cut into epochs and steps, and which tasks each process takes."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """`total` tasks in all, `per_epoch` of them an epoch, `batch` a step; the last of each may be shorter.

    >>> plan = Plan(per_epoch=10, batch=4, total=25)
    >>> plan.epochs, plan.steps(0), plan.steps(2), plan.total_steps
    (3, 3, 2, 8)
    >>> plan.tasks(0, 2), plan.share(0, 0, rank=1, processes=2)
    (range(8, 10), range(1, 4, 2))
    """

    per_epoch: int
    batch: int
    total: int

    @property
    def epochs(self) -> int:
        """Epochs, the last perhaps shorter."""
        return math.ceil(self.total / self.per_epoch)

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.step_before(self.epochs - 1) + self.steps(self.epochs - 1)

    def tasks_in(self, epoch: int) -> int:
        """Tasks of an epoch."""
        return min(self.per_epoch, self.total - epoch * self.per_epoch)

    def steps(self, epoch: int) -> int:
        """Steps of an epoch."""
        return math.ceil(self.tasks_in(epoch) / self.batch)

    def step_before(self, epoch: int) -> int:
        """Steps done when an epoch begins."""
        return epoch * math.ceil(self.per_epoch / self.batch)

    def tasks(self, epoch: int, step: int) -> range:
        """Indices within the epoch of one step's tasks."""
        return range(step * self.batch, min((step + 1) * self.batch, self.tasks_in(epoch)))

    def share(self, epoch: int, step: int, rank: int, processes: int) -> range:
        """Those of one process: every task is one process's, whatever their number."""
        return self.tasks(epoch, step)[rank::processes]
