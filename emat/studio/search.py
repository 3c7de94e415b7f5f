"""The search through the photos of a session, in a thread of its own: learn, forecast, predict, refine."""

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.inference.postprocessing import likely_classes
from emat.inference.prediction import Prediction
from emat.studio.masks import note_drawn
from emat.studio.session import Session, StudioQuery
from emat.studio.uncertainty import uncertainty, unsure_place


class Search:
    """Keeps the predictions of a session up to date.

    Args:
        session: Whose photos are predicted.
        kept: Called when the search has come to an end, to save the session.
    """

    def __init__(self, session: Session, kept: Callable[[], None] = lambda: None) -> None:
        self.session, self._kept = session, kept
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._again = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin, or note that there is more to do if it is running already."""
        with self._lock:
            self._stop.clear()
            self._again = True
            if self._thread is None:
                learns = self.session.forecast_version != self.session.version
                # At once, so that whoever asks for the state now knows to ask again.
                self._say("learning" if learns else "looking", 0, 0)
                self._thread = threading.Thread(target=self._run, name="emat studio search", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End after the photo that is being looked at; photos that come later wait too, until `start` continues."""
        with self._lock:
            self._stop.set()
            if self._thread is None:  # between two photos that are being sent
                with self.session.lock:
                    self.session.search.phase = "stopped"
                    self.session.changed_progress()

    def look_at_new(self) -> None:
        """Begin because there is a further photo, unless the user has stopped the search."""
        if not self._stop.is_set():
            self.start()

    def wait(self) -> None:
        """Return when nothing is left to do or it was stopped."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._again:
                    self._thread = None
                    break
                self._again = False
            self._pass()
        self._kept()

    def _pass(self) -> None:
        """Predict every photo that has no prediction from the present examples."""
        session = self.session
        try:
            phase = self._predict_all()
            problem = ""
        except EmatError as error:
            phase, problem = "idle", str(error)
        with session.lock:
            session.search.phase, session.search.problem = phase, problem
            session.changed_progress()

    def _predict_all(self) -> str:
        session = self.session
        with session.lock:
            version, segmenter = session.version, session.segmenter
            stale = [query for query in session.queries.values() if query.version != version]
        if not segmenter.classes_:
            for query in stale:
                query.scores, query.version = None, version
                session.changed_photo(query)
            return "idle"
        if session.forecast_version != version:
            self._say("learning", 0, len(stale))
            forecast = segmenter.forecast_  # learns, if the method does
            with session.lock:
                if session.version == version:
                    session.forecast, session.forecast_version = forecast, version
        for done, query in enumerate(stale):
            if self._stop.is_set():
                return "stopped"
            if session.version != version:
                return "looking"  # the examples changed; whoever changed them has started the search again
            self._say("looking", done, len(stale))
            if query.key in session.queries:
                self._predict(query, version)
        return self._refine_all(version)

    def _refine_all(self, version: int) -> str:
        """Refine the masks of all photos, which takes longer than finding them; so this comes last."""
        session = self.session
        with session.lock:
            coarse = [query for query in session.queries.values() if session.is_waiting(query)]
        for done, query in enumerate(coarse):
            if self._stop.is_set():
                break
            if session.version != version or self._again:
                return "looking"  # a photo that has no masks yet comes before one whose masks are coarse
            self._say("refining", done, len(coarse))
            if query.key in session.queries and session.is_waiting(query):
                self._refine(query, version)
        return "stopped" if self._stop.is_set() else "idle"  # photos that are still being sent wait then

    def _refine(self, query: StudioQuery, version: int) -> None:
        session = self.session
        prediction = session.prediction(query, query.photo.whole, crisp=False, moved=False).refined()
        with session.lock:
            if session.version != version or query.key not in session.queries:
                return
            session.maps.write(query.key, prediction, crisp=True)
            query.changes += 1
            query.crisp_peaks = peaks(prediction)
            note_drawn(session, query)
            session.changed_photo(query)

    def _predict(self, query: StudioQuery, version: int) -> None:
        session = self.session
        prediction = session.segmenter.predict_unrefined(query.photo.whole)
        with session.lock:
            if session.version != version or query.key not in session.queries:
                return
            session.maps.remove(query.key)
            session.maps.write(query.key, prediction)
            query.scores = {name: float(score) for name, score in prediction.scores.items()}
            query.peaks, query.crisp_peaks, query.shares = peaks(prediction), None, {}
            query.uncertainty, query.rules = uncertainty(prediction), prediction.rules
            query.unsure_at = unsure_place(prediction)
            query.version = version
            query.changes += 1
            note_drawn(session, query)
            session.changed_photo(query)

    def _say(self, phase: str, done: int, count: int) -> None:
        with self.session.lock:
            state = self.session.search
            state.phase, state.done, state.count, state.problem = phase, done, count, ""
            self.session.changed_progress()


def peaks(prediction: Prediction) -> dict[str, float]:
    """The highest probability of each class where it is the likeliest of those that are probably present.

    At a mask threshold above it, the class has no pixel.
    """
    likely = likely_classes(prediction.scores, prediction.rules)
    best: NDArray[np.float32] | None = None
    for name in likely:
        map_ = prediction.maps[name]
        best = map_ if best is None else np.maximum(best, map_)
    highest = {}
    for name, map_ in prediction.maps.items():
        where = map_ if best is None else map_[map_ >= best]
        highest[name] = float(where.max(initial=0.0))
    return highest
