"""A classifier of single pixels, trained on a user's own examples when a segmenter is fitted.

Each class has a ridge regression on the features of `emat.pixel_learner.features`. A regression needs two sums over
pixels: the products of their features, and their features times the target, which is 1 inside of the class and -1
outside. Both are kept for each group of photos that always count alike. The regression of any choice of photos is then
one small system of equations, so cross-validation costs hardly anything.

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
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from emat.errors import EmatError
from emat.images import VOID
from emat.pixel_learner.features import PixelFeatures

CLASS_PIXELS, OTHER_PIXELS = 500, 1000  # drawn from a photo at most: of each class, and of no class
MOST_PIXELS = 30_000  # of all photos together
LARGEST_VALUE = 6.0  # standardised features are cut off there, so that no rare value rules
LEAST_SPREAD = 1e-6
SEED = 0
PENALTY = 0.3  # on the squared weights, beside squared errors of mean weight 1; 0.03 and 3 were worse
BIAS_PENALTY = 1e-6
REDUCED = 128  # directions that stand for the features of MobileSAM's encoder
LEAST_MASS = 0.01  # share of the pixels that a class counts for at least, in the photos that show it
LOGIT_SCALE = 4.0  # from the regression's value, about -1 to 1, to a logit


@dataclass(frozen=True)
class LabelledPhoto:
    """A photo and what is known of its pixels."""

    features: PixelFeatures
    masks: Tensor  # (N, H, W) uint8 of any size: 1 = the class, 0 = not the class, 255 = unknown


@dataclass(frozen=True)
class PixelClassifier:
    """A trained pixel classifier of N classes."""

    mean: Tensor  # (features,)
    spread: Tensor  # (features,)
    weights: Tensor  # (N, features)
    bias: Tensor  # (N,)

    def logits(self, maps: Sequence[Tensor]) -> Tensor:
        """The logits (B, N, h, w) of each position of the finest map, from the maps (B, features, h, w) of B photos.

        The classifier is applied to each map before it is enlarged: the same values for a fraction of the work.
        """
        grid = (maps[0].shape[2], maps[0].shape[3])
        total = self.bias.to(maps[0])[:, None, None].expand(1, -1, *grid)
        weights = self.weights.to(maps[0]).split([one.shape[1] for one in maps], dim=1)
        for one, weight in zip(_standardised(maps, self.mean, self.spread), weights, strict=True):
            part = torch.einsum("nf,bfhw->bnhw", weight, one)
            total = total + F.interpolate(part, grid, mode="bilinear", align_corners=False)
        return total


@dataclass(frozen=True)
class Trained:
    """A classifier, and those that were trained without one fold of the photos each."""

    classifier: PixelClassifier
    by_fold: dict[int, PixelClassifier]  # trained without the photos of a fold
    samples: PixelSamples
    left_out: Tensor  # (n, N): logits of the samples by the classifier that did not see their photo; NaN if none


def content_order(photos: Sequence[LabelledPhoto]) -> list[int]:
    """The indices of photos in an order that depends on their content alone."""
    keys = []
    for photo in photos:
        key = hashlib.sha256(photo.masks.cpu().numpy().tobytes())
        key.update(photo.features.maps[-1].float().cpu().numpy().tobytes())
        keys.append(key.digest())
    return sorted(range(len(photos)), key=keys.__getitem__)


def train(photos: Sequence[LabelledPhoto], folds: Sequence[int] = ()) -> Trained:
    """Train the regressions of all classes; photos without a class have their full weight, see `Training`."""
    training = Training(photos, folds)
    return training.trained([1.0] * training.classes)


class Training:
    """Regressions of all classes, with any weight of the photos that lack a class; each is solved once.

    Args:
        photos: What is known, in an order from `content_order` where the order must not matter.
        folds: For each photo the number, from 0, of the group that it is left out with; empty to leave none out.
    """

    def __init__(self, photos: Sequence[LabelledPhoto], folds: Sequence[int] = ()) -> None:
        self.mean, self.spread = _statistics([photo.features for photo in photos])
        self.samples = samples = _draw(photos, self.mean, self.spread)
        if len(samples.photo) == 0:
            raise EmatError("empty-mask", "the examples have no pixel that is known; paint more of them")
        self.folds = tuple(folds)
        self.classes = samples.labels.shape[1]
        self._basis = _basis(samples.values, photos[0].features.encoder_features)
        self.samples = samples = replace(samples, values=_reduced(samples.values, self._basis))
        self.sums = photo_sums(samples, folds or [0] * len(photos))
        self._solved: dict[tuple[int, int | None, float], Tensor] = {}

    def has_negatives(self, c: int) -> bool:
        """Whether some photos lack the class."""
        return any(not unit.shown[c] and unit.products[c] is not None for unit in self.sums)

    def left_out(self, c: int, negatives: float = 1.0) -> Tensor:
        """The logits (n,) of a class at all samples, by the regression without their fold; NaN if there is none.

        Args:
            c: The class.
            negatives: The weight of photos that lack it.
        """
        samples = self.samples
        logits = torch.full((len(samples.photo),), torch.nan, device=samples.values.device)
        for fold in sorted(set(self.folds)):
            if self._shown_without(c, fold):
                solved = self._solution(c, fold, negatives)
                inside = torch.tensor(self.folds, device=samples.photo.device)[samples.photo] == fold
                logits[inside] = samples.values[inside] @ solved[:-1] + solved[-1]
        return logits

    def trained(self, negatives: Sequence[float]) -> Trained:
        """The classifiers, with the weight that photos without a class have for each class."""
        by_fold = {}
        for fold in sorted(set(self.folds)):
            solved = torch.zeros(self.classes, self.samples.values.shape[1] + 1, device=self.samples.values.device)
            solved[:, -1] = -LOGIT_SCALE  # a class that only this fold shows is not found
            for c, weight in enumerate(negatives):
                if self._shown_without(c, fold):
                    solved[c] = self._solution(c, fold, weight)
            by_fold[fold] = self._classifier(solved)
        everything = torch.stack([self._solution(c, None, weight) for c, weight in enumerate(negatives)])
        left_out = torch.stack([self.left_out(c, weight) for c, weight in enumerate(negatives)], dim=1)
        return Trained(self._classifier(everything), by_fold, self.samples, left_out)

    def _classifier(self, solved: Tensor) -> PixelClassifier:
        """The classifier of solutions (N, d), in terms of all features."""
        weights = solved[:, :-1]
        if self._basis is not None:
            directions = len(self._basis)
            weights = torch.cat([weights[:, :-directions], weights[:, -directions:] @ self._basis], dim=1)
        return PixelClassifier(self.mean, self.spread, weights.contiguous(), solved[:, -1].contiguous())

    def _shown_without(self, c: int, fold: int) -> bool:
        return any(unit.shown[c] for unit in self.sums if unit.fold != fold)

    def _solution(self, c: int, without: int | None, negatives: float) -> Tensor:
        if (c, without, negatives) not in self._solved:
            self._solved[c, without, negatives] = solve(self.sums, c, without, negatives)
        return self._solved[c, without, negatives]


def _basis(values: Tensor, count: int) -> Tensor | None:
    """The main directions (REDUCED, count) of the last `count` features of pixels (n, features); None for fewer.

    MobileSAM's encoder gives 384 features. A third of the directions hold nearly all of their variance, and the time of
    a regression grows with the third power of the number of features.
    """
    if count <= REDUCED:
        return None
    own = values[:, -count:].double()
    _, vectors = torch.linalg.eigh(own.T @ own)  # in the order of their variance, the smallest first
    return vectors[:, -REDUCED:].T.to(values)


def _reduced(values: Tensor, basis: Tensor | None) -> Tensor:
    """Pixels (n, features) whose last features are replaced by their main directions."""
    if basis is None:
        return values
    count = basis.shape[1]
    return torch.cat([values[:, :-count], values[:, -count:] @ basis.T], dim=1)


def _statistics(photos: Sequence[PixelFeatures]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (features,) over all positions, every photo counting alike."""
    means, spreads = [], []
    for maps in zip(*(photo.maps for photo in photos), strict=True):
        mean = torch.stack([one.flatten(1).mean(dim=1) for one in maps]).mean(dim=0)
        squares = [(one.flatten(1) - mean[:, None]).square().mean(dim=1) for one in maps]
        means.append(mean)
        spreads.append(torch.stack(squares).mean(dim=0).sqrt() + LEAST_SPREAD)
    return torch.cat(means), torch.cat(spreads)


