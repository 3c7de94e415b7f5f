"""What belongs to one tab of the browser, and the methods that all tabs share.

A session lives in memory and is found by a random token that the tab keeps.
"""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from emat.backbone.registry import find_backbone
from emat.backbone.weights import find_weights
from emat.errors import EmatError
from emat.features import FeatureCache
from emat.inference.example import Mask
from emat.inference.fitted_file import read_fitted
from emat.inference.prediction import Prediction
from emat.inference.segmenter import Segmenter
from emat.methods.base import Method
from emat.pictures.palette import COLOURS, colour_of
from emat.studio.photos import StudioPhoto
from emat.tensor_files import digest

MOST_CLASSES = len(COLOURS)  # each has a colour of its own
MOST_PHOTOS = 100
MOST_SESSIONS = 20
IDLE_HOURS = 12
FEATURE_BYTES = 1 << 30  # of features that are kept in memory for each method
MOST_METHODS = 3  # that are kept for later tabs; a tab keeps the one that it uses


@dataclass(frozen=True)
class StudioClass:
    """A class of the page. Its number decides its colour and stays the same when other classes are removed."""

    name: str
    number: int

    @property
    def colour(self) -> tuple[int, int, int]:
        """The colour in which the class is painted and shown."""
        return colour_of(self.number)


@dataclass(eq=False)
class StudioQuery:
    """A photo in which the classes are to be found, with its prediction and its correction."""

    key: int
    photo: StudioPhoto
    prediction: Prediction | None = None
    version: int = -1  # of the examples that the prediction comes from
    corrected: Mapping[str, Mask] | None = None  # (h, w) of each class; what the user painted is final


@dataclass(eq=False)
class Session:
    """The state of one tab. Hold `lock` while you change it; `version` counts the changes of the examples."""

    token: str
    segmenter: Segmenter
    classes: list[StudioClass] = field(default_factory=list)
    thresholds: dict[str, float] = field(default_factory=dict)  # by class, where moved
    drafts: list[StudioPhoto] = field(default_factory=list)  # example photos to paint; the first is in the editor
    queries: dict[int, StudioQuery] = field(default_factory=dict)
    correcting: int | None = None  # the query in the editor
    unfilled: set[str] = field(default_factory=set)  # editors ("draft", "correction") that wait for their photo
    brush: str | None = None  # the class that is painted
    first_shown: int = 0  # the query at the top of the page of cards
    version: int = 0
    next_key: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    used: float = 0.0

    @property
    def colours(self) -> dict[str, tuple[int, int, int]]:
        """The colour of each class by its name."""
        return {shown.name: shown.colour for shown in self.classes}

    def is_empty(self) -> bool:
        """Say whether nothing was done in this tab yet."""
        return not (self.classes or self.segmenter.examples_ or self.drafts or self.queries)


class Sessions:
    """The sessions of all tabs. `begin` makes the segmenter of a new one.

    When there are too many, those that were unused for the longest time are removed.
    """

    def __init__(self, begin: Callable[[], Segmenter], clock: Callable[[], float] = time.monotonic) -> None:
        self._begin, self._clock = begin, clock
        self._kept: OrderedDict[str, Session] = OrderedDict()  # idle longest first
        self._lock = threading.Lock()

    def open(self, token: str | None) -> Session:
        """Return the session with this token, or a new session with a new token if there is none."""
        session = self._use(token)
        if session is not None:
            return session
        session = new_session(self._begin())
        with self._lock:
            session.used = self._clock()
            self._kept[session.token] = session
            while len(self._kept) > MOST_SESSIONS:
                self._kept.popitem(last=False)
        return session

    def find(self, token: str | None) -> Session:
        """Return the session with this token; raise an `EmatError` if it is gone."""
        session = self._use(token)
        if session is None:
            raise EmatError("this page was left for too long and its photos are gone; reload it to begin anew")
        return session

    def _use(self, token: str | None) -> Session | None:
        now = self._clock()
        with self._lock:
            while self._kept and now - next(iter(self._kept.values())).used > IDLE_HOURS * 3600:
                self._kept.popitem(last=False)
            session = self._kept.get(token) if token else None
            if session is not None:
                session.used = now
                self._kept.move_to_end(session.token)
            return session


def new_session(segmenter: Segmenter) -> Session:
    """Make a session with the classes and examples of `segmenter`."""
    classes = [StudioClass(name, number) for number, name in enumerate(segmenter.classes_, start=1)]
    return Session(secrets.token_urlsafe(24), segmenter, classes, brush=classes[0].name if classes else None)


class SharedMethods:
    """Makes the segmenters of tabs, which share methods and the features of photos. `start` is for new tabs."""

    def __init__(self, start: Segmenter) -> None:
        self._caches: OrderedDict[str, FeatureCache] = OrderedDict()
        self._lock = threading.Lock()
        self._start = self._sharing(start)

    def begin(self) -> Segmenter:
        """Return a segmenter for a new tab."""
        return self._start.copy()

    def open_file(self, path: Path) -> Segmenter:
        """Load the fitted file that was dropped on the page; no weights are downloaded for it."""
        try:
            _refuse_absent(read_fitted(path).head.backbone, path.name)
            return self._sharing(Segmenter.load(path, device=self._start.device))
        except EmatError as error:
            raise EmatError(str(error).replace(str(path), path.name)) from None

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
