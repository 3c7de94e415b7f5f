"""The sessions of all tabs, and the methods that they share.

Sessions are opened by their ids, held in memory while they are used, and saved on disk. Tabs whose methods are equal
share one, and the features of photos with it.
"""

import hashlib
import re
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from emat.backbone.registry import find_backbone
from emat.errors import EmatError
from emat.features import FeatureCache
from emat.inference.segmenter import Segmenter
from emat.pixel_learner.learner import PixelLearner
from emat.studio.search import Search
from emat.studio.session import Session, new_session
from emat.studio.session_json import FILE, SavedSession, load_session, save_examples, save_session, saved_sessions
from emat.tensor_files import digest, read_metadata
from emat.weights import find_weights

FEATURE_BYTES = 1 << 30  # of features that are kept in memory for each method
MOST_METHODS = 3  # that are kept for later tabs; a tab keeps the one that it uses
MOST_TABS = 50
IDLE_HOURS = 12  # after which a session that is saved leaves the memory
EMPTY_MINUTES = 10  # after which a tab in which nothing was done makes room for others
SAVE_SECONDS = 2.0  # that may pass before a dropped photo is saved
ID = re.compile(r"[0-9a-f]{16}")


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
        return self._start.copy(examples=False)

    def open_file(self, path: Path) -> Segmenter:
        """Load a fitted file; no weights are downloaded for it."""
        try:
            _refuse_absent(read_metadata(path).get("backbone", ""), path.name)
            return self._sharing(Segmenter.load(path, device=self._start.device, fetch=False))
        except EmatError as error:
            raise EmatError(error.code, str(error).replace(str(path), path.name)) from None

    def forget_features(self) -> None:
        """Free the memory of all features; they are computed again when they are needed."""
        with self._lock:
            for cache in self._caches.values():
                cache.clear()

    def _sharing(self, segmenter: Segmenter) -> Segmenter:
        """Give the segmenter the method and cache of an earlier one if both methods are equal."""
        method = segmenter.method
        key = f"{method.name} {method.preparation} {digest(method.state_dict())}"
        with self._lock:
            if key not in self._caches:
                self._caches[key] = FeatureCache(segmenter.method, memory_bytes=FEATURE_BYTES)
            self._caches.move_to_end(key)
            while len(self._caches) > MOST_METHODS:
                self._caches.popitem(last=False)
            segmenter.cache = self._caches[key]
        segmenter.method = segmenter.cache.method
        if segmenter.learner is not None:
            encoder = segmenter.learner.encoder is not None
            segmenter.learner = PixelLearner.of(segmenter.method, segmenter.learner.thresholds, encoder)
        return segmenter


def _refuse_absent(backbone: str, name: str) -> None:
    spec = find_backbone(backbone or "unknown")
    for part in spec.parts or (spec,):
        if find_weights(part.weights) is None:
            raise EmatError(
                "weights-missing",
                f"{name} was made with the backbone {part.name}, which is not on this machine; "
                f"run `emat weights fetch {part.name}` first",
            )


class NoSession(EmatError):
    """The session that a page asks for is not there."""


class TooManyTabs(EmatError):
    """There is no room for a further tab."""


