"""The learner: a classifier of single pixels, trained on a user's own examples when a segmenter is fitted.

Each class has a ridge regression on the features of `pixel_features` (`emat.methods.ridge`), whose exact solution for
all photos also gives those that leave some photos out.

The order in which photos are given does not matter: they are sorted by their content first. Pixels are drawn by a fixed
seed, so the same photos always give the same weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from emat.errors import EmatError
from emat.methods.pixel_features import PixelFeatures, linear_maps
from emat.methods.ridge import UNKNOWN, PixelSamples, photo_sums, solve

CLASS_PIXELS, OTHER_PIXELS = 500, 1000  # drawn from a photo at most: of each class, and of no class
MOST_PIXELS = 30_000  # of all photos together
LARGEST_VALUE = 6.0  # standardised features are cut off there, so that no rare value rules
LEAST_SPREAD = 1e-6
SEED = 0


@dataclass(frozen=True)
class LabelledPhoto:
    """A photo and what is known of its pixels."""

    features: PixelFeatures
    masks: Tensor  # (N, H, W) uint8 of any size: 1 = the class, 0 = not the class, 255 = unknown


@dataclass(frozen=True)
class Learner:
    """A trained pixel classifier of N classes."""

    mean: Tensor  # (features,)
    spread: Tensor  # (features,)
    weights: Tensor  # (N, features)
    bias: Tensor  # (N,)

    def logits(self, features: PixelFeatures) -> Tensor:
        """The logit (N, h, w) that each position of the finest map belongs to each class."""
        scaled = _standardised(features, self.mean, self.spread)
        parts = self.weights.to(scaled.maps[0]).split(features.widths, dim=1)
        return linear_maps(scaled, parts, features.grid) + self.bias.to(scaled.maps[0])[:, None, None]


@dataclass(frozen=True)
class Trained:
    """A learner and what it would have said of photos that it had not seen."""

    learner: Learner
    samples: PixelSamples
    left_out: Tensor  # (n, N): logits by regressions that left the sample's photo out; NaN where there is none


def content_order(photos: Sequence[LabelledPhoto]) -> list[int]:
    """The indices of photos in an order that depends on their content alone."""
    keys = []
    for photo in photos:
        key = hashlib.sha256(photo.masks.cpu().numpy().tobytes())
        key.update(photo.features.maps[-1].float().cpu().numpy().tobytes())
        keys.append(key.digest())
    return sorted(range(len(photos)), key=keys.__getitem__)


def train(photos: Sequence[LabelledPhoto], folds: Sequence[int] = ()) -> Trained:
    """Train the regressions of all classes.

    Args:
        photos: What is known, in an order from `content_order` where the order must not matter.
        folds: For each photo the number, from 0, of the group that it is left out with; empty to leave none out.

    Returns:
        The learner of all photos, and the logits of the left-out regressions at the drawn pixels.
    """
    mean, spread = _statistics([photo.features for photo in photos])
    samples = _draw(photos, mean, spread)
    if len(samples.photo) == 0:
        raise EmatError("the examples have no pixel that is known; paint more of them")
    classes = samples.labels.shape[1]
    sums = photo_sums(samples, folds or [0] * len(photos))
    whole = [solve(sums, c) for c in range(classes)]
    left_out = torch.full((len(samples.photo), classes), torch.nan, device=samples.values.device)
    for fold in sorted(set(folds)):
        inside = torch.tensor(folds, device=samples.photo.device)[samples.photo] == fold
        for c in range(classes):
            if any(unit.shown[c] for unit in sums if unit.fold != fold):
                weights = solve(sums, c, fold)
                left_out[inside, c] = samples.values[inside] @ weights[:-1] + weights[-1]
    trained = torch.stack(whole)  # (N, features + 1)
    return Trained(Learner(mean, spread, trained[:, :-1].contiguous(), trained[:, -1].contiguous()), samples, left_out)


def _statistics(photos: Sequence[PixelFeatures]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (features,) over all positions, every photo counting alike."""
    means, spreads = [], []
    for maps in zip(*(photo.maps for photo in photos), strict=True):
        mean = torch.stack([one.flatten(1).mean(dim=1) for one in maps]).mean(dim=0)
        squares = [(one.flatten(1) - mean[:, None]).square().mean(dim=1) for one in maps]
        means.append(mean)
        spreads.append(torch.stack(squares).mean(dim=0).sqrt() + LEAST_SPREAD)
    return torch.cat(means), torch.cat(spreads)


def _standardised(features: PixelFeatures, mean: Tensor, spread: Tensor) -> PixelFeatures:
    maps = []
    start = 0
    for one in features.maps:
        part = slice(start, start + len(one))
        start += len(one)
        centred = (one - mean[part].to(one)[:, None, None]) / spread[part].to(one)[:, None, None]
        maps.append(centred.clamp_(-LARGEST_VALUE, LARGEST_VALUE))
    return PixelFeatures(tuple(maps))


def _draw(photos: Sequence[LabelledPhoto], mean: Tensor, spread: Tensor) -> PixelSamples:
    """Draw pixels of every photo."""
    scale = min(1.0, MOST_PIXELS / (len(photos) * (CLASS_PIXELS + OTHER_PIXELS)))
    values, labels, shares, points, index = [], [], [], [], []
    for number, photo in enumerate(photos):
        where, share, label = _drawn_points(photo, scale)
        values.append(_standardised(photo.features, mean, spread).at(where))
        labels.append(label)
        shares.append(share)
        points.append(where)
        index.append(torch.full((len(where),), number, device=where.device))
    return PixelSamples(*(torch.cat(parts) for parts in (values, labels, shares, points, index)))


def _drawn_points(photo: LabelledPhoto, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Points (n, 2), shares (n,) and labels (n, N) of one photo: some of every class, some of no class."""
    rows, columns = photo.features.grid
    labels = at_grid(photo.masks, (rows, columns)).flatten(1)  # (N, positions)
    known = (labels != UNKNOWN).any(dim=0)
    positive = labels == 1
    parts = [(mask, CLASS_PIXELS) for mask in positive] + [(known & ~positive.any(dim=0), OTHER_PIXELS)]
    generator = torch.Generator().manual_seed(SEED)
    picked, shares = [], []
    for mask, most in parts:
        found = mask.nonzero()[:, 0]
        order = torch.randperm(len(found), generator=generator)[: max(1, int(most * scale))]
        chosen = found[order.to(found.device)]
        picked.append(chosen)
        share = len(found) / max(1, int(known.sum())) / max(1, len(chosen))
        shares.append(torch.full((len(chosen),), share, device=found.device))
    which = torch.cat(picked)
    where = torch.stack([(which % columns + 0.5) / columns, (which // columns + 0.5) / rows], dim=1)
    return where, torch.cat(shares), labels[:, which].T


def at_grid(masks: Tensor, grid: tuple[int, int]) -> Tensor:
    """Masks (N, H, W) read at the middle of every cell of a grid: (N, rows, columns)."""
    height, width = masks.shape[1:]
    rows = ((torch.arange(grid[0], device=masks.device) + 0.5) * height / grid[0]).long().clamp(max=height - 1)
    columns = ((torch.arange(grid[1], device=masks.device) + 0.5) * width / grid[1]).long().clamp(max=width - 1)
    read = masks[:, rows][:, :, columns]  # a copy
    for mask, cells in zip(masks, read, strict=True):
        y, x = (mask == 1).nonzero(as_tuple=True)
        if len(y) and not bool((cells == 1).any()):  # a class smaller than the cells' distance is not lost
            cells[y * grid[0] // height, x * grid[1] // width] = 1
    return read
