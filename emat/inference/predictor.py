"""One photo is answered from known examples: as a whole, and in tiles where that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from emat.features import FeatureCache
from emat.images import Pixels
from emat.inference.forecast import tiles_help
from emat.inference.known_examples import KnownExamples
from emat.inference.prediction import Prediction
from emat.inference.tiles import WHOLE, Tiles, cut, detail_size, tile_grid
from emat.methods.base import Decision, Features, Method, TaskEvidence, Thresholds
from emat.methods.leave_out import Learnt
from emat.methods.with_learner import LearningMethod, LearntEvidence, parts_of, unwrapped


@dataclass(frozen=True)
class Predictor:
    """Predicts photos, without refinement."""

    method: Method
    thresholds: Thresholds
    tiles: Tiles = None
    cache: FeatureCache | None = None  # of the same method

    def learnt(self, known: KnownExamples) -> Any | None:
        """What the examples teach; None if the method does not learn."""
        return known.learn(self.method, self.features)

    @torch.inference_mode()
    def predict(
        self,
        photo: Pixels,
        known: KnownExamples,
        features: Features | None = None,
        grid: tuple[int, int] | None = None,
    ) -> Prediction:
        """Find the classes of the examples in a photo (H, W, 3).

        Args:
            photo: The photo.
            known: The examples.
            features: Those of the photo, if they were computed before.
            grid: The rows and columns of tiles; None to choose them.
        """
        learnt = self.learnt(known)
        size = (photo.shape[0], photo.shape[1])
        detail = detail_size(size)
        query = self.method.encode_query(self.features(photo) if features is None else features)
        evidence = None if learnt is None else self.method.apply_learnt(query, learnt)
        compared = [self.method.compare(query, known.shots(name)) for name in known.classes]
        decision = self.method.decide(TaskEvidence(compared, detail, evidence), self.thresholds)
        scores, maps = list(decision.certainty), decision.probabilities.copy()
        grid = self._grid(size, known, learnt) if grid is None else grid
        for tile in cut(size, grid) if grid != WHOLE else ():
            part = tile.scaled(size, detail)
            # What was learnt from whole photos is applied to the whole: a tile shows everything at another scale.
            own = evidence.part(tile.shares(size)) if isinstance(evidence, LearntEvidence) else evidence
            seen = self._in_tile(photo[tile.area], known, grid, (part.height, part.width), own)
            for index, score in enumerate(seen.certainty):
                scores[index] = max(scores[index], score)
                if score >= self.thresholds.presence:  # otherwise every tile would add its own false alarms
                    inside = maps[index][part.area]
                    np.maximum(inside, seen.probabilities[index], out=inside)
        named = known.classes
        return Prediction(
            photo, dict(zip(named, scores, strict=True)), dict(zip(named, maps, strict=True)), self.thresholds
        )

    def _grid(self, size: tuple[int, int], known: KnownExamples, learnt: Any) -> tuple[int, int]:
        """Into how many rows and columns of tiles a photo is cut."""
        grid = tile_grid(size, self.method.preparation.image_size, self.tiles)
        if self.tiles != "auto" or grid == WHOLE or not isinstance(learnt, Learnt):
            return grid
        if not learnt.needs_head:
            return WHOLE  # tiles are for the head, which left-out examples showed not to count
        return grid if tiles_help(known, grid, self.predict) else WHOLE

    def _in_tile(
        self, pixels: Pixels, known: KnownExamples, grid: tuple[int, int], size: tuple[int, int], learnt: Any
    ) -> Decision:
        """The head compares a tile with tiles of the examples, which show things at the same scale."""
        head = unwrapped(self.method)
        query = head.encode_query(self.head_features(pixels))
        compared = [head.compare(query, known.closer(name, grid, head)) for name in known.classes]
        return self.method.decide(TaskEvidence(compared, size, learnt), self.thresholds)

    def features(self, photo: Pixels) -> Features:
        """The features of a photo."""
        return self.method.photo_features(photo) if self.cache is None else self.cache.features(photo)

    @torch.inference_mode()
    def features_of(self, photos: Sequence[Pixels]) -> list[Features]:
        """The features of several photos, computed together unless a cache keeps them."""
        if self.cache is not None or len(photos) == 1:
            return [self.features(photo) for photo in photos]
        return self.method.features_together(photos)

    def head_features(self, photo: Pixels) -> Features:
        """The features that the head takes. Those of single pixels are left out, unless a cache has them anyway."""
        if self.cache is None:
            return unwrapped(self.method).photo_features(photo)
        features = self.cache.features(photo)
        return parts_of(features)[0] if isinstance(self.method, LearningMethod) else features
