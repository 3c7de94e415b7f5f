"""What one tab of the browser has shown and asked. It lives in memory, found by a random name that the tab keeps."""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from emat.errors import EmatError
from emat.formats.overlay import COLOURS, colour_of
from emat.inference.example import Mask
from emat.inference.prediction import Prediction
from emat.inference.segmenter import Segmenter
from emat.studio.photos import StudioPhoto

MOST_CLASSES = len(COLOURS)  # each has a colour of its own
MOST_PHOTOS = 100
MOST_SESSIONS = 20
IDLE_HOURS = 12


@dataclass(frozen=True)
class StudioClass:
    """A class that was named in the page; its number gives its colour, also when others go."""

    name: str
    number: int

    @property
    def colour(self) -> tuple[int, int, int]:
        """In which it is painted and shown."""
        return colour_of(self.number)


@dataclass(eq=False)
class Question:
    """A photo in which the classes are looked for, and what is known about it."""

    key: int
    photo: StudioPhoto
    prediction: Prediction | None = None
    version: int = -1  # of the examples that the prediction comes from
    corrected: Mapping[str, Mask] | None = None  # (h, w) of each class; what the user painted is final


@dataclass(eq=False)
class Session:
    """One tab. Whoever changes it holds `lock`; `version` counts the changes of examples."""

    token: str
    segmenter: Segmenter
    classes: list[StudioClass] = field(default_factory=list)
    thresholds: dict[str, float] = field(default_factory=dict)  # by class, where moved
    drafts: list[StudioPhoto] = field(default_factory=list)  # example photos to paint; the first is in the editor
    questions: dict[int, Question] = field(default_factory=dict)
    correcting: int | None = None  # the question in the editor
    unfilled: set[str] = field(default_factory=set)  # editors ("draft", "correction") that wait for their photo
    brush: str | None = None  # the class that is painted
    first_shown: int = 0  # the question at the top of the page of cards
    version: int = 0
    next_key: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    used: float = 0.0

    @property
    def colours(self) -> dict[str, tuple[int, int, int]]:
        """The colour of each class."""
        return {shown.name: shown.colour for shown in self.classes}

    def is_empty(self) -> bool:
        """Whether nothing was done yet."""
        return not (self.classes or self.segmenter.examples_ or self.drafts or self.questions)


class Sessions:
    """All tabs; the ones idle longest go when there are too many. `begin` gives a new tab its segmenter."""

    def __init__(self, begin: Callable[[], Segmenter], clock: Callable[[], float] = time.monotonic) -> None:
        self._begin, self._clock = begin, clock
        self._kept: OrderedDict[str, Session] = OrderedDict()  # idle longest first
        self._lock = threading.Lock()

    def open(self, token: str | None) -> Session:
        """The session `token`, or a new one under a name of its own if there is no such."""
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
        """The session `token`; EmatError if it is gone."""
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
    """A session that begins with what `segmenter` knows."""
    classes = [StudioClass(name, number) for number, name in enumerate(segmenter.classes_, start=1)]
    return Session(secrets.token_urlsafe(24), segmenter, classes, brush=classes[0].name if classes else None)
