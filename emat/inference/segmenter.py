"""The segmenter: it takes a few examples and finds their classes in other photos.

A segmenter is a method, a pixel learner beside it, and the post-processing of `emat.inference.postprocessing`. `fit`
encodes the examples, trains the learner and decides everything that depends on the examples (`decisions`). `predict`
applies that to a photo, and nothing else.
"""

from __future__ import annotations

import html
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from emat.backbone.mobilesam import find_mobilesam
from emat.errors import EmatError
from emat.features import FeatureCache, features_bytes
from emat.images import Pixels, Reading, Source, fitted_size, read_channels
from emat.images.photos import has_channels
from emat.inference.decisions import (
    ClassDecisions,
    Decisions,
    LeftOutExample,
    decide_refinements,
    decide_smallest,
    decide_tiles,
)
from emat.inference.example import Example, MaskSource
from emat.inference.example_set import KEPT_TIMES, ExampleSet, FittedExample, working_photo
from emat.inference.fitted_file import FittedFile, is_fitted, read_fitted, write_fitted
from emat.inference.forecast import Forecast, Forecasts, forecasts
from emat.inference.hub import SEGMENTER_FILE, fetch_segmenter, is_on_hub, model_card, push_segmenter
from emat.inference.photos import READ_AHEAD, read_ahead
from emat.inference.postprocessing import ClassRules, in_steps
from emat.inference.prediction import Prediction, Thresholds
from emat.inference.tiles import MOST_DETAIL, UNCUT, Tiles, check_tiles, cut, tile_grid
from emat.methods.base import Comparison, Decision, Features, Method
from emat.methods.trained_head import BEST_HEAD, DEFAULT_HEAD, find_head, head_of, is_training_free, load_head
from emat.pictures.html import embedded, table
from emat.pixel_learner.cross_validation import CrossValidated, Learnt
from emat.pixel_learner.features import LARGEST_SIDE, SMALLEST_SIDE, WORKING_SIDE
from emat.pixel_learner.learner import PixelLearner, can_learn
from emat.pixel_learner.regression import LabelledPhoto
from emat.progress import tell_once
from emat.recent import Recent
from emat.refine.mobilesam import fetch_mobilesam
from emat.refine.refiner import Refinement, check_refinement
from emat.weights import is_offline

AS_FITTED: Literal["fitted"] = "fitted"
MOST_SHOWN = 12  # examples in a notebook
KEPT_BYTES = 1 << 28  # of the features of examples, which are compared with each other whenever one is added


@dataclass(frozen=True)
class Fit:
    """What `fit` made of the examples: all that `predict` needs."""

    examples: ExampleSet
    learnt: Learnt | None  # None if the segmenter does not learn
    decisions: Decisions

    @cached_property
    def forecast(self) -> Forecasts:
        """What to expect of each class on new photos; empty if nothing was learnt."""
        if self.learnt is None:
            return Forecasts()
        shown = [(example.name, example.classes) for example in self.examples.examples]
        return forecasts(self.learnt, self.examples.classes, shown)


