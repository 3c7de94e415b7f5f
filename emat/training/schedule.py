"""Which tasks a step trains on, and its learning rate.

Both follow from the number of the step alone, so a resumed run has no state of a scheduler or a sampler to restore.
"""

import math
from dataclasses import dataclass

ONE_CYCLE_RISE = 0.3  # share of the steps in which the rate rises
ONE_CYCLE_START = 1 / 25  # of the peak
FLOOR = 1e-2  # of the peak: the rate at which cosine and one-cycle end


@dataclass(frozen=True)
class Plan:
    """How the tasks of a run are divided into epochs and steps; the last epoch and the last step may be shorter.

    >>> plan = Plan(per_epoch=10, batch=4, total=25)
    >>> plan.epochs, plan.steps(0), plan.steps(2), plan.total_steps
    (3, 3, 2, 8)
    >>> plan.tasks(0, 2), plan.share(0, 0, rank=1, processes=2)
    (range(8, 10), range(1, 4, 2))
    """

    per_epoch: int  # tasks in an epoch
    batch: int  # tasks in a step
    total: int  # tasks in the run

    @property
    def epochs(self) -> int:
        """The number of epochs, including one that is cut short."""
        return math.ceil(self.total / self.per_epoch)

    @property
    def total_steps(self) -> int:
        """The number of steps in the run."""
        return self.step_before(self.epochs - 1) + self.steps(self.epochs - 1)

    def tasks_in(self, epoch: int) -> int:
        """Return the number of tasks in an epoch."""
        return min(self.per_epoch, self.total - epoch * self.per_epoch)

    def steps(self, epoch: int) -> int:
        """Return the number of steps in an epoch."""
        return math.ceil(self.tasks_in(epoch) / self.batch)

    def step_before(self, epoch: int) -> int:
        """Return the number of steps before an epoch."""
        return epoch * math.ceil(self.per_epoch / self.batch)

    def tasks(self, epoch: int, step: int) -> range:
        """Return the indices, within the epoch, of the tasks of one step."""
        return range(step * self.batch, min((step + 1) * self.batch, self.tasks_in(epoch)))

    def share(self, epoch: int, step: int, rank: int, processes: int) -> range:
        """Return those of the indices that one process trains on; each index belongs to exactly one process."""
        return self.tasks(epoch, step)[rank::processes]


def rate_at(step: int, steps: int, peak: float, schedule: str, warmup: int = 0) -> float:
    """Return the learning rate of a step.

    >>> [round(rate_at(step, 5, 1.0, "cosine", warmup=1), 3) for step in range(5)]
    [0.5, 1.0, 0.752, 0.258, 0.01]

    Args:
        step: The step, counted from 0 over the whole run.
        steps: The number of steps in the run.
        peak: The highest learning rate.
        schedule: "constant", "cosine" or "one-cycle".
        warmup: The number of steps before the schedule begins.
    """
    if step < warmup:
        return peak * (step + 1) / (warmup + 1) if schedule != "one-cycle" else peak * ONE_CYCLE_START
    if schedule == "constant":
        return peak
    done = (step - warmup) / max(steps - 1 - warmup, 1)
    if schedule == "cosine":
        return peak * _half_cosine(1.0, FLOOR, done)
    if done < ONE_CYCLE_RISE:
        return peak * _half_cosine(ONE_CYCLE_START, 1.0, done / ONE_CYCLE_RISE)
    return peak * _half_cosine(1.0, FLOOR, (done - ONE_CYCLE_RISE) / (1 - ONE_CYCLE_RISE))


def _half_cosine(start: float, end: float, done: float) -> float:
    """Return the value on the way from start to end along half a cosine wave, where `done` goes from 0 to 1."""
    return end + (start - end) * (1 + math.cos(math.pi * min(done, 1.0))) / 2
