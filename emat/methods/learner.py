"""The learner: a classifier of single pixels, trained on a user's own examples when a segmenter is fitted.

Each class has a ridge regression on the features of `pixel_features`. A regression needs two sums over pixels: the
products of their features, and their features times the target, which is 1 inside of the class and -1 outside. Both
are kept for each group of photos that always count alike. The regression of any choice of photos is then one small
system of equations, so leaving photos out in turn costs hardly anything.

On left-out photos and on new ones this was better than logistic regression by L-BFGS on the same pixels (PASCAL's
training list with heads that never saw the class: 61 against 53 mIoU with five examples, mixed with the head; steel 64
against 60) and takes a quarter of its time.

The order in which photos are given does not matter: they are sorted by their content first. Pixels are drawn by a fixed
seed, so the same photos always give the same weights.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from emat.errors import EmatError
from emat.methods.pixel_features import PixelFeatures, linear_maps

CLASS_PIXELS, OTHER_PIXELS = 500, 1000  # drawn from a photo at most: of each class, and of no class
MOST_PIXELS = 30_000  # of all photos together
LARGEST_VALUE = 6.0  # standardised features are cut off there, so that no rare value rules
LEAST_SPREAD = 1e-6
SEED = 0
UNKNOWN = 255  # in a mask: neither the class nor its background
PENALTY = 0.3  # on the squared weights, beside squared errors of mean weight 1; 0.03 and 3 were worse
BIAS_PENALTY = 1e-6
LOGIT_SCALE = 4.0  # from the regression's value, about -1 to 1, to a logit


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


# Ridge regression from sums over photos


@dataclass(frozen=True)
class PixelSamples:
    """Pixels drawn from photos."""

    values: Tensor  # (n, features), standardised
    labels: Tensor  # (n, N) uint8, as in the masks
    shares: Tensor  # (n,): the share of its photo's known pixels that a sample stands for
    points: Tensor  # (n, 2): x and y as shares of the photo's width and height
    photo: Tensor  # (n,): the index of the photo it was drawn from


@dataclass(frozen=True)
class PhotoSums:
    """The sums over photos of one fold that show the same classes. d is the number of features and 1 for the bias."""

    fold: int
    count: int  # photos
    shown: tuple[bool, ...]  # of each class whether the photos show it
    products: tuple[Tensor | None, ...]  # of each class (d, d); None where nothing is known of it
    targets: Tensor  # (N, d)
    weights: tuple[float, ...]  # of each class the sum of the shares


def photo_sums(samples: PixelSamples, folds: Sequence[int]) -> list[PhotoSums]:
    """Add up the pixels of photos that count alike in every regression.

    Args:
        samples: The pixels.
        folds: For each photo the number of the group that it is left out with.
    """
    values = torch.cat([samples.values, torch.ones_like(samples.values[:, :1])], dim=1)  # (n, d)
    known = samples.labels != UNKNOWN  # (n, N)
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for photo, fold in enumerate(folds):
        inside = samples.photo == photo
        shown = tuple((samples.labels[inside] == 1).any(dim=0).tolist())
        told = tuple(known[inside].any(dim=0).tolist())
        alike[fold, shown, told].append(photo)
    return [_sums(samples, values, known, photos, folds[photos[0]]) for photos in alike.values()]


def _sums(samples: PixelSamples, values: Tensor, known: Tensor, photos: Sequence[int], fold: int) -> PhotoSums:
    inside = torch.isin(samples.photo, torch.tensor(photos, device=samples.photo.device))
    own, labels, told, shares = (each[inside] for each in (values, samples.labels, known, samples.shares))
    products: dict[bytes, Tensor] = {}  # classes of which the same pixels are known share their products
    found: list[Tensor | None] = []
    for column in told.T:
        key = column.cpu().numpy().tobytes()
        if key not in products and bool(column.any()):
            weighted = own * (shares * column).sqrt()[:, None]
            products[key] = weighted.T @ weighted
        found.append(products.get(key))
    weights = shares[:, None] * told  # (n, N)
    signs = torch.where(labels == 1, 1.0, -1.0)
    return PhotoSums(
        fold=fold,
        count=len(photos),
        shown=tuple((labels == 1).any(dim=0).tolist()),
        products=tuple(found),
        targets=(weights * signs).T @ own,
        weights=tuple(weights.sum(dim=0).tolist()),
    )


def solve(sums: Sequence[PhotoSums], c: int, without: int | None = None) -> Tensor:
    """The regression of one class.

    Photos that do not show the class weigh together no more than those that show it.

    Args:
        sums: What `photo_sums` returned.
        c: The class.
        without: The fold that is left out; None for no one.

    Returns:
        (d,): the weights and the bias, which give logits; zeros if nothing is known of the class.
    """
    used = [unit for unit in sums if unit.fold != without and unit.products[c] is not None]
    shown = sum(unit.count for unit in used if unit.shown[c])
    absent = sum(unit.count for unit in used if not unit.shown[c])
    balance = shown / absent if absent > shown > 0 else 1.0
    size, device = sums[0].targets.shape[1], sums[0].targets.device
    products, targets, total = torch.zeros(size, size, device=device), torch.zeros(size, device=device), 0.0
    for unit in used:
        weight, own = 1.0 if unit.shown[c] else balance, unit.products[c]
        assert own is not None
        products.add_(own, alpha=weight)
        targets.add_(unit.targets[c], alpha=weight)
        total += weight * unit.weights[c]
    if total <= 0:
        return targets
    penalty = torch.full((size,), PENALTY, device=device)
    penalty[-1] = BIAS_PENALTY
    factor = torch.linalg.cholesky(products / total + penalty.diag())
    return LOGIT_SCALE * torch.cholesky_solve((targets / total)[:, None], factor)[:, 0]
