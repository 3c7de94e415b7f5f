"""What buttons and clicks do. Each button has a name, and takes the session and the values that the page sent."""

import ctypes
import gc
import shutil
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from emat.backbone.mobilesam import find_mobilesam
from emat.errors import EmatError
from emat.inference.example import Mask
from emat.refine.click import Clicker
from emat.studio import dropped, examples, history, stacks
from emat.studio.photos import Paint, StudioPhoto, safe_name
from emat.studio.proposals import Proposals, propose
from emat.studio.session import Session
from emat.studio.sessions import Sessions
from emat.studio.words import page_sentence
from emat.weights import MOBILESAM, fetch_weights, is_offline

MOST_ENCODED = 16  # photos, of about 4 MB each
ABSENT = "Clicking needs MobileSAM, a network of 41 MB that is not on this machine yet"
MOST_IN_A_DROP = 500  # files

Values = Mapping[str, Any]


class Clicks:
    """Answers clicks on the photos of all tabs. MobileSAM is loaded when the first photo is encoded."""

    def __init__(self) -> None:
        self._work = ThreadPoolExecutor(1, thread_name_prefix="emat studio clicks")
        self._clickers: OrderedDict[str, Future[Clicker]] = OrderedDict()  # by the file of the photo
        self._lock = threading.Lock()

    def available(self) -> bool:
        """Whether MobileSAM's weights are on this machine."""
        return find_mobilesam() is not None

    def prepare(self, photo: StudioPhoto) -> None:
        """Encode a photo in the background, unless that was begun already."""
        if self.available():
            self._clicker(photo)

    def is_ready(self, photo: StudioPhoto) -> bool:
        """Whether a click on the photo is answered at once."""
        clicker = self._clickers.get(str(photo.file))
        return clicker is not None and clicker.done()

    def mask(
        self,
        photo: StudioPhoto,
        points: Sequence[tuple[float, float]],
        labels: Sequence[int],
        box: tuple[float, float, float, float] | None,
    ) -> Mask:
        """Return the mask (h, w) of the object that was clicked, at the photo's working size.

        Raises:
            EmatError: The weights are not here, or a point lies outside the photo.
        """
        clicker = self.clicker(photo)
        if clicker is None:
            raise EmatError("weights-missing", f"{ABSENT}; reload the page")
        return clicker.mask(points, labels, box)

    def clicker(self, photo: StudioPhoto) -> Clicker | None:
        """Return what answers clicks on a photo; None if the weights are not here."""
        return self._clicker(photo).result() if self.available() else None

    def forget(self) -> None:
        """Free the memory of all encodings; photos are encoded again when they are clicked."""
        with self._lock:
            self._clickers.clear()

    def close(self) -> None:
        """End the work in the background."""
        self._work.shutdown(wait=False, cancel_futures=True)

    def _clicker(self, photo: StudioPhoto) -> "Future[Clicker]":
        with self._lock:
            clicker = self._clickers.pop(str(photo.file), None)
            if clicker is None or clicker.cancelled():
                clicker = self._work.submit(lambda: Clicker(photo.pixels))
            self._clickers[str(photo.file)] = clicker
            while len(self._clickers) > MOST_ENCODED:
                self._clickers.popitem(last=False)[1].cancel()
            return clicker