class Segmenter:
    """Learns classes from a few photos with masks and finds them in other photos.

    ``fit``, ``add`` and ``remove`` change the examples; ``predict`` may be called from several threads at once, even
    while the examples change. An example is encoded once, when it is added.

    Args:
        method: A method with its weights, such as `TrainedHead.build` returns.
        thresholds: The probabilities that count; by default the paper's.
        tiles: Into how many tiles a side photos are cut beside the whole: None for none, "auto" to let `fit` decide, or
            a number. By default as the fitted file says, and none for a new segmenter.
        cache: A feature cache of the same method; with it, a photo that is predicted again is not encoded again.
        refine: How masks are refined: None for not at all; "guided" along the photo's edges; "mobilesam" by MobileSAM,
            whose weights are downloaded if need be; "auto" as `fit` decided: by MobileSAM where it can draw what the
            examples of a class show and its weights are on this machine, and else along the photo's edges.
        reading: How photos are read: the stretch of those with more than 8 bits, and the largest size.
        learner: Trains a pixel classifier on the examples and says in `forecast_` what to expect. None: no learner.
        size: The longest side, in pixels, at which the pixel learner sees photos. None: the examples choose it.
        overlap: Classes of which each lies on those after it, such as ("lesion", "leaf"). They do not compete: the mask
            of the leaf reaches below its lesions, in examples and in predictions.

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
        tiles: Tiles | Literal["fitted"] = AS_FITTED,
        cache: FeatureCache | None = None,
        refine: Refinement | None = "auto",
        reading: Reading | None = None,
        learner: PixelLearner | None = None,
        size: int | None = None,
        overlap: Sequence[str] = (),
    ) -> None:
        if tiles != AS_FITTED:
            check_tiles(tiles)
        check_refinement(refine)
        self.method = method.eval()
        self.thresholds = thresholds or Thresholds()
        self.tiles = tiles
        self.cache = cache
        self.refine = refine
        self.reading = reading or Reading()
        self.learner = learner
        self.size = size
        self.overlap = tuple(overlap)
        self._examples = ExampleSet()
        self._fit: Fit | None = None  # None while examples were added or removed and nothing was decided since
        self._changing = threading.RLock()
        self._kept = Recent[Features](KEPT_BYTES, features_bytes)

    @classmethod
    def load(
        cls,
        source: str | Path = "default",
        *,
        backbone: str | None = None,
        device: str | torch.device | None = None,
        tiles: Tiles | Literal["fitted"] = AS_FITTED,
        refine: Refinement | None = "auto",
        learn: bool | None = None,
        size: int | None = None,
        reading: Reading | None = None,
        overlap: Sequence[str] = (),
        fetch: bool = True,
    ) -> Segmenter:
        """Load a fitted segmenter from a file that `save` wrote, or make a new one from a head.

        Args:
            source: A file of a fitted segmenter, such a file on the Hugging Face hub as "hf://owner/name" or
                "hf://owner/name@revision", a head's file or name such as "default" or "emat-coco-fold0", or a
                method that needs no training such as "prototype". "default" is the head that comes with emat: the one
                that looks through MobileSAM's encoder as well if its weights are here, else "default-light". "best" is
                the strongest head whose weights are on this machine (see `emat.methods.trained_head`); which one it is,
                is said on standard error.
            backbone: The backbone's name, needed only for a head whose file does not say it.
            device: "cpu", "cuda", "mps" or "auto".
            tiles: Into how many tiles a side photos are cut beside the whole: None for none, "auto", or a number. By
                default as the file says.
            refine: How masks are refined: None, "auto" (as the file says), "mobilesam" or "guided".
            learn: Whether to train a pixel classifier on the examples beside the head. By default a new segmenter
                does, and a fitted one as it did when it was saved.
            size: The longest side, in pixels, at which the pixel learner sees photos. By default the examples choose
                it: 400, or up to 800 where their masks are thin. A fitted segmenter keeps its own.
            reading: How photos are read. By default a fitted segmenter stretches photos of more than 8 bits as it did
                when it was fitted.
            overlap: Of a new segmenter, classes of which each lies on those after it; a fitted one keeps its own.
            fetch: Whether a segmenter that learns downloads MobileSAM's weights (41 MB) if they are not on this
                machine. It learns better with them, and works without. `EMAT_OFFLINE=1` forbids it too.

        Raises:
            EmatError: If the file or name is unknown or damaged.
        """
        if is_on_hub(source):
            source = fetch_segmenter(str(source))
        if source in (DEFAULT_HEAD, BEST_HEAD) and fetch and learn is not False and not is_offline():
            fetch_mobilesam()  # before the head is chosen, which depends on it
        if not is_training_free(source) and is_fitted(find_head(source)):
            return cls._from_file(read_fitted(find_head(source), device), tiles, refine, learn, reading, fetch)
        if size is not None and not SMALLEST_SIDE <= size <= LARGEST_SIDE:
            raise EmatError("bad-number", f"the working size is {SMALLEST_SIDE} to {LARGEST_SIDE} pixels, not {size}")
        head = load_head(source, backbone)
        method = head.build(device)
        learner = None
        if learn is not False and (learn or can_learn(method)):
            learner = PixelLearner.of(method, head.thresholds, fetch=fetch)
        return cls(
            method, head.thresholds, tiles, refine=refine, reading=reading, learner=learner, size=size, overlap=overlap
        )

    @classmethod
    def _from_file(
        cls,
        file: FittedFile,
        tiles: Tiles | Literal["fitted"],
        refine: Refinement | None,
        learn: bool | None,
        reading: Reading | None,
        fetch: bool,
    ) -> Segmenter:
        """Make the segmenter of a fitted file. A file of format 1 says nothing of decisions: they are made here."""
        learner = None
        if file.learns if learn is None else learn:
            # What was learnt from some features needs the same ones again; a new learner takes what there is.
            encoder = file.encoder if file.learnt is not None else None
            learner = PixelLearner.of(file.method, file.thresholds, encoder, fetch)
        size = None if file.fits_size or file.learnt is None else file.learnt.working_side
        overlap = () if file.decisions is None else file.decisions.overlap
        segmenter = cls(
            file.method, file.thresholds, tiles, None, refine, reading or file.reading, learner, size, overlap
        )
        # The decisions have the order of the classes; files of format 1 knew none but that of the examples.
        segmenter._examples = ExampleSet(file.examples, () if file.decisions is None else tuple(file.decisions.classes))
        if learner is not None and file.learnt is None:
            return segmenter  # it was saved without learning, and learns when it is first asked
        learnt = file.learnt if learner is not None else None
        decisions = file.decisions
        if decisions is None:
            decisions = segmenter._decide(segmenter._examples, learnt, None, smallest=False)
        if tiles == "auto":  # asked of a fitted file, this leaves nothing to decide
            decisions = replace(decisions, tiles=tiles)
        segmenter._fit = Fit(segmenter._examples, learnt, decisions)
        # The one way in which two machines answer differently is not passed over in silence.
        outlined = [name for name, one in decisions.classes.items() if one.refine == "auto"]
        if outlined and refine == "auto" and find_mobilesam() is None:
            tell_once(
                f"masks of {', '.join(outlined)} follow the photo's edges here: MobileSAM, which outlined them when "
                "they were fitted, is not on this machine; `emat weights fetch mobilesam` brings it"
            )
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
        fit = self._fitted()
        write_fitted(
            Path(path),
            head_of(self.method, self.thresholds),
            FittedFile(
                self.method,
                self.thresholds,
                fit.examples.examples,
                fit.learnt,
                fit.decisions,
                learns=self.learner is not None,
                reading=self.reading,
                fits_size=self.size is None,
                encoder=self.learner is not None and self.learner.encoder is not None,
            ),
            thumbnails,
        )

    def push_to_hub(self, name: str, *, private: bool = False, thumbnails: bool = False) -> str:
        """Write the fitted segmenter to a model of the Hugging Face hub, with a card that says what it finds.

        Args:
            name: The model, as "owner/name"; it is made if it is not there.
            private: Whether a new model is private.
            thumbnails: Whether to publish small pictures of the examples; see `save`.

        Returns:
            The address for `load`: "hf://owner/name".

        Raises:
            EmatError: If nothing was fitted, the package huggingface_hub is missing, or the hub refuses.
        """
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / SEGMENTER_FILE
            self.save(file, thumbnails=thumbnails)
            return push_segmenter(
                file, name, model_card(name, self.method.name, self._shown(), self.forecast_), private
            )

    def copy(self, *, examples: bool = True) -> Segmenter:
        """Return another segmenter with the same examples, or with none; both share the network."""
        other = Segmenter(
            self.method,
            self.thresholds,
            self.tiles,
            self.cache,
            self.refine,
            self.reading,
            self.learner,
            self.size,
            self.overlap,
        )
        other._kept = self._kept
        if examples:
            with self._changing:
                other._examples, other._fit = self._examples, self._fit
        return other

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor, as scikit-learn's estimators do; `deep` changes nothing."""
        return {name: getattr(self, name) for name in signature(Segmenter).parameters}

    def __sklearn_clone__(self) -> Segmenter:
        return self.copy(examples=False)  # shares the network, which scikit-learn would copy

    def __repr__(self) -> str:
        classes = ", ".join(f"{name} ({count} examples)" for name, count in self._shown().items())
        learns = "learns from examples" if self.learner is not None else "does not learn"
        return f"Segmenter({self.method.name}, {learns}; {classes or 'no classes yet'})".replace(
            "(1 examples)", "(1 example)"
        )

    def _repr_html_(self) -> str:
        """The examples, and what is expected of each class if that is known; notebooks show it."""
        rows = [[name, str(count)] for name, count in self._shown().items()]
        fit = self._fit  # what is not decided yet is not decided now, because a look must not take seconds
        small = [example.thumbnail for example in self.examples_[:MOST_SHOWN] if example.thumbnail is not None]
        numbers = {name: number for number, name in enumerate(self.classes_, start=1)}
        pictures = "".join(f'<img src="{embedded(thumbnail.drawn(numbers))}"> ' for thumbnail in small)
        expected = (
            self.forecast_._repr_html_() if fit is not None and fit.learnt else table(["class", "examples"], rows)
        )
        return f"<div>{html.escape(repr(self))}</div>{pictures}{expected}"

    def _shown(self) -> dict[str, int]:
        """How many examples show each class."""
        return {name: sum(name in example.classes for example in self.examples_) for name in self.classes_}

    def score(self, photos: Iterable[Source], masks: Iterable[Mapping[str, MaskSource]]) -> float:
        """Return the mIoU on photos whose masks are known: the mean over the classes of intersection over union.

        Intersections and unions are summed over all photos first. Undecided pixels do not count.

        Args:
            photos: Whatever `predict` takes.
            masks: For each photo the masks of the classes that it shows, as `Example` takes them; {} if it shows none.

        Raises:
            EmatError: If nothing was fitted, there is no photo, or a photo or mask cannot be read.
        """
        classes = self._fitted().examples.classes
        overlap, union = dict.fromkeys(classes, 0), dict.fromkeys(classes, 0)
        count = 0
        for photo, shown in zip(photos, masks, strict=True):
            count += 1
            truth = Example(photo, shown).read(self.reading)
            prediction = self.predict(truth.photo)
            for name in classes:
                predicted = prediction.mask(name) & ~truth.void
                there = truth.masks.get(name, np.zeros_like(predicted))
                overlap[name] += int((predicted & there).sum())
                union[name] += int((predicted | there).sum())
        if not count:
            raise EmatError("no-examples", "there is nothing to score: give at least one photo with its masks")
        seen = [name for name in classes if union[name]]
        return sum(overlap[name] / union[name] for name in seen) / len(seen) if seen else 1.0

    @property
    def classes_(self) -> tuple[str, ...]:
        """The names of the classes, in the order that was given to `fit`, or else of their first example."""
        return self._examples.classes

    @property
    def examples_(self) -> tuple[FittedExample, ...]:
        """The examples, in order."""
        return self._examples.examples

    @property
    def learnt_(self) -> Learnt | None:
        """What the examples taught the pixel learner; None if the segmenter does not learn."""
        return self._fitted().learnt

    @property
    def decisions_(self) -> Decisions:
        """What `fit` decided."""
        return self._fitted().decisions

    @property
    def tiles_(self) -> Tiles:
        """Into how many tiles a side photos are cut: what this segmenter was told, or what `fit` decided."""
        return self._tiles(self._fitted())

    def _tiles(self, fit: Fit) -> Tiles:
        return fit.decisions.tiles if self.tiles in (AS_FITTED, "auto") else self.tiles

    @property
    def rules_(self) -> Mapping[str, ClassRules]:
        """How post-processing treats each class."""
        fit = self._fitted()
        return self._rules(fit.decisions, fit.examples.classes, fit.forecast)

    @property
    def rivals_(self) -> list[list[int]]:
        """For each class the indices of those that it competes with."""
        return rivals_of(self.classes_, self._fitted().decisions.overlap)

    @property
    def forecast_(self) -> Forecasts:
        """What to expect of each class on new photos; empty if the segmenter does not learn."""
        return self._fitted().forecast

    @property
    def working_side(self) -> int:
        """The longest side, in pixels, at which the pixel learner sees photos."""
        if self._fit is not None and self._fit.learnt is not None:
            return self._fit.learnt.working_side
        return self.size or (WORKING_SIDE if self.learner is None else self._examples.working_side())

    @property
    def device(self) -> torch.device:
        """The device that it computes on."""
        return next(self.method.parameters()).device

    def fit(self, examples: Iterable[Example], classes: Sequence[str] = ()) -> Segmenter:
        """Learn from `examples`, forgetting earlier ones; they are read one at a time.

        Args:
            examples: The examples.
            classes: The order of the classes, which numbers them in label maps; a class that no example shows is passed
                over. By default, they have the order of their first example.

        Raises:
            EmatError: If there is no example, or one cannot be read.
        """
        encoded = ExampleSet(order=tuple(classes))
        for example in [examples] if isinstance(examples, Example) else examples:
            encoded = encoded.of((*encoded.examples, self._encoded(example, encoded)))
        if not encoded.examples:
            raise EmatError("no-examples", "there is nothing to fit: give at least one photo with the mask of a class")
        encoded.check_shown()
        fit = self._fit_to(encoded)
        with self._changing:
            self._examples, self._fit = fit.examples, fit
        return self

    def add(self, example: Example, instead_of: Example | int | None = None) -> Segmenter:
        """Learn from one more example; the others stay as they are.

        What depends on the examples is decided again when it is next needed, so that adding several costs it once.

        Args:
            example: The example.
            instead_of: An example, given by itself or its index, whose place it takes.

        Raises:
            EmatError: If the example cannot be read, or the segmenter learns but was saved without its photos.
        """
        with self._changing:
            before = self._examples.examples
            index = len(before) if instead_of is None else self._examples.index(instead_of)
            others = self._examples.of(before[:index] + before[index + 1 :])
            self._check_learns_again(others)
            added = self._encoded(example, others)
            self._examples = self._examples.of((*before[:index], added, *before[index + 1 :]))
            self._fit = None
        return self

    def move(self, example: Example | int, to: int) -> Segmenter:
        """Put an example at another place in the list, which changes nothing about what is found.

        Args:
            example: The example, given by itself or its index.
            to: The index that it gets.

        Raises:
            EmatError: If there is no such example or place.
        """
        with self._changing:
            index, target = self._examples.index(example), self._examples.index(to)
            examples = list(self._examples.examples)
            examples.insert(target, examples.pop(index))
            self._examples, self._fit = self._examples.of(examples), None
        return self

    def rename(self, name: str, to: str) -> Segmenter:
        """Give a class another name; what was learnt stays.

        Raises:
            EmatError: If there is no such class, or another one is called so.
        """
        with self._changing:
            if name not in self._examples.classes:
                raise EmatError("unknown-class", f"there is no class {name!r}; choose one of {self._examples.classes}")
            if to.casefold() in {other.casefold() for other in self._examples.classes if other != name}:
                raise EmatError("given-twice", f"there is already a class {to!r}; choose another name")
            self.overlap = tuple(to if lower == name else lower for lower in self.overlap)
            self._examples = self._examples.renamed(name, to)
            if self._fit is not None:
                decisions = self._fit.decisions.renamed(name, to)
                self._fit = Fit(self._examples, self._fit.learnt, decisions)
        return self

    def remove(self, example: Example | int) -> Segmenter:
        """Forget an example, given by itself or its index; a class that no other example shows is forgotten too.

        Raises:
            EmatError: If there is no such example, or the segmenter learns but was saved without its photos.
        """
        with self._changing:
            index = self._examples.index(example)
            examples = self._examples.examples
            others = self._examples.of(examples[:index] + examples[index + 1 :])
            self._check_learns_again(others)
            self._examples, self._fit = others, None
        return self

    def predict(self, photo: Source) -> Prediction:
        """Find the classes in a photo.

        Args:
            photo: A path, the bytes of a file, a PIL image or an array (H, W, 3).

        Raises:
            EmatError: If nothing was fitted, or the photo cannot be read.
        """
        return self.predict_unrefined(photo).refined()

    def predict_unrefined(self, photo: Source) -> Prediction:
        """Predict without the last and slowest step, for those who show coarse masks first; see `Prediction.refined`.

        Raises:
            EmatError: If nothing was fitted, or the photo cannot be read.
        """
        return self._unrefined(read_channels(photo, reading=self.reading), self._fitted())

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
            raise EmatError("bad-number", f"batch_size is {batch_size}; it must be at least 1")
        fit = self._fitted()
        # Closed also when a photo cannot be read, so that no reader's thread is left.
        with closing(read_ahead(photos, max(ahead, batch_size - 1), self.reading)) as reading:
            while batch := list(islice(reading, batch_size)):
                pixels = [read.photo() for read in batch]
                for photo, features in zip(pixels, self._features_of(pixels), strict=True):
                    yield self._unrefined(photo, fit, features).refined()

    # From a photo to probability maps

    @torch.inference_mode()
    def _unrefined(self, photo: Pixels, fit: Fit, features: Features | None = None) -> Prediction:
        return self._answer(photo, fit, self._tile_grid((photo.shape[0], photo.shape[1]), fit), features=features)

    def _tile_grid(self, size: tuple[int, int], fit: Fit) -> tuple[int, int]:
        """The rows and columns of tiles that a photo of `size` (H, W) is cut into."""
        tiles = self._tiles(fit)
        if fit.learnt is not None and tiles == "auto" and not fit.learnt.needs_head:
            return UNCUT  # tiles are for the head, which cross-validation showed not to count
        return tile_grid(size, self.method.preparation.image_size, tiles)

    def _answer(
        self,
        photo: Pixels,
        fit: Fit,
        grid: tuple[int, int],
        without: Collection[int] = (),
        features: Features | None = None,
    ) -> Prediction:
        """Find the classes in a photo (H, W, 3), as a whole and in rows and columns of tiles.

        Args:
            photo: The photo.
            fit: What was fitted.
            grid: The rows and columns of tiles.
            without: The indices of examples that do not count, when they are left out.
            features: Those of the photo, if they were computed before.
        """
        examples, learnt, thresholds = fit.examples, fit.learnt, self.thresholds
        names = [name for name in examples.classes if examples.supports(name, without)]
        indices = [examples.classes.index(name) for name in names]
        size = (photo.shape[0], photo.shape[1])
        detail = fitted_size(size, MOST_DETAIL)
        logits = None  # (N, h, w): the pixel classifier's
        if learnt is not None and self.learner is not None:
            maps = self.learner.features(photo, learnt.working_side).batch
            if sum(one.shape[1] for one in maps) != learnt.classifier.weights.shape[1]:
                raise EmatError(
                    "channels-differ",
                    f"the examples had other channels than this photo, which has {_channels(photo)}; choose the same "
                    "ones with --channels",
                )
            logits = learnt.classifier.logits(maps)[0, indices]
            learnt = learnt.only(indices)

        rivals = rivals_of(names, fit.decisions.overlap)

        def decide(
            pixels: Tensor | None, features: Features, part: tuple[int, int], ways: list[list[object]], whole: bool
        ) -> Decision:
            comparison = Comparison(self.method, features)
            if pixels is None or learnt is None or self.learner is None:
                return comparison.decide(ways, part, thresholds)
            return self.learner.answer(comparison, ways, part, pixels, learnt, thresholds, rivals, whole)

        ways = [examples.supports(name, without) for name in names]
        answer = decide(logits, self._features(photo) if features is None else features, detail, ways, whole=True)
        scores, probabilities = list(answer.certainty), answer.probabilities.copy()
        for tile in cut(size, grid) if grid != UNCUT else ():
            # The head compares a tile with tiles of the examples, which show things at the same scale. What was learnt
            # from whole photos is applied to the whole.
            part = tile.scaled(size, detail)
            ways = [examples.tile_supports(name, grid, self.method, without) for name in names]
            own = None if logits is None else _part(logits, tile.shares(size))
            seen = decide(own, self._features(photo[tile.area]), (part.height, part.width), ways, whole=False)
            for index, score in enumerate(seen.certainty):
                scores[index] = max(scores[index], score)
                if score >= thresholds.presence:  # otherwise every tile would add its own false alarms
                    inside = probabilities[index][part.area]
                    np.maximum(inside, seen.probabilities[index], out=inside)
        return Prediction(
            photo,
            dict(zip(names, scores, strict=True)),
            {name: in_steps(map_) for name, map_ in zip(names, probabilities, strict=True)},
            self._rules(fit.decisions, names, {} if without else fit.forecast),
        )

    def _rules(
        self, decisions: Decisions, names: Iterable[str], forecast: Mapping[str, Forecast] | None = None
    ) -> Mapping[str, ClassRules]:
        """How post-processing treats each class: as decided, unless this segmenter was told otherwise."""
        rules = {}
        for name in names:
            decided = decisions.classes.get(name, ClassDecisions("guided"))
            way = decided.refine if self.refine == "auto" else self.refine
            order = decisions.overlap
            below = order[order.index(name) + 1 :] if name in order else ()
            expected = forecast[name].iou if forecast and name in forecast else None
            rules[name] = ClassRules(self.thresholds, way, decided.smallest, below, expected)
        return rules

    def _features(self, photo: Pixels) -> Features:
        colours = np.ascontiguousarray(photo[..., :3])
        return self.method.photo_features(colours) if self.cache is None else self.cache.features(colours)

    def _example_features(self, photo: Pixels) -> Features:
        """The features of a photo that is kept of an example, remembered while there is room."""
        return self._kept.get(photo, lambda: self._features(photo))

    @torch.inference_mode()
    def _features_of(self, photos: list[Pixels]) -> list[Features]:
        """The features of several photos, computed together unless a cache keeps them."""
        if self.cache is not None or len(photos) == 1:
            return [self._features(photo) for photo in photos]
        return self.method.features_together([np.ascontiguousarray(photo[..., :3]) for photo in photos])

    # From examples to decisions

    @torch.inference_mode()
    def _encoded(self, example: Example, others: ExampleSet) -> FittedExample:
        if not isinstance(example, Example):
            raise EmatError(
                "bad-example", f"an example is Example(photo, {{class: mask}}), not a {type(example).__name__}"
            )
        others.check_names(example)
        shown = example.read(self.reading).with_overlap(self.overlap)
        if shown.sparse and self.learner is None:
            raise EmatError(
                "needs-learning",
                f"the example {example.title} is sparse, which needs a segmenter that learns; leave out --no-learn, or "
                "in Python learn=False",
            )
        side = KEPT_TIMES * (self.size or WORKING_SIDE)
        working = None if self.learner is None else working_photo(shown, side)
        # A small photo is kept as it is, so that cross-validation can use its features again.
        is_kept = working is not None and working.photo.shape == shown.photo.shape
        photo = working.photo if is_kept and working is not None else shown.photo
        features = cache(lambda: self._example_features(photo) if is_kept else self._features(photo))
        undecided = shown.void & self.method.takes_undecided
        encodings = {
            name: self._encode_example(torch.from_numpy(mask - 1.0 * undecided), photo, features)
            for name, mask in shown.masks.items()
        }
        return FittedExample.of(example, shown, encodings, working)

    def _encode_example(self, mask: Tensor, photo: Pixels, features: Callable[[], Features]) -> Any:
        return self.method.encode_example(mask.to(self.device), lambda: photo[..., :3], features, self._features)

    def _fitted(self) -> Fit:
        """What was fitted; decided now if examples were added or removed."""
        with self._changing:
            if not self._examples.classes:
                raise EmatError(
                    "not-fitted", "this segmenter knows no class yet; call fit([Example(photo, {class: mask})]) first"
                )
            if self._fit is None:
                self._fit = self._fit_to(self._examples)
                self._examples = self._fit.examples
            return self._fit

    @torch.no_grad()
    def _fit_to(self, examples: ExampleSet) -> Fit:
        """Train the pixel learner on examples, and decide what depends on them."""
        if self.learner is None:
            return self._with_tiles(Fit(examples, None, self._decide(examples, None, None)))
        # The examples as the pixel learner sees them, all with the same channels.
        learner, side = self.learner, self.size or examples.working_side()
        kept = examples.kept_photos()
        counts = {example.name: _channels(one.photo) for example, one in zip(examples.examples, kept, strict=True)}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name} has {count}" for name, count in counts.items())
            raise EmatError("channels-differ", f"the number of channels must be the same: {listed}; use --channels")
        photos = [
            LabelledPhoto(learner.example_features(one.photo, side), one.pixel_labels(examples.classes).to(self.device))
            for one in kept
        ]
        # A head needs whole masks, so strokes are completed first.
        if any(one.sparse for one in kept):
            examples = self._filled_in(examples, learner.fill_in(photos))
        # Cross-validation asks the head about every example, compared with some of the others.
        comparisons: dict[int, Comparison[object, object, object]] = {}

        def head_logits(photo: int, c: int, others: Iterable[int]) -> Tensor:
            if photo not in comparisons:
                comparisons[photo] = Comparison(self.method, self._example_features(kept[photo].photo))
            supports = [examples.examples[other].encodings[examples.classes[c]] for other in others]
            answer = comparisons[photo].decide([supports], photos[photo].features.grid, learner.thresholds)
            return learner.head_logits(torch.from_numpy(answer.probabilities[0]).to(self.device))

        validated = learner.fit(photos, head_logits, side, rivals_of(examples.classes, self.overlap))
        return self._with_tiles(Fit(examples, validated.learnt, self._decide(examples, validated.learnt, validated)))

    def _with_tiles(self, fit: Fit) -> Fit:
        """Encode the tiles of the examples for photos of their sizes, so that no first photo has to wait for it."""
        sizes = {example.size for example in fit.examples.examples if example.size is not None}
        examples = fit.examples
        for grid in {self._tile_grid(size, fit) for size in sizes} - {UNCUT}:
            examples = examples.with_tiles(grid, self.method)
        return replace(fit, examples=examples)

    def _filled_in(self, examples: ExampleSet, masks: list[Tensor]) -> ExampleSet:
        """Give the head a whole mask where a user painted a few strokes: the learner's own answer on that photo."""
        filled = []
        for example, masks_of_photo in zip(examples.examples, masks, strict=True):
            if example.working is not None and example.working.sparse:
                photo = example.working.photo
                features = partial(self._example_features, photo)
                whole = {
                    name: self._encode_example(masks_of_photo[examples.classes.index(name)].float(), photo, features)
                    for name in example.classes
                }
                example = replace(example, encodings=whole)
            filled.append(example)
        return examples.of(filled)

    def _decide(
        self, examples: ExampleSet, learnt: Learnt | None, validated: CrossValidated | None, smallest: bool = True
    ) -> Decisions:
        """Decide what depends on the examples and is not a part of what was learnt.

        Without `validated`, which has the folds, a left-out example is classified by what all of them taught.
        """

        def predict(example: LeftOutExample, grid: tuple[int, int]) -> Prediction:
            if validated is not None and self.learner is not None and grid == UNCUT and example.index in validated.maps:
                # The cross-validation has made the maps of this example already.
                mixed = {examples.classes[c]: logits for c, logits in validated.maps[example.index].items()}
                maps = {name: in_steps(self.learner.probability(x).cpu().numpy()) for name, x in mixed.items()}
                return Prediction(example.photo, dict.fromkeys(maps, 1.0), maps, self._rules(Decisions(), maps))
            # Otherwise it is predicted by a head and a learner that did not see its fold.
            without = {example.index}
            taught = learnt
            if validated is not None and validated.folds:
                fold = validated.folds[example.index]
                without = {index for index, other in enumerate(validated.folds) if other == fold}
                taught = validated.without(example.index)
            undecided = Decisions({name: ClassDecisions("auto") for name in examples.classes}, overlap=self.overlap)
            return self._answer(example.photo, Fit(examples, taught, undecided), grid, without)

        # Each decision compares predictions of left-out examples with their masks.
        ways = decide_refinements(examples, predict, validated is not None) if self.refine == "auto" else {}
        classes = {
            name: ClassDecisions(ways.get(name, self.refine), decide_smallest(examples, name) if smallest else 0.0)
            for name in examples.classes
        }
        tiles = None if self.tiles == AS_FITTED else self.tiles
        if tiles == "auto":
            tiles = decide_tiles(examples, self.method.preparation.image_size, predict)
        if unknown := [name for name in self.overlap if name not in examples.classes]:
            raise EmatError(
                "unknown-class", f"--overlap names {unknown[0]!r}, but the classes are {', '.join(examples.classes)}"
            )
        return Decisions(classes, tiles, self.overlap, None if learnt is None else learnt.working_side)

    def _check_learns_again(self, examples: ExampleSet) -> None:
        """Refuse a change before it is made: afterwards there would be no way to predict, and none to go back."""
        if self.learner is not None:
            examples.kept_photos()


def rivals_of(classes: Sequence[str], overlap: Collection[str]) -> list[list[int]]:
    """For each class the indices of those that it competes with: all others but those that it may overlap.

    >>> rivals_of(["leaf", "soil", "lesion"], ("lesion", "leaf"))
    [[1], [0, 2], [1]]
    """
    return [
        [i for i, other in enumerate(classes) if other != name and not (name in overlap and other in overlap)]
        for name in classes
    ]


def _channels(photo: Pixels) -> int:
    """How many channels a photo has, beside the colours that are made of them."""
    return photo.shape[2] - 3 if has_channels(photo) else photo.shape[2]


def _part(logits: Tensor, shares: tuple[float, float, float, float]) -> Tensor:
    """What lies of maps (N, h, w) in a rectangle: its top, left, height and width as shares of the photo."""
    top, left, height, width = shares
    rows, columns = logits.shape[1:]
    first, start = int(top * rows), int(left * columns)
    last, end = max(first + 1, round((top + height) * rows)), max(start + 1, round((left + width) * columns))
    return logits[:, first:last, start:end]
