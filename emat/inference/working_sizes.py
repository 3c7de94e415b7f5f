"""The size at which photos are learnt from, chosen by what is forecast for each."""

from __future__ import annotations

from collections.abc import Callable

from emat.inference.segmenter import Segmenter
from emat.methods.pixel_features import WORKING_SIDE

TIMES = 2  # the larger size, in multiples of the usual one; it takes about four times as long
WORTH_IT = 0.02  # IoU that the larger size must be better by


def best_size(fitted: Callable[[int], Segmenter]) -> tuple[Segmenter, str | None]:
    """Fit at the usual size and at twice that, and keep what promises better masks.

    At the larger size, examples and new photos are both seen closer, so that their scales match.

    Args:
        fitted: Returns a segmenter that was fitted with the examples at a working size.

    Returns:
        The segmenter, and a sentence that says what was found; None if the photos are too small to tell, or too few.
    """
    usual = fitted(WORKING_SIDE)
    before = _expected(usual)
    seen = [max(example.working.photo.shape) for example in usual.examples_ if example.working is not None]
    if before is None or max(seen, default=0) < WORKING_SIDE:
        return usual, None
    larger = fitted(TIMES * WORKING_SIDE)
    after = _expected(larger)
    if after is None:
        return usual, None
    found = f"IoU {before:.2f} is expected at {WORKING_SIDE} pixels and {after:.2f} at {TIMES * WORKING_SIDE}"
    if after < before + WORTH_IT:
        return usual, f"A larger size does not help: {found}."
    return larger, f"The larger size helps: {found}. Predictions take longer."


def _expected(segmenter: Segmenter) -> float | None:
    """The mean of what is expected of the classes."""
    known = [each.iou for each in segmenter.forecast_.values() if each.iou is not None]
    return sum(known) / len(known) if known else None