def _standardised(maps: Sequence[Tensor], mean: Tensor, spread: Tensor) -> list[Tensor]:
    """Maps (..., features, h, w) with the mean and the spread of the examples taken away, cut off at LARGEST_VALUE."""
    scaled = []
    start = 0
    for one in maps:
        part = slice(start, start + one.shape[-3])
        start = part.stop
        centred = (one - mean[part].to(one)[:, None, None]) / spread[part].to(one)[:, None, None]
        scaled.append(centred.clamp(-LARGEST_VALUE, LARGEST_VALUE))
    return scaled


def _draw(photos: Sequence[LabelledPhoto], mean: Tensor, spread: Tensor) -> PixelSamples:
    """Draw pixels of every photo."""
    scale = min(1.0, MOST_PIXELS / (len(photos) * (CLASS_PIXELS + OTHER_PIXELS)))
    values, labels, shares, points, index = [], [], [], [], []
    for number, photo in enumerate(photos):
        where, share, label = _drawn_points(photo, scale)
        values.append(PixelFeatures(tuple(_standardised(photo.features.maps, mean, spread))).at(where))
        labels.append(label)
        shares.append(share)
        points.append(where)
        index.append(torch.full((len(where),), number, device=where.device))
    return PixelSamples(*(torch.cat(parts) for parts in (values, labels, shares, points, index)))


