"""The networks behind the page: tabs share one, and the features of every photo that it has encoded."""

import threading
from collections import OrderedDict
from pathlib import Path

from emat.backbone.registry import find_backbone
from emat.backbone.weights import find_weights
from emat.errors import EmatError
from emat.inference.feature_cache import FeatureCache
from emat.inference.fitted_file import read_fitted
from emat.inference.segmenter import Segmenter
from emat.method import Method
from emat.tensor_files import digest

FEATURE_BYTES = 1 << 30  # of encoded photos that each network keeps in memory
MOST_NETWORKS = 3  # that are kept for later tabs; a tab keeps the one it works with


class Networks:
    """Where segmenters for tabs come from. `start` is what a new tab begins with."""

    def __init__(self, start: Segmenter) -> None:
        self._caches: OrderedDict[str, FeatureCache] = OrderedDict()
        self._lock = threading.Lock()
        self._start = self._sharing(start)

    def begin(self) -> Segmenter:
        """A segmenter for a new tab."""
        return self._start.copy()

    def open_file(self, path: Path) -> Segmenter:
        """The fitted segmenter in a file that was dropped on the page; nothing is fetched for it."""
        try:
            _refuse_absent(read_fitted(path).head.backbone, path.name)
            return self._sharing(Segmenter.load(path, device=self._start.device))
        except EmatError as error:
            raise EmatError(str(error).replace(str(path), path.name)) from None

    def _sharing(self, segmenter: Segmenter) -> Segmenter:
        """The same segmenter, with the network and cache of an earlier one if they are equal."""
        key = _identity(segmenter.method)
        with self._lock:
            if key not in self._caches:
                self._caches[key] = FeatureCache(segmenter.method, memory_bytes=FEATURE_BYTES)
            self._caches.move_to_end(key)
            while len(self._caches) > MOST_NETWORKS:
                self._caches.popitem(last=False)
            segmenter.cache = self._caches[key]
        segmenter.method = segmenter.cache.method
        return segmenter


def _identity(method: Method) -> str:
    return f"{method.name} {method.preparation} {digest(method.state_dict())}"


def _refuse_absent(backbone: str, name: str) -> None:
    spec = find_backbone(backbone)
    for part in spec.parts or (spec,):
        if find_weights(part) is None:
            raise EmatError(
                f"{name} was made with the backbone {part.name}, which is not on this machine; "
                f"run `emat weights fetch {part.name}` first"
            )
