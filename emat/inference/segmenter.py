"""The segmenter that people use: examples in, then masks of the same classes on any photo."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from emat.errors import EmatError
from emat.images import Pixels, Source, read_photo
from emat.inference.example import Example
from emat.inference.feature_cache import FeatureCache
from emat.inference.fitted import FittedExample, thumbnail
from emat.inference.fitted_file import is_fitted, read_fitted, write_fitted
from emat.inference.heads import find_head, head_of, is_training_free, load_head
from emat.inference.photos import READ_AHEAD, detail_size, prepared, read_ahead
from emat.inference.prediction import Prediction, Thresholds
from emat.inference.tiling import Tiles, View, check_tiles, views
from emat.method import Decision, Features, Method

MOST_CLASSES = 254  # what a label map of bytes holds beside background and void


class Segmenter:
    """Learns classes from a few masked photos and finds them in others.

    ``fit``, ``add`` and ``remove`` change what it knows; ``predict`` may be called from several threads at once, also
    while that changes. An example is encoded once, when it is shown; with a `cache` of the same method, a photo that is
    asked about again is not encoded again either.

    >>> from PIL import Image
    >>> photo = Image.new("RGB", (60, 40), "orange")
    >>> segmenter = Segmenter.load("default").fit([Example(photo, {"square": (10, 10, 30, 30)})])
    >>> segmenter.classes_
    ('square',)
    >>> segmenter.predict(photo).label_map.shape
    (40, 60)
    """

    def __init__(
        self,
        method: Method,
        thresholds: Thresholds | None = None,
        tiles: Tiles = None,
        cache: FeatureCache | None = None,
    ) -> None:
        check_tiles(tiles)
        self.method = method.eval()
        self.thresholds = thresholds or Thresholds()
        self.tiles = tiles
        self.cache = cache
        self._examples: tuple[
            FittedExample, ...
        ] = ()  # replaced, never changed: a prediction keeps the one it began with
        self._changing = threading.Lock()

    @classmethod
    def load(
        cls,
        source: str | Path = "default",
        *,
        backbone: str | None = None,
        device: str | torch.device | None = None,
        tiles: Tiles = None,
    ) -> Segmenter:
        """A segmenter from a fitted file that `save` wrote, or a new one from a head: "default", a name, a file.

        `backbone` is needed only for a head whose file does not say what it was trained with.
        """
        if is_training_free(source) or not is_fitted(find_head(source)):
            head = load_head(source, backbone)
            return cls(head.build(device), head.thresholds, tiles)
        fitted = read_fitted(find_head(source))
        segmenter = cls(fitted.head.build(device), fitted.head.thresholds, tiles)
        segmenter._examples = tuple(example.to(segmenter.device) for example in fitted.examples)
        return segmenter

    def save(self, path: str | Path, *, thumbnails: bool = True) -> None:
        """Write one file that `load` takes; it needs no photo any more. `thumbnails` keeps small pictures of them."""
        write_fitted(Path(path), head_of(self.method, self.thresholds), self._fitted(), thumbnails)

    def copy(self) -> Segmenter:
        """Another segmenter that knows the same and goes on by itself; the network is shared, not doubled."""
        other = Segmenter(self.method, self.thresholds, self.tiles, self.cache)
        other._examples = self._examples
        return other

    @property
    def classes_(self) -> tuple[str, ...]:
        """The names of the classes, in the order in which they were first shown."""
        return _classes(self._examples)

    @property
    def examples_(self) -> tuple[FittedExample, ...]:
        """What was shown, in order."""
        return self._examples

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next(self.method.parameters()).device

    def fit(self, examples: Iterable[Example]) -> Segmenter:
        """Learn from `examples` and nothing else; they are read one at a time."""
        fitted: tuple[FittedExample, ...] = ()
        for example in [examples] if isinstance(examples, Example) else examples:
            fitted = (*fitted, self._encoded(example, fitted))
        if not fitted:
            raise EmatError("there is nothing to fit: give at least one Example(photo, {class: mask})")
        with self._changing:
            self._examples = fitted
        return self

    def add(self, example: Example) -> Segmenter:
        """Learn from one more example; the others are left as they are."""
        with self._changing:
            self._examples = (*self._examples, self._encoded(example, self._examples))
        return self

    def remove(self, example: Example | int) -> Segmenter:
        """Forget an example, given itself or by its place; a class that no other example shows goes with it."""
        with self._changing:
            place = self._place(example)
            self._examples = self._examples[:place] + self._examples[place + 1 :]
        return self

    def predict(self, photo: Source) -> Prediction:
        """Which classes are in `photo` (a path, bytes, a PIL image or an array), and where."""
        return self._predict(read_photo(photo), self._fitted())

    def predict_many(self, photos: Iterable[Source], *, ahead: int = READ_AHEAD) -> Iterator[Prediction]:
        """A prediction for each photo, in order, while a thread reads the next `ahead` photos.

        Photos go through the network one by one, so a result never depends on its neighbours.
        """
        examples = self._fitted()
        for read in read_ahead(photos, ahead):
            if read.pixels is None:
                raise read.problem or EmatError("a photo was not read")
            yield self._predict(read.pixels, examples)

    @torch.inference_mode()
    def _predict(self, photo: Pixels, examples: Sequence[FittedExample]) -> Prediction:
        shots = {name: _shots(examples, name) for name in _classes(examples)}
        size = (photo.shape[0], photo.shape[1])
        detail = detail_size(size)
        whole, *tiles = views(size, self.method.preparation.image_size, self.tiles)
        decision = self._look(photo, whole, list(shots.values()), detail)
        scores, maps = list(decision.certainty), decision.probabilities.copy()
        for tile in tiles:
            part = tile.scaled(size, detail)
            seen = self._look(photo, tile, list(shots.values()), (part.height, part.width))
            for place, score in enumerate(seen.certainty):
                scores[place] = max(scores[place], score)
                if score >= self.thresholds.presence:  # else every tile would add its own false alarms
                    inside = maps[place][part.area]
                    np.maximum(inside, seen.probabilities[place], out=inside)
        return Prediction(
            photo, dict(zip(shots, scores, strict=True)), dict(zip(shots, maps, strict=True)), self.thresholds
        )

    def _look(self, photo: Pixels, view: View, ways: Sequence[Sequence[Any]], size: tuple[int, int]) -> Decision:
        """The method's decision on one view, at `size`."""
        query = self.method.encode_query(self._features(photo[view.area]))
        return self.method.decide([self.method.compare(query, shots) for shots in ways], size)

    @torch.inference_mode()
    def _encoded(self, example: Example, known: Sequence[FittedExample]) -> FittedExample:
        if not isinstance(example, Example):
            raise EmatError(f"an example is Example(photo, {{class: mask}}), not a {type(example).__name__}")
        _check_names(example, _classes(known))
        shown = example.read()
        features = self._features(shown.photo)
        encodings = {
            name: self.method.encode_support(features, torch.from_numpy(mask).to(self.device))
            for name, mask in shown.masks.items()
        }
        return FittedExample.of(example, encodings, thumbnail(shown))

    def _features(self, photo: Pixels) -> Features:
        if self.cache is not None:
            return self.cache.features(photo)
        return self.method.features(prepared(photo, self.method.preparation, self.device))[0]

    def _fitted(self) -> tuple[FittedExample, ...]:
        examples = self._examples
        if not examples:
            raise EmatError("this segmenter knows no class yet; call fit([Example(photo, {class: mask})]) first")
        return examples

    def _place(self, example: Example | int) -> int:
        count = len(self._examples)
        if isinstance(example, Example):
            for place, fitted in enumerate(self._examples):
                if fitted.is_from(example):
                    return place
            raise EmatError(f"the example {example.title} was not shown to this segmenter; remove it by its place")
        if not 0 <= example < count:
            raise EmatError(f"there is no example {example}; this segmenter has {count}, counted from 0")
        return example


def _classes(examples: Sequence[FittedExample]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for example in examples for name in example.encodings))


def _shots(examples: Sequence[FittedExample], name: str) -> list[Any]:
    return [example.encodings[name] for example in examples if name in example.encodings]


def _check_names(example: Example, known: Sequence[str]) -> None:
    spelled = {name.casefold(): name for name in known}
    for name in example.masks:
        other = spelled.setdefault(name.casefold(), name)
        if other != name:
            raise EmatError(f"the class {name!r} of {example.title} is also written {other!r}; use one spelling")
    if len(spelled) > MOST_CLASSES:
        raise EmatError(f"{len(spelled)} classes are more than the {MOST_CLASSES} that a label map holds")