def _drawn_points(photo: LabelledPhoto, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Points (n, 2), shares (n,) and labels (n, N) of one photo: some of every class, some of no class."""
    rows, columns = photo.features.grid
    labels = at_grid(photo.masks, (rows, columns)).flatten(1)  # (N, positions)
    labelled = (labels != VOID).any(dim=0)
    positive = labels == 1
    parts = [(mask, CLASS_PIXELS) for mask in positive] + [(labelled & ~positive.any(dim=0), OTHER_PIXELS)]
    generator = torch.Generator().manual_seed(SEED)
    picked, shares = [], []
    for mask, most in parts:
        pixels = mask.nonzero()[:, 0]
        order = torch.randperm(len(pixels), generator=generator)[: max(1, int(most * scale))]
        chosen = pixels[order.to(pixels.device)]
        picked.append(chosen)
        share = len(pixels) / max(1, int(labelled.sum())) / max(1, len(chosen))
        shares.append(torch.full((len(chosen),), share, device=pixels.device))
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
    labelled = samples.labels != VOID  # (n, N)
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for photo, fold in enumerate(folds):
        inside = samples.photo == photo
        shown = tuple((samples.labels[inside] == 1).any(dim=0).tolist())
        told = tuple(labelled[inside].any(dim=0).tolist())
        alike[fold, shown, told].append(photo)
    boosts = _boosts(samples)
    return [_sums(samples, values, labelled, boosts, photos, folds[photos[0]]) for photos in alike.values()]


def _sums(
    samples: PixelSamples, values: Tensor, labelled: Tensor, boosts: Tensor, photos: Sequence[int], fold: int
) -> PhotoSums:
    inside = torch.isin(samples.photo, torch.tensor(photos, device=samples.photo.device))
    own, labels, told, shares = (rows[inside] for rows in (values, samples.labels, labelled, samples.shares))
    weights = shares[:, None] * told * torch.where(labels == 1, boosts, 1.0)  # (n, N)
    products: dict[bytes, Tensor] = {}  # classes that weigh the same pixels alike share their products
    of_classes: list[Tensor | None] = []
    for column in weights.T:
        key = column.cpu().numpy().tobytes()
        if key not in products and bool(column.any()):
            weighted = own * column.sqrt()[:, None]
            products[key] = weighted.T @ weighted
        of_classes.append(products.get(key))
    signs = torch.where(labels == 1, 1.0, -1.0)
    return PhotoSums(
        fold=fold,
        count=len(photos),
        shown=tuple((labels == 1).any(dim=0).tolist()),
        products=tuple(of_classes),
        targets=(weights * signs).T @ own,
        weights=tuple(weights.sum(dim=0).tolist()),
    )


def _boosts(samples: PixelSamples) -> Tensor:
    """By how much the pixels of each class (N,) weigh more than others.

    A class that covers little of its photos has hardly a say in squared errors: the regression would be flat.
    """
    boosts = []
    for column in samples.labels.T:
        inside = column == 1
        shown = samples.photo[inside].unique()
        around = torch.isin(samples.photo, shown) & (column != VOID)
        mass = float(samples.shares[inside].sum() / samples.shares[around].sum().clamp_min(1e-12))
        boosts.append(max(1.0, LEAST_MASS / mass) if mass > 0 else 1.0)
    return torch.tensor(boosts, device=samples.values.device)


def solve(sums: Sequence[PhotoSums], c: int, without: int | None = None, negatives: float = 1.0) -> Tensor:
    """The regression of one class.

    Photos that do not show the class weigh together no more than those that show it.

    Args:
        sums: What `photo_sums` returned.
        c: The class.
        without: The fold that is left out; None if all photos count.
        negatives: What their weight is multiplied by.

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
        weight, own = 1.0 if unit.shown[c] else negatives * balance, unit.products[c]
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