class Sessions:
    """Opens, finds and saves the sessions of all tabs.

    Nothing that was done is ever dropped to make room: a tab too many is refused.

    Args:
        methods: Makes the segmenters.
        folder: Where sessions keep their files, a folder for each.
        private: Whether nothing is to be saved for later.
        clock: Tells the time in seconds.
    """

    def __init__(
        self, methods: SharedMethods, folder: Path, private: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.methods, self.folder, self.private = methods, folder, private
        self._clock = clock
        self._open: OrderedDict[str, tuple[Session, Search]] = OrderedDict()  # idle longest first
        self._saving: set[str] = set()  # the ids of sessions that will be saved soon
        self._lock = threading.RLock()

    def open(self, id: str | None, owner: str) -> Session:
        """Return the session with this id, from memory or disk, or a new one if the browser has none of that id.

        Raises:
            TooManyTabs: There are as many sessions as there may be.
        """
        with self._lock:
            with suppress(NoSession):
                return self.find(id or "", owner)
            self._make_room()
            if id and self.is_saved(id, owner):
                session = load_session(self.folder / id, self.methods.bare, self.methods.open_file)
            else:
                session = new_session(self.methods.begin(), self.folder, owner)
            session.used = self._clock()
            self._open[session.id] = (session, Search(session, lambda: self._keep(session)))
        self.search(session).start()
        return session

    def find(self, id: str, owner: str) -> Session:
        """Return a session that is open.

        Raises:
            NoSession: There is none of that id, or it belongs to another browser.
        """
        with self._lock:
            session, _ = self._open.get(id, (None, None))
            if session is None or session.owner != owner:
                raise NoSession("session-gone", "this page was left for too long; reload it")
            session.used = self._clock()
            self._open.move_to_end(id)
            return session

    def search(self, session: Session) -> Search:
        """The search through the photos of a session."""
        return self._open[session.id][1]

    def save(self, session: Session, examples: bool = False) -> None:
        """Write a session to disk, unless the studio is private."""
        if self.private or session.id not in self._open:
            return
        version = session.version
        with suppress(EmatError):  # the disk may be full; the work goes on, in memory
            if examples and session.saved_version != version:
                save_examples(session)
                session.saved_version = version
            save_session(session)

    def save_soon(self, session: Session) -> None:
        """Write a session to disk within seconds: hundreds of photos that are dropped at once are saved together."""
        with self._lock:
            if session.id in self._saving:
                return
            self._saving.add(session.id)
        timer = threading.Timer(SAVE_SECONDS, self._save_now, (session,))
        timer.daemon = True
        timer.start()

    def _save_now(self, session: Session) -> None:
        with self._lock:
            self._saving.discard(session.id)
            self.save(session)

    def _keep(self, session: Session) -> None:
        """Save what a search has found. Examples take longer to write than photos; mostly they did not change."""
        if session.saved_version == session.version:
            self.save_soon(session)
        else:
            self.save(session, examples=True)

    def saved(self, owner: str) -> list[SavedSession]:
        """The sessions on disk that belong to a browser."""
        return [] if self.private else saved_sessions(self.folder, owner)

    def is_saved(self, id: str, owner: str) -> bool:
        """Whether a session of this id is on disk and belongs to this browser."""
        return bool(ID.fullmatch(id)) and id in {saved.id for saved in self.saved(owner)}

    def delete(self, id: str, owner: str) -> None:
        """Remove a session from memory and disk."""
        with self._lock:
            session, search = self._open.get(id, (None, None))
            if session is not None and search is not None and session.owner == owner:
                search.stop()
                del self._open[id]
            elif not self.is_saved(id, owner):
                raise NoSession("session-gone", "this session is gone already; reload the page")
            shutil.rmtree(self.folder / id, ignore_errors=True)

    def close(self) -> None:
        """Stop all searches and save all sessions."""
        for _, search in self._open.values():
            search.stop()
        for session, search in list(self._open.values()):
            search.wait()
            self.save(session)

    def _make_room(self) -> None:
        """Let go of sessions that lose nothing by it; EmatError if there is still no room."""
        now = self._clock()
        for id, (session, _) in list(self._open.items()):
            idle = now - session.used
            is_kept = not self.private and (session.folder / FILE).is_file() and session.search.phase == "idle"
            if (is_kept and idle > IDLE_HOURS * 3600) or (session.is_empty() and idle > EMPTY_MINUTES * 60):
                del self._open[id]
        if len(self._open) >= MOST_TABS:
            raise TooManyTabs(
                "too-many-tabs",
                f"{MOST_TABS} tabs of the studio are in use, and a further one could cost one of them its work; "
                "choose Start over in one that you no longer need, or restart the studio",
            )


def owner_of(cookie: str) -> str:
    """What is saved of a browser's cookie: enough to know it again, not enough to use it."""
    return hashlib.sha256(cookie.encode()).hexdigest()
