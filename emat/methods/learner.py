"""The learner: a classifier of single pixels, trained on a user's own examples when a segmenter is fitted.

Each class has a logistic regression on the features of `pixel_features`. All regressions, and those that leave some
photos out, are trained together as the columns of one matrix, which takes little more time than a single one.

The order in which photos are given does not matter: they are sorted by their content first. Pixels are drawn by a fixed
seed, so the same photos always give the same weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.errors import EmatError
from emat.methods.pixel_features import PixelFeatures, linear_maps

UNKNOWN = 255  # in a mask: neither the class nor its background
CLASS_PIXELS, OTHER_PIXELS = 500, 1000  # drawn from a photo at most: of each class, and of no class
MOST_PIXELS = 30_000  # of all photos together
LARGEST_VALUE = 6.0  # standardised features are cut off there, so that no rare value rules
PENALTY = 3e-2  # on the squared weights
ITERATIONS = 40  # of L-BFGS
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
class PixelSamples:
    """Pixels drawn from photos."""

    values: Tensor  # (n, features), standardised
    labels: Tensor  # (n, N) uint8, as in the masks
    shares: Tensor  # (n,): the share of its photo's known pixels that a sample stands for
    points: Tensor  # (n, 2): x and y as shares of the photo's width and height
    photo: Tensor  # (n,): the index of the photo it was drawn from


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
    group = (
        torch.tensor(folds, device=samples.photo.device)[samples.photo] if folds else torch.zeros_like(samples.photo)
    )
    columns = [(c, -1) for c in range(classes)]
    columns += [(c, fold) for fold in sorted(set(folds)) for c in range(classes)]
    importance = torch.stack([_importance(samples, c, group != fold) for c, fold in columns], dim=1)  # (n, columns)
    targets = torch.stack([samples.labels[:, c] == 1 for c, _ in columns], dim=1).to(samples.values)
    weights, bias = _logistic(samples.values, targets, importance)
    scores = samples.values @ weights + bias  # (n, columns)
    left_out = torch.full((len(scores), classes), torch.nan, device=scores.device)
    for index, (c, fold) in enumerate(columns):
        seen = importance[:, index]
        if fold >= 0 and bool((seen * targets[:, index]).any()):
            inside = group == fold
            left_out[inside, c] = scores[inside, index]
    return Trained(Learner(mean, spread, weights[:, :classes].T.contiguous(), bias[:classes]), samples, left_out)


def _importance(samples: PixelSamples, c: int, used: Tensor) -> Tensor:
    """The weight of every sample in one regression; photos without the class weigh no more than those with it."""
    labels = samples.labels[:, c]
    weight = samples.shares * (labels != UNKNOWN) * used
    count = int(samples.photo.max()) + 1
    shown = torch.zeros(count, device=weight.device).index_add_(0, samples.photo, weight * (labels == 1)) > 0
    total = torch.zeros(count, device=weight.device).index_add_(0, samples.photo, weight)
    absent = (total > 0) & ~shown
    balance = torch.ones(count, device=weight.device)
    if int(absent.sum()) > int(shown.sum()) > 0:
        balance[absent] = shown.sum() / absent.sum()
    weight = weight * balance[samples.photo]
    return weight / weight.sum().clamp_min(1e-12)


def _logistic(values: Tensor, targets: Tensor, importance: Tensor) -> tuple[Tensor, Tensor]:
    """Independent logistic regressions: values (n, d), the others (n, m) -> weights (d, m) and bias (m,)."""
    with torch.inference_mode(False), torch.enable_grad():
        values, targets, importance = values.clone(), targets.clone(), importance.clone()
        weights = torch.zeros(values.shape[1], targets.shape[1], device=values.device, requires_grad=True)
        bias = torch.zeros(targets.shape[1], device=values.device, requires_grad=True)
        search = torch.optim.LBFGS([weights, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            search.zero_grad()
            errors = F.binary_cross_entropy_with_logits(values @ weights + bias, targets, importance, reduction="sum")
            total = errors + PENALTY / 2 * weights.square().sum()
            total.backward()
            return total

        search.step(loss)
    return weights.detach(), bias.detach()


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
