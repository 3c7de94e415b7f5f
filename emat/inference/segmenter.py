"""The segmenter: it takes a few examples and finds their classes in other photos."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from emat.errors import EmatError
from emat.features import FeatureCache
from emat.images import Pixels, Reading, Source, read_photo
from emat.inference.example import Example
from emat.inference.fitted_file import (
    FittedHow,
    check_backbone,
    is_fitted,
    moved_to,
    on_device,
    read_fitted,
    write_fitted,
)
from emat.inference.forecast import Forecast, forecasts, suits_refinement, tiles_help
from emat.inference.known_examples import KEPT_TIMES, FittedExample, KnownExamples, thumbnail, working_photo
from emat.inference.photos import READ_AHEAD, ReadPhoto, read_ahead
from emat.inference.prediction import Prediction, Thresholds, refined
from emat.inference.predictor import Predictor
from emat.inference.tiles import WHOLE, Tiles, check_tiles, tile_grid
from emat.methods.base import Features, Method
from emat.methods.leave_out import Learnt
from emat.methods.pixel_features import LARGEST_SIDE, SMALLEST_SIDE, WORKING_SIDE
from emat.methods.trained_head import find_head, head_of, is_training_free, load_head
from emat.methods.with_learner import LearningMethod, can_learn, unwrapped
from emat.refine.refiner import Refinement, check_refinement


class Segmenter:
    """Learns classes from a few photos with masks and finds them in other photos.

    ``fit``, ``add`` and ``remove`` change the examples; ``predict`` may be called from several threads at once, even
    while the examples change. An example is encoded once, when it is added.

    Args:
        method: A method with its weights, such as `TrainedHead.build` returns.
        thresholds: The probabilities that count; by default the paper's.
        tiles: Into how many tiles a side photos are cut beside the whole: None for none, "auto", or a number.
        cache: A feature cache of the same method; with it, a photo that is predicted again is not encoded again.
        refine: How masks are refined: None for not at all; "guided" along the photo's edges; "mobilesam" by MobileSAM,
            whose weights are downloaded if need be; "auto" by MobileSAM where it can draw what the examples of a class
            show and its weights are on this machine, and else along the photo's edges.
        reading: How photos are read: the stretch of those with more than 8 bits, and the largest size.

    A segmenter whose method learns (`Segmenter.load(..., learn=True)`, the default) also trains a pixel classifier on
    the examples, and says in `forecast_` what to expect.

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
        refine: Refinement | None = None,
        reading: Reading | None = None,
    ) -> None:
        check_tiles(tiles)
        check_refinement(refine)
        self.method = method.eval()
        self.thresholds = thresholds or Thresholds()
        self.tiles = tiles
        self.cache = cache
        self.refine = refine
        self.reading = reading or Reading()
        self.fits_size = False  # whether the examples choose the size at which the pixel classifier sees photos
        self._known = KnownExamples(())
        self._changing = threading.Lock()

    @classmethod
    def load(
        cls,
        source: str | Path = "default",
        *,
        backbone: str | None = None,
        device: str | torch.device | None = None,
        tiles: Tiles = None,
        refine: Refinement | None = None,
        learn: bool | None = None,
        size: int | None = None,
        reading: Reading | None = None,
    ) -> Segmenter:
        """Load a fitted segmenter from a file that `save` wrote, or make a new one from a head.

        Args:
            source: A file of a fitted segmenter, a head's file or name such as "default" or "emat-coco-fold0", or a
                method that needs no training such as "prototype". "best" is the strongest head whose weights are on
                this machine (see `emat.methods.trained_head`); which one it is, is said on standard error.
            backbone: The backbone's name, needed only for a head whose file does not say it.
            device: "cpu", "cuda", "mps" or "auto".
            tiles: Into how many tiles a side photos are cut beside the whole: None for none, "auto", or a number.
            refine: How masks are refined: None, "auto", "mobilesam" or "guided".
            learn: Whether to train a pixel classifier on the examples beside the head. By default a new segmenter
                does, and a fitted one as it did when it was saved.
            size: The longest side, in pixels, at which the pixel classifier sees photos. By default the examples
                choose it: 400, or up to 800 where their masks are thin. A fitted segmenter keeps its own.
            reading: How photos are read. By default a fitted segmenter stretches photos of more than 8 bits as it did
                when it was fitted.

        Raises:
            EmatError: If the file or name is unknown or damaged.
        """
        if is_training_free(source) or not is_fitted(find_head(source)):
            head = load_head(source, backbone)
            method = head.build(device)
            if size is not None and not SMALLEST_SIDE <= size <= LARGEST_SIDE:
                raise EmatError(f"the working size is {SMALLEST_SIDE} to {LARGEST_SIDE} pixels, not {size}")
            if learn is not False and (learn or can_learn(method)):
                method = LearningMethod(method, head.thresholds, size or WORKING_SIDE)
            segmenter = cls(method, head.thresholds, tiles, refine=refine, reading=reading)
            segmenter.fits_size = size is None
            return segmenter
        fitted = read_fitted(find_head(source))
        method = fitted.head.build(device)
        encodings = (each for example in fitted.examples for each in example.encodings.values())
        check_backbone(encodings, getattr(method, "backbone", None), source)
        if fitted.learns if learn is None else learn:
            side = WORKING_SIDE if fitted.learnt is None else fitted.learnt.working_side
            method = LearningMethod(method, fitted.head.thresholds, side)
        segmenter = cls(
            method, fitted.head.thresholds, tiles, refine=refine, reading=reading or Reading(fitted.stretch)
        )
        learnt = None if fitted.learnt is None else moved_to(segmenter.device, fitted.learnt)
        examples = tuple(on_device(segmenter.device, example) for example in fitted.examples)
        segmenter._known = KnownExamples(examples, learnt if method.learns else None)
        segmenter.fits_size = fitted.fits_size
        return segmenter

    def save(self, path: str | Path, *, thumbnails: bool = True) -> None:
        """Write the fitted segmenter to one file, which needs none of the photos any more.

        Args:
            path: The file, such as "pets.emat".
            thumbnails: Whether to keep small pictures of the examples. Without them, no example can be added to the
                loaded segmenter or removed from it if it learns.

        Raises:
            EmatError: If nothing was fitted, or the file cannot be written.
        """
        known = self._fitted()
        learnt = self._learnt(known)
        head = head_of(unwrapped(self.method), self.thresholds)
        how = FittedHow(self.reading.stretch, self.fits_size)
        write_fitted(Path(path), head, known.examples, thumbnails, learnt, how)

    def copy(self) -> Segmenter:
        """Return another segmenter with the same examples; both share the network but not later examples."""
        other = Segmenter(self.method, self.thresholds, self.tiles, self.cache, self.refine, self.reading)
        other._known, other.fits_size = self._known, self.fits_size
        return other

    @property
    def classes_(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their first example."""
        return self._known.classes

    @property
    def examples_(self) -> tuple[FittedExample, ...]:
        """The examples, in order."""
        return self._known.examples

    @property
    def learnt_(self) -> Any | None:
        """What the examples taught the method; None if the segmenter does not learn."""
        return self._learnt(self._fitted())

    @property
    def forecast_(self) -> dict[str, Forecast]:
        """What to expect of each class on new photos; empty if the segmenter does not learn."""
        known = self._fitted()
        learnt = self._learnt(known)
        if learnt is None:
            return {}
        shown = [(example.name, example.classes) for example in known.examples]
        return forecasts(learnt, known.classes, shown)

    @property
    def working_side(self) -> int:
        """The longest side, in pixels, at which the pixel classifier sees photos."""
        method = self._predictor(self._known).method
        return method.working_side if isinstance(method, LearningMethod) else WORKING_SIDE

    @property
    def device(self) -> torch.device:
        """The device that it computes on."""
        return next(self.method.parameters()).device

    def fit(self, examples: Iterable[Example]) -> Segmenter:
        """Learn from `examples`, forgetting earlier ones; they are read one at a time.

        Raises:
            EmatError: If there is no example, or one cannot be read.
        """
        known = KnownExamples(())
        for example in [examples] if isinstance(examples, Example) else examples:
            known = KnownExamples((*known.examples, self._encoded(example, known)))
        if not known.examples:
            raise EmatError("there is nothing to fit: give at least one photo with the mask of a class")
        known.check_shown()
        self._learnt(known)
        with self._changing:
            self._known = known
        return self

    def add(self, example: Example) -> Segmenter:
        """Learn from one more example; the others stay as they are.

        Raises:
            EmatError: If the example cannot be read, or the segmenter learns but was saved without its photos.
        """
        with self._changing:
            self._check_learns_again(self._known)
            self._known = KnownExamples((*self._known.examples, self._encoded(example, self._known)))
        return self

    def remove(self, example: Example | int) -> Segmenter:
        """Forget an example, given by itself or its index; a class that no other example shows is forgotten too.

        Raises:
            EmatError: If there is no such example, or the segmenter learns but was saved without its photos.
        """
        with self._changing:
            index = self._known.index(example)
            examples = self._known.examples
            others = KnownExamples(examples[:index] + examples[index + 1 :])
            self._check_learns_again(others)
            self._known = others
        return self

    def tiles_help(self) -> bool | None:
        """Whether tiles help with photos as large as the examples, found by leaving these out in turn.

        Returns:
            None if that cannot be told: the examples are too few or too small, or the segmenter does not learn.
        """
        known = self._fitted()
        learnt = self._learnt(known)
        kept = [one.working.photo.shape for one in known.examples if one.working is not None]
        grid = tile_grid(max(((h, w) for h, w, _ in kept), default=WHOLE), self.method.preparation.image_size, "auto")
        if grid == WHOLE or not isinstance(learnt, Learnt) or bool(learnt.left_out_iou.isnan().all()):
            return None
        return learnt.needs_head and tiles_help(known, grid, self._predictor(known).predict)

    def predict(self, photo: Source) -> Prediction:
        """Find the classes in a photo.

        Args:
            photo: A path, the bytes of a file, a PIL image or an array (H, W, 3).

        Raises:
            EmatError: If nothing was fitted, or the photo cannot be read.
        """
        return self._predict(read_photo(photo, reading=self.reading), self._fitted())

    def predict_many(
        self, photos: Iterable[Source], *, ahead: int = READ_AHEAD, batch_size: int | None = None
    ) -> Iterator[Prediction]:
        """Predict many photos, in order, while a thread reads the next ones.

        Photos may go through the backbone together. Each is compared with the examples by itself, so a result does not
        depend on the other photos, apart from the last digits of floating-point sums.

        Args:
            photos: Whatever `predict` takes.
            ahead: How many photos may be read ahead.
            batch_size: How many photos go through the backbone together. By default 8 on a GPU; on a CPU one, because
                more are not faster there.

        Raises:
            EmatError: If nothing was fitted, the batch size is not positive, or a photo cannot be read.
        """
        if batch_size is None:
            batch_size = 8 if self.device.type == "cuda" else 1
        if batch_size < 1:
            raise EmatError(f"batch_size is {batch_size}; it must be at least 1")
        known = self._fitted()
        predictor = self._predictor(known)
        # Closed also when a photo cannot be read, so that no reader's thread is left.
        with closing(read_ahead(photos, max(ahead, batch_size - 1), self.reading)) as reading:
            while batch := list(islice(reading, batch_size)):
                pixels = [_pixels_of(read) for read in batch]
                for photo, features in zip(pixels, predictor.features_of(pixels), strict=True):
                    yield self._predict(photo, known, features)

    def refined(self, prediction: Prediction, refine: Refinement | None = "auto") -> Prediction:
        """Return a prediction of this segmenter with refined masks, for those who first want to see it unrefined."""
        return self._refined(prediction, refine, self._fitted())

    def _predict(self, photo: Pixels, known: KnownExamples, features: Features | None = None) -> Prediction:
        return self._refined(self._unrefined(photo, known, features), self.refine, known)

    def _refined(self, prediction: Prediction, refine: Refinement | None, known: KnownExamples) -> Prediction:
        return refined(prediction, refine, lambda name: suits_refinement(known, name, self._unrefined))

    def _unrefined(self, photo: Pixels, known: KnownExamples, features: Features | None = None) -> Prediction:
        return self._predictor(known).predict(photo, known, features)

    def _predictor(self, known: KnownExamples) -> Predictor:
        """Return what predicts photos from these examples; a cache holds features of one size, which is kept then."""
        method = self.method
        if self.fits_size and self.cache is None and isinstance(method, LearningMethod):
            method = method.at_side(known.working_side())
        return Predictor(method, self.thresholds, self.tiles, self.cache)

    def _learnt(self, known: KnownExamples) -> Any | None:
        return self._predictor(known).learnt(known)

    def _check_learns_again(self, known: KnownExamples) -> None:
        """Refuse a change before it is made: afterwards there would be no way to predict, and none to go back."""
        if self.method.learns:
            known.kept_photos()

    @torch.inference_mode()
    def _encoded(self, example: Example, known: KnownExamples) -> FittedExample:
        if not isinstance(example, Example):
            raise EmatError(f"an example is Example(photo, {{class: mask}}), not a {type(example).__name__}")
        known.check_names(example)
        shown = example.read(self.reading)
        if shown.sparse and not self.method.learns:
            raise EmatError(
                f"the example {example.title} is sparse, which needs a segmenter that learns; leave out --no-learn, or "
                "in Python learn=False"
            )
        head = unwrapped(self.method)
        features = Predictor(self.method, self.thresholds, cache=self.cache).head_features(shown.photo)
        undecided = shown.void & self.method.takes_undecided
        encodings = {
            name: head.encode_support(features, torch.from_numpy(mask - 1.0 * undecided).to(self.device))
            for name, mask in shown.masks.items()
        }
        working = None
        if isinstance(self.method, LearningMethod):
            working = working_photo(shown, KEPT_TIMES * self.method.working_side)
        return FittedExample.of(example, encodings, thumbnail(shown), working)

    def _fitted(self) -> KnownExamples:
        known = self._known
        if not known.classes:
            raise EmatError("this segmenter knows no class yet; call fit([Example(photo, {class: mask})]) first")
        return known


def _pixels_of(read: ReadPhoto) -> Pixels:
    if read.pixels is None:
        raise read.problem or EmatError("a photo was not read")
    return read.pixels