@dataclass
class Download:
    """The download of MobileSAM's weights, which any tab may begin."""

    done: int = 0  # bytes
    total: int | None = None
    problem: str = ""
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, unless it goes on already."""
        if self._thread is None or not self._thread.is_alive():
            self.done, self.total, self.problem = 0, None, ""
            self._thread = threading.Thread(target=self._run, name="emat studio download", daemon=True)
            self._thread.start()

    def state(self) -> dict[str, Any]:
        """How far it is, as the page shows it."""
        return {
            "canClick": find_mobilesam() is not None,
            "canFetch": not is_offline(),
            "whyNoClicks": f"{ABSENT}, and the network is turned off" if is_offline() else ABSENT,
            "runs": self._thread is not None and self._thread.is_alive(),
            "done": self.done,
            "total": self.total,
            "problem": self.problem,
        }

    def _run(self) -> None:
        try:
            fetch_weights(MOBILESAM, self._note)
        except EmatError as error:
            self.problem = page_sentence(error)

    def _note(self, done: int, total: int | None) -> None:
        self.done, self.total = done, total


@dataclass(frozen=True)
class Action:
    """Something that a button does."""

    run: "Callable[[Studio, Session, Values], dict[str, Any] | None]"  # what it returns is sent beside the new state
    searches: bool = False  # whether photos have to be looked at afterwards


class Studio:
    """What all tabs share: the sessions and the answers to clicks."""

    def __init__(self, sessions: Sessions, clicks: Clicks) -> None:
        self.sessions, self.clicks, self.download = sessions, clicks, Download()

    def act(self, session: Session, name: str, values: Values) -> dict[str, Any]:
        """Do what a button says, and save the session.

        Raises:
            EmatError: There is no such button, or it cannot do this now.
        """
        act = ACTIONS.get(name)
        if act is None:
            raise EmatError("page-outdated", "this button is not known; reload the page")
        answer = act.run(self, session, values) or {}
        if act.searches:
            self.sessions.search(session).start()
        self.sessions.save(session)
        return answer

    def upload(self, session: Session, data: bytes, name: str, to: str) -> None:
        """Take a file that was uploaded. Files for step 2 wait in the tray until the whole drop is there."""
        if to in ("photos", "examples") and stacks.take_stack(session, data, name, to):
            pass  # the page asks which of its planes are wanted
        elif to == "photos":
            examples.add_photo(session, data, name)
            self.sessions.search(session).look_at_new()
        elif to == "examples":
            self._put_into_tray(session, data, name)
        elif to == "fitted":
            self._open_fitted(session, data, name)
        else:
            raise EmatError("page-outdated", "a file goes to examples, photos or fitted; reload the page")
        self.sessions.save_soon(session)

    def start_over(self, session: Session) -> None:
        """Empty a session and give its memory back to the machine."""
        self.sessions.search(session).stop()
        session.empty(self.sessions.methods.begin())
        self.sessions.methods.forget_features()
        self.clicks.forget()
        gc.collect()
        if sys.platform == "linux":
            # The C library keeps freed memory for later; other libraries than glibc have no such function.
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)

    def sort_drop(self, session: Session) -> dict[str, Any]:
        """Make examples and drafts of the files in the tray."""
        tray = session.folder / "tray"
        files = sorted(tray.glob("*/*"), key=lambda path: int(path.parent.name)) if tray.is_dir() else []
        before = len(session.drafts)
        try:
            problems = dropped.sort_drop(session, [(path.name, path) for path in files])
        finally:
            shutil.rmtree(tray, ignore_errors=True)
        for draft in list(session.drafts.values())[before:]:
            self.clicks.prepare(draft.photo)
        return {"problems": problems}

    def open_stack(self, session: Session, values: Values) -> None:
        """Make photos of the planes of a stack that the page chose, and look at each as soon as it is there."""
        stack = stacks.find_stack(session, whole(values, "key"))
        for added in examples.add_planes(session, stack, choice_of(values)):
            if stack.to == "examples":
                self.clicks.prepare(added.photo)
            else:
                self.sessions.search(session).look_at_new()
        stacks.leave_stack(session, stack.key)

    def similar(self, session: Session, photo: StudioPhoto, paint: Paint, masks: Paint | None) -> Proposals:
        """Propose the objects of a photo that look like what is painted on it and on the examples.

        Args:
            session: Whose examples they are.
            photo: The photo.
            paint: (h, w), what is painted on it.
            masks: (h, w), those that lie below the paint, if a result is corrected.
        """
        taken = (paint if masks is None else np.where(paint == 0, masks, paint)) > 0
        return propose(session.segmenter, photo, paint, session.numbers, taken, self.clicks.clicker(photo))

    def _put_into_tray(self, session: Session, data: bytes, name: str) -> None:
        tray = session.folder / "tray"
        key = session.new_key()
        if tray.is_dir() and len(list(tray.iterdir())) >= MOST_IN_A_DROP:
            raise EmatError("too-many-photos", f"a drop has at most {MOST_IN_A_DROP} files; drop the others afterwards")
        (tray / str(key)).mkdir(parents=True)
        (tray / str(key) / safe_name(name)).write_bytes(data)

    def _open_fitted(self, session: Session, data: bytes, name: str) -> None:
        file = session.folder / "opened" / safe_name(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            file.write_bytes(data)
            examples.take_over(session, self.sessions.methods.open_file(file))
        finally:
            shutil.rmtree(file.parent, ignore_errors=True)
        self.sessions.search(session).start()


def _edit(studio: Studio, session: Session, values: Values) -> dict[str, Any]:
    draft = examples.edit_example(session, whole(values, "index"))
    studio.clicks.prepare(draft.photo)
    return {"draft": draft.key}


ACTIONS: dict[str, Action] = {
    "add-classes": Action(lambda _, session, values: examples.add_classes(session, text(values, "text"))),
    "remove-class": Action(lambda _, session, values: examples.remove_class(session, whole(values, "number"))),
    "open-stack": Action(lambda studio, session, values: studio.open_stack(session, values)),
    "leave-stack": Action(lambda _, session, values: stacks.leave_stack(session, whole(values, "key"))),
    "remove-stack": Action(lambda _, session, values: examples.remove_stack(session, whole(values, "stack"))),
    "sort-drop": Action(lambda studio, session, _: studio.sort_drop(session), searches=True),
    "sparse": Action(
        lambda _, session, values: examples.set_sparse(session, whole(values, "key"), values.get("value") is True)
    ),
    "skip-draft": Action(lambda _, session, values: examples.skip_draft(session, whole(values, "key"))),
    "negative": Action(lambda _, session, values: examples.add_negative(session, whole(values, "key")), searches=True),
    "edit-example": Action(_edit),
    "remove-example": Action(
        lambda _, session, values: examples.remove_example(session, whole(values, "index")), searches=True
    ),
    "move-example": Action(
        lambda _, session, values: examples.move_example(session, whole(values, "index"), whole(values, "by")),
        searches=True,
    ),
    "rename-class": Action(
        lambda _, session, values: examples.rename_class(session, whole(values, "number"), text(values, "text"))
    ),
    "not-this": Action(
        lambda _, session, values: {
            "name": examples.reject_object(session, whole(values, "key"), number(values, "x"), number(values, "y"))
        },
        searches=True,
    ),
    "none-here": Action(lambda _, session, values: examples.none_here(session, whole(values, "key")), searches=True),
    "step-back": Action(lambda _, session, __: history.step_back(session), searches=True),
    "keep": Action(lambda _, session, __: history.keep(session)),
    "remove-photo": Action(lambda _, session, values: examples.remove_photo(session, whole(values, "key"))),
    "threshold": Action(
        lambda _, session, values: examples.set_threshold(session, whole(values, "number"), number(values, "value"))
    ),
    "fetch-mobilesam": Action(lambda studio, _, __: studio.download.start()),
    "crisp": Action(lambda _, session, values: examples.set_crisp(session, values.get("value") is True), searches=True),
    "demo": Action(lambda _, session, __: examples.start_demo(session), searches=True),
    "stop": Action(lambda studio, session, _: studio.sessions.search(session).stop()),
    "continue": Action(lambda *_: None, searches=True),
    # It stops the search, which must begin again for what is dropped next.
    "start-over": Action(lambda studio, session, _: studio.start_over(session), searches=True),
}


def choice_of(values: Values) -> stacks.Choice:
    """Return which planes of a stack the page chose."""
    channels = values.get("channels", [])
    if not isinstance(channels, list) or not all(isinstance(channel, str) for channel in channels):
        raise EmatError("page-outdated", "the page sent channels that are no texts; reload it")
    depth = None if values.get("depth") is None else whole(values, "depth")
    first, last, every = (whole(values, name) for name in ("first", "last", "every"))
    return stacks.Choice(first, last, every, text(values, "project"), depth, tuple(channels))


def text(values: Values, name: str) -> str:
    """Return a text that the page sent."""
    value = values.get(name)
    if not isinstance(value, str):
        raise EmatError("page-outdated", "the page sent a value that is not a text; reload it")
    return value


def number(values: Values, name: str) -> float:
    """Return a number that the page sent."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e9 < value < 1e9:
        raise EmatError("page-outdated", "the page sent a value that is not a number; reload it")
    return float(value)


def whole(values: Values, name: str) -> int:
    """Return a whole number that the page sent."""
    return int(number(values, name))
