"""A threshold that fits the photo: a mask begins where its expected IoU is highest.

One threshold for all photos loses much: the best one of each photo differs by a logit and more. If the probability of
each pixel is right, the IoU to expect of any mask follows from the probabilities alone: their sum inside of the mask
over the mask's area plus their sum outside. So the logits of left-out photos first say what probability a logit stands
for, and the threshold of a new photo is then the one with the highest expected IoU on that photo.

On the odd photos of steel defects and nuclei (five examples, eight new photos, two tasks a class), mIoU is 73.1 and
82.6 with it, 71.3 and 82.6 with one threshold (`python benchmarks/own_photos.py steel/ nuclei/ --half odd --examples 5
--queries 8 --seed 5 --refine none`, then with `--one-threshold`). It was chosen on the even photos and on PASCAL's
training list, where the best threshold of each photo would gain 4 to 11 points, and this one gains 0 to 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

FEWEST_PHOTOS = 3  # without which nothing is learnt of probabilities
LOWEST, HIGHEST = -1.0, 2.0  # logits: no threshold lies farther from the usual one, because no calibration is perfect
CANDIDATES = 31  # thresholds between them that are tried
GRADUAL = 0.1  # logits over which a pixel enters a mask
NEARLY = 0.005  # expected IoU: a threshold that is worse by so much counts e times less
MOST_POSITIONS = 20_000  # of a map on which the threshold is looked for
MOST_CALIBRATING = 5_000  # of each map that calibrates
STEPS = 12  # of Newton's method
USUAL = 1e-3  # the weight of a slope of 1, beside a mean weight of 1 for every photo
LEAST_SLOPE = 0.1


class PhotoThreshold(NamedTuple):
    """What probability a logit stands for: that of `slope * logit + bias`."""

    slope: float
    bias: float

    def on(self, logits: Tensor) -> Tensor:
        """The threshold (B,), as a logit, from the logits (B, h, w) of whole photos.

        It is the mean of the thresholds that are nearly as good as the best one, and a pixel enters a mask gradually,
        so that rounding does not move it: an exported graph must give the same answer.
        """
        step = max(1, round((logits.shape[1] * logits.shape[2] / MOST_POSITIONS) ** 0.5))
        positions = logits[:, ::step, ::step].flatten(1)  # (B, n)
        probabilities = torch.sigmoid(self.slope * positions + self.bias)
        candidates = torch.linspace(LOWEST, HIGHEST, CANDIDATES, device=logits.device).to(logits.dtype)
        is_inside = torch.sigmoid((positions[:, None] - candidates[:, None]) / GRADUAL)  # (B, candidates, n)
        inside = (is_inside @ probabilities[..., None])[..., 0]  # (B, candidates): the sum of probabilities in the mask
        areas, total = is_inside.sum(dim=2), probabilities.sum(dim=1, keepdim=True)
        expected = inside / (areas + total - inside)
        return (expected / NEARLY).softmax(dim=1) @ candidates


def learn_threshold(logits: Sequence[Tensor], labels: Sequence[Tensor]) -> PhotoThreshold | None:
    """Learn from left-out photos what probability a logit stands for, by logistic regression; every photo counts alike.

    Args:
        logits: The logits (h, w) of a class on each photo.
        labels: (h, w), 1 inside of the class, 0 outside, anything else where nothing is known.

    Returns:
        None if the photos are too few, or a higher logit does not mean a higher probability.
    """
    if len(logits) < FEWEST_PHOTOS:
        return None
    values, targets, weights = [], [], []
    for one, label in zip(logits, labels, strict=True):
        pixels, truth = one.flatten().cpu(), label.flatten().cpu()  # doubles, which not every device has
        labelled = truth <= 1
        step = 1 + int(labelled.sum()) // MOST_CALIBRATING
        values.append(pixels[labelled][::step].double())
        targets.append(truth[labelled][::step].double())
        weights.append(torch.full_like(values[-1], 1 / max(1, len(values[-1]))))
    x, y, weight = torch.cat(values), torch.cat(targets), torch.cat(weights) / len(logits)
    design = torch.stack([x, torch.ones_like(x)], dim=1)  # (n, 2)
    line = torch.tensor([1.0, 0.0], dtype=torch.float64)
    usual = torch.tensor([USUAL, 0.0], dtype=torch.float64)
    for _ in range(STEPS):
        probability = torch.sigmoid(design @ line)
        gradient = design.T @ (weight * (probability - y)) + usual * (line - torch.tensor([1.0, 0.0]))
        curvature = design.T @ (design * (weight * probability * (1 - probability))[:, None]) + usual.diag()
        line = line - torch.linalg.solve(curvature + 1e-9 * torch.eye(2), gradient).clamp(-1, 1)
    slope, bias = line.tolist()
    return PhotoThreshold(slope, bias) if slope >= LEAST_SLOPE else None
