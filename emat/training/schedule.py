"""The course of the learning rate: a function of the step alone, so there is no state to keep."""

import math

ONE_CYCLE_RISE = 0.3  # share of the steps in which the rate rises
ONE_CYCLE_START = 1 / 25  # of the peak
FLOOR = 1e-2  # of the peak: where cosine and one-cycle end


def rate_at(step: int, steps: int, peak: float, schedule: str, warmup: int = 0) -> float:
    """The learning rate of step `step` of `steps`, counted from 0.

    >>> [round(rate_at(step, 5, 1.0, "cosine", warmup=1), 3) for step in range(5)]
    [0.5, 1.0, 0.752, 0.258, 0.01]
    """
    if step < warmup:
        return peak * (step + 1) / (warmup + 1) if schedule != "one-cycle" else peak * ONE_CYCLE_START
    if schedule == "constant":
        return peak
    done = (step - warmup) / max(steps - 1 - warmup, 1)
    if schedule == "cosine":
        return peak * _glide(1.0, FLOOR, done)
    if done < ONE_CYCLE_RISE:
        return peak * _glide(ONE_CYCLE_START, 1.0, done / ONE_CYCLE_RISE)
    return peak * _glide(1.0, FLOOR, (done - ONE_CYCLE_RISE) / (1 - ONE_CYCLE_RISE))


def _glide(start: float, end: float, done: float) -> float:
    """From start to end along half a cosine wave."""
    return end + (start - end) * (1 + math.cos(math.pi * min(done, 1.0))) / 2
