"""The methods of all tabs: tabs whose methods are equal share one, and the features of photos with it."""

import threading
from collections import OrderedDict
from pathlib import Path

from emat.backbone.registry import find_backbone
from emat.backbone.weights import find_weights
from emat.errors import EmatError
from emat.features import FeatureCache
from emat.inference.fitted_file import read_fitted
from emat.inference.segmenter import Segmenter
from emat.methods.base import Method
from emat.tensor_files import digest

FEATURE_BYTES = 1 << 30  # of features that are kept in memory for each method
MOST_METHODS = 3  # that are kept for later tabs; a tab keeps the one that it uses


class SharedMethods:
    """Makes the segmenters of tabs, which share methods and the features of photos. `start` is for new tabs."""

    def __init__(self, start: Segmenter) -> None:
        self._caches: OrderedDict[str, FeatureCache] = OrderedDict()
        self._lock = threading.Lock()
        self._start = self._sharing(start)

    def begin(self) -> Segmenter:
        """Return a segmenter for a new tab."""
        return self._start.copy()

    def bare(self) -> Segmenter:
        """Return a segmenter like that of a new tab, without any example."""
        return Segmenter(
            self._start.method, self._start.thresholds, self._start.tiles, self._start.cache, self._start.refine
        )

    def open_file(self, path: Path) -> Segmenter:
        """Load a fitted file; no weights are downloaded for it."""
        try:
            _refuse_absent(read_fitted(path).head.backbone, path.name)
            return self._sharing(Segmenter.load(path, device=self._start.device))
        except EmatError as error:
            raise EmatError(str(error).replace(str(path), path.name)) from None

    def forget_features(self) -> None:
        """Free the memory of all features; they are computed again when they are needed."""
        with self._lock:
            for cache in self._caches.values():
                cache.clear()

    def _sharing(self, segmenter: Segmenter) -> Segmenter:
        """Give the segmenter the method and cache of an earlier one if both methods are equal."""
        key = _identity(segmenter.method)
        with self._lock:
            if key not in self._caches:
                self._caches[key] = FeatureCache(segmenter.method, memory_bytes=FEATURE_BYTES)
            self._caches.move_to_end(key)
            while len(self._caches) > MOST_METHODS:
                self._caches.popitem(last=False)
            segmenter.cache = self._caches[key]
        segmenter.method = segmenter.cache.method
        return segmenter


def _identity(method: Method) -> str:
    thresholds = getattr(method, "thresholds", None)  # a method that learns does so for its own thresholds
    return f"{method.name} {method.preparation} {thresholds} {digest(method.state_dict())}"


def _refuse_absent(backbone: str, name: str) -> None:
    spec = find_backbone(backbone)
    for part in spec.parts or (spec,):
        if find_weights(part) is None:
            raise EmatError(
                f"{name} was made with the backbone {part.name}, which is not on this machine; "
                f"run `emat weights fetch {part.name}` first"
            )
