"""Several classes are one question: every pixel goes to the class whose logit is highest, if that is not below 0.

The margin of a class is its logit less what its strongest rival has above 0. A class wins a pixel if its margin is not
below 0 there, and it is present if its margins on the best part of a photo are high. Classes that may overlap, as a
lesion and its leaf, are not rivals.

Mixtures are chosen class by class. A class that is similar to a stronger or larger one would then win no pixel. So the
logits of each class are stretched and shifted until the label maps of left-out photos are best, all classes together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from emat.pixel_learner.mixture import Mixture

ROUNDS = 2
SCALES = (0.5, 0.7, 1.4, 2.0)  # by which logits are multiplied: that leaves the class's own border where it is
STEPS = (-1.0, -0.5, -0.25, 0.25, 0.5, 1.0)  # by which the shift is changed
WORTH_IT = 0.003  # of the objective: smaller gains on a few photos are chance
MOST_VALUES = 200_000  # pixels times classes that mixtures are tried on
CALIBRATING = tuple(2.0 ** (power / 2) for power in range(-6, 5))


def margins(logits: Tensor, rivals: Sequence[Sequence[int]]) -> Tensor:
    """The margin of each class over background and its rivals.

    >>> margins(torch.tensor([[3.0, 1.0, -2.0]]), [[1, 2], [0, 2], [0, 1]]).tolist()
    [[2.0, -2.0, -5.0]]

    Args:
        logits: (B, N, ...).
        rivals: The indices of the rivals of each class.

    Returns:
        (B, N, ...)
    """
    classes = logits.unbind(dim=1)
    return torch.stack(
        [
            own - torch.stack([classes[other] for other in others]).amax(dim=0).clamp_min(0) if others else own
            for own, others in zip(classes, rivals, strict=True)
        ],
        dim=1,
    )


def all_rivals(count: int) -> list[list[int]]:
    """The rivals of so many classes that do not overlap."""
    return [[other for other in range(count) if other != c] for c in range(count)]


@dataclass(frozen=True)
class Rivals:
    """The logits of all N classes at n drawn pixels of P left-out photos."""

    logits: Tensor  # (n, N): the highest wins; -inf where nobody asked for the class
    inside: Tensor  # (n, N) bool: the pixel is of the class
    known: Tensor  # (n, N) bool
    shares: Tensor  # (n,): the share of its photo that a pixel stands for
    photo: Tensor  # (n,): from 0
    rivals: Sequence[Sequence[int]]  # of each class

    def some(self) -> Rivals:
        """So many of the pixels that trying many mixtures is quick."""
        step = 1 + self.logits.numel() // MOST_VALUES
        some = slice(None, None, step)
        return Rivals(
            self.logits[some], self.inside[some], self.known[some], self.shares[some], self.photo[some], self.rivals
        )

    def won(self, logits: Tensor | None = None) -> Tensor:
        """Whether each class wins each pixel (n, N)."""
        return margins(self.logits if logits is None else logits, self.rivals) >= 0

    def overlaps(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Intersection and union (P, N) on each photo, from which pixels (n, N) each class wins."""
        return self.areas(chosen & self.inside), self.areas((chosen & self.known) | self.inside)

    def iou(self, chosen: Tensor) -> Tensor:
        """Intersection over union (P, N); NaN on photos that do not show a class."""
        inside, union = self.overlaps(chosen)
        return torch.where(self.areas(self.inside) > 0, inside / union.clamp_min(1e-12), torch.nan)

    def areas(self, chosen: Tensor) -> Tensor:
        """The share of each photo (P, N) that chosen pixels (n, N) of each class cover."""
        empty = torch.zeros(int(self.photo.max()) + 1, self.inside.shape[1], device=chosen.device)
        return empty.index_add(0, self.photo, self.shares[:, None] * chosen)

    def objective(self, logits: Tensor) -> float:
        """How good the label maps are, on average over the classes.

        It counts the mean IoU of the photos that show a class, and the IoU over all photos, where false alarms count.
        The root makes a class that vanishes cost more than a better one gains.
        """
        won = self.won(logits)
        inside, union = (areas.sum(dim=0) for areas in self.overlaps(won))
        mean = torch.nanmean(self.iou(won), dim=0)
        value = (mean + inside / union.clamp_min(1e-12)) / 2
        return float(torch.nanmean(value.clamp_min(0).sqrt()))

    def confusion(self, chosen: Tensor) -> Tensor:
        """(N, N): the share of a class's pixels that are called each class; the rest is called background.

        It is NaN for classes that are not rivals: a lesion on its leaf is rightly called both.
        """
        classes = range(self.inside.shape[1])
        shares = torch.full((len(classes), len(classes)), torch.nan, device=chosen.device)
        for c in classes:
            mass = self.shares * self.inside[:, c]
            for other in (c, *self.rivals[c]):
                asked = mass[self.logits[:, other] > -torch.inf].sum()
                if asked > 0:
                    shares[c, other] = mass[chosen[:, other]].sum() / asked
        return shares


def calibrate(rivals: Rivals, mixtures: Sequence[Mixture], free: Sequence[bool]) -> tuple[list[Mixture], Tensor]:
    """Stretch and shift the mixtures so that the joint label maps of left-out photos are as good as they can be.

    Args:
        rivals: The logits that the mixtures give.
        mixtures: Of each class.
        free: Of each class whether it may change: it was left out.

    Returns:
        The mixtures, and the logits (n, N) that they give.
    """
    some = rivals.some()
    chosen = list(mixtures)
    factors, offsets = torch.ones(len(chosen)), torch.zeros(len(chosen))  # from the given logits to the chosen ones
    changing = [c for c, is_free in enumerate(free) if is_free]
    for c in changing:
        factors[c] = _calibrated(some, c)
        chosen[c] = _stretched(chosen[c], float(factors[c]))
    best = some.objective(_changed(some.logits, factors, offsets))
    for _ in range(ROUNDS):
        before = best
        for c in changing:
            scaled = [(scale, 0.0, _stretched(chosen[c], scale)) for scale in SCALES]
            moved = [
                (1.0, chosen[c].learner * step, chosen[c]._replace(shift=chosen[c].shift + step)) for step in STEPS
            ]
            start = float(factors[c]), float(offsets[c])
            for factor, offset, mixture in (*scaled, *moved):
                tried = factors.clone(), offsets.clone()
                tried[0][c], tried[1][c] = start[0] * factor, start[1] * factor + offset
                value = some.objective(_changed(some.logits, *tried))
                if value > best + WORTH_IT:
                    best, chosen[c], (factors, offsets) = value, mixture, tried
        if best == before:
            break
    return chosen, _changed(rivals.logits, factors, offsets)


def _changed(logits: Tensor, factors: Tensor, offsets: Tensor) -> Tensor:
    return logits * factors.to(logits) + offsets.to(logits)


def _calibrated(rivals: Rivals, c: int) -> float:
    """The factor that makes the logits of a class as sure as they are right, so that classes can be compared."""
    asked = rivals.known[:, c] & (rivals.logits[:, c] > -torch.inf)
    signed = torch.where(rivals.inside[asked, c], 1.0, -1.0) * rivals.logits[asked, c]
    weights = rivals.shares[asked]
    loss = [float((weights * torch.nn.functional.softplus(-scale * signed)).sum()) for scale in CALIBRATING]
    return CALIBRATING[loss.index(min(loss))]


def _stretched(mixture: Mixture, scale: float) -> Mixture:
    return Mixture(scale * mixture.head, scale * mixture.learner, mixture.shift)
