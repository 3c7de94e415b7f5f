"""What belongs to one tab of the browser. Photos, paint and probability maps are files in the session's folder."""

import os
import secrets
import shutil
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emat.images import Pixels
from emat.inference.example_set import Thumbnail
from emat.inference.forecast import Forecast
from emat.inference.postprocessing import STEPS, ClassMaps, ClassRules
from emat.inference.prediction import Prediction
from emat.inference.segmenter import Segmenter
from emat.methods.base import Thresholds
from emat.outputs import whole_file
from emat.pictures.palette import COLOURS, colour_of
from emat.studio.photos import Paint, StudioPhoto, png_of, read_paint

RECENT = 6  # predictions that stay in memory, for sliders that are being moved
MOST_CLASSES = len(COLOURS)  # each has a colour of its own
MOST_PHOTOS = 1000
MOST_DRAFTS = 200


class KeptMaps:
    """Probability maps by the keys of photos, in `folder`, exactly as they were predicted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._recent: OrderedDict[Path, ClassMaps] = OrderedDict()
        self._lock = threading.Lock()

    def write(self, key: int, prediction: Prediction, crisp: bool = False) -> None:
        """Keep the maps of a photo's prediction, or of the same prediction after refinement."""
        arrays: dict[str, NDArray[np.generic]] = {"names": np.array(list(prediction.maps), str)}
        for index, (name, map_) in enumerate(prediction.maps.items()):
            arrays[f"map{index}"] = np.rint(map_.astype(np.float64) * STEPS).astype(np.uint16)
            if name in prediction.objects:
                arrays[f"objects{index}"] = prediction.objects[name]
        file = self._file(key, crisp)
        with whole_file(file) as unfinished, unfinished.open("wb") as written:
            np.savez_compressed(written, **arrays)  # type: ignore[arg-type]
        with self._lock:
            self._recent.pop(file, None)

    def read(self, key: int, crisp: bool = False) -> ClassMaps:
        """Return the maps of a photo, refined ones if asked for and there are any; empty ones if none are kept."""
        file = self._file(key, crisp)
        if crisp and not file.is_file():  # refinement left everything as it was
            file = self._file(key)
        with self._lock:
            if file in self._recent:
                self._recent.move_to_end(file)
                return self._recent[file]
        maps = self._read(file)
        with self._lock:
            self._recent[file] = maps
            while len(self._recent) > RECENT:
                self._recent.popitem(last=False)
        return maps

    def remove(self, key: int) -> None:
        """Forget the maps of a photo."""
        for file in (self._file(key), self._file(key, crisp=True)):
            with self._lock:
                self._recent.pop(file, None)
            file.unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget all maps."""
        with self._lock:
            self._recent.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def rename(self, name: str, to: str) -> None:
        """Give a class another name in all maps."""
        for file in self.folder.glob("*.npz"):
            with np.load(file, allow_pickle=False) as kept:
                arrays = {key: kept[key] for key in kept.files}
            arrays["names"] = np.array([to if old == name else str(old) for old in arrays["names"]], str)
            with whole_file(file) as unfinished, unfinished.open("wb") as written:
                np.savez_compressed(written, **arrays)
        with self._lock:
            self._recent.clear()

    def keep_in(self, folder: Path) -> None:
        """Keep all maps as they are now in another folder, in place of what is there. It takes no room on the disk."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in self.folder.glob("*.npz"):
            _link(file, folder / file.name)

    def bring_back(self, folder: Path) -> None:
        """Take over the maps that `keep_in` kept; those of photos that came later stay."""
        for file in folder.glob("*.npz"):
            _link(file, self.folder / file.name)
        with self._lock:
            self._recent.clear()

    def _file(self, key: int, crisp: bool = False) -> Path:
        return self.folder / (f"{key}-crisp.npz" if crisp else f"{key}.npz")

    def _read(self, file: Path) -> ClassMaps:
        if not file.is_file():
            return ClassMaps({})
        with np.load(file, allow_pickle=False) as arrays:
            names = [str(name) for name in arrays["names"]]
            maps = {name: _as_map(arrays[f"map{index}"]) for index, name in enumerate(names)}
            objects = {
                name: arrays[f"objects{index}"] for index, name in enumerate(names) if f"objects{index}" in arrays
            }
        return ClassMaps(maps, objects)


def _link(file: Path, target: Path) -> None:
    """Let `target` be the same file. A map is never changed: it is written anew, and the other file stays."""
    with whole_file(target) as unfinished:
        unfinished.unlink(missing_ok=True)
        try:
            os.link(file, unfinished)
        except OSError:  # not every file system has links
            shutil.copyfile(file, unfinished)


def _as_map(kept: NDArray[np.generic]) -> NDArray[np.float32]:
    """A map from the file; earlier versions kept it as float16."""
    return (kept.astype(np.float64) / (STEPS if kept.dtype == np.uint16 else 1)).astype(np.float32)


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
class Draft:
    """A photo that is being painted and is not an example yet."""

    key: int
    photo: StudioPhoto
    sparse: bool = False  # whether only what is painted counts
    edits: Thumbnail | None = None  # the picture of the example that is being edited, by which it is known


@dataclass(frozen=True)
class StackFile:
    """A stack or video about which the page asks."""

    key: int
    to: str  # what its planes become: "photos" or "examples"
    name: str  # as it was dropped
    path: Path
    kind: str  # "video", "stack", or "pages" of a TIFF that does not say what they are
    times: int  # or the number of pages
    depths: int
    channels: tuple[str, ...]  # empty if there is nothing to choose

    def remove(self) -> None:
        """Delete the file."""
        shutil.rmtree(self.path.parent, ignore_errors=True)


@dataclass(eq=False)
class StudioQuery:
    """A photo in which the classes are to be found, with its prediction and its correction."""

    key: int
    photo: StudioPhoto
    scores: Mapping[str, float] | None = None  # None before it was predicted
    peaks: Mapping[str, float] = field(default_factory=dict)  # highest probability of each class, see `search.peaks`
    crisp_peaks: Mapping[str, float] | None = None  # the same after refinement; None before that
    shares: dict[str, dict[str, float]] = field(default_factory=dict)  # of the pixels, by `Session.look_of` and class
    rules: Mapping[str, ClassRules] = field(default_factory=dict)  # of the prediction; those of the file if empty
    uncertainty: float = 0.0  # of the prediction, 0 to 1
    unsure_at: tuple[float, float] | None = None  # (x, y) in shares of the sides: where it is least sure
    version: int = -1  # of the examples that the prediction comes from
    corrected: tuple[str, ...] | None = None  # the classes that the user painted; what was painted is final
    whole: bool = True  # whether a correction says all of the photo, or only what was touched
    revision: int = 0  # of the session, when this photo changed
    changes: int = 0  # of prediction or correction; part of the pictures' addresses, so that browsers fetch them anew
    maps: ClassMaps | None = None  # of a snapshot; those of the session's own photos are on disk

    @property
    def is_painted(self) -> bool:
        """Whether all of it was decided by the user, so that scores mean nothing."""
        return self.corrected is not None and self.whole


@dataclass(eq=False)
class SearchState:
    """How far the search through the photos is."""

    phase: str = "idle"  # "idle", "learning", "looking", "refining" or "stopped"
    done: int = 0
    count: int = 0
    problem: str = ""  # a sentence about what ended it


@dataclass(frozen=True, eq=False)
class Earlier:
    """The examples, and what was found with them, as they were before the last change; see `history`."""

    what: str  # was done since: "b.png was corrected"
    corrected: int | None  # the key of the photo that was corrected, if that was it
    segmenter: Segmenter
    classes: tuple[StudioClass, ...]
    forecast: Mapping[str, Forecast]  # empty if there was no time to make one
    is_current: bool  # whether all had been learnt
    queries: Mapping[int, StudioQuery]
    paint: bytes | None  # on the photo that was corrected
    kept: bool = False  # whether the user has seen what changed and agreed


@dataclass(eq=False)
class Session:
    """The state of one tab. Hold `lock` while you change it; `version` counts the changes of the examples."""

    id: str
    owner: str  # a hash of the cookie of the browser that it belongs to
    folder: Path
    segmenter: Segmenter
    classes: list[StudioClass] = field(default_factory=list)
    thresholds: dict[str, float] = field(default_factory=dict)  # by class, where moved
    crisp: bool = True  # whether masks are refined, as everywhere else; the user may switch it off
    stacks: dict[int, StackFile] = field(default_factory=dict)  # about which the page asks
    drafts: dict[int, Draft] = field(default_factory=dict)
    queries: dict[int, StudioQuery] = field(default_factory=dict)
    forecast: Mapping[str, Forecast] = field(default_factory=dict)
    forecast_version: int = -1  # of the examples that the forecast is about
    search: SearchState = field(default_factory=SearchState)
    earlier: Earlier | None = None  # one step back
    version: int = 0
    revision: int = 0  # counts every change that the page shows
    all_revision: int = 0  # the last one that may have changed every photo
    saved_version: int = -1  # of the examples that are on disk
    next_key: int = 1
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    used: float = 0.0
    # Part of the pictures' addresses: browsers keep pictures, and after a restart changes are counted from 0 again.
    opened: str = field(default_factory=lambda: secrets.token_hex(4))
    maps: KeptMaps = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.maps = KeptMaps(self.folder / "maps")

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each class by its name."""
        return {shown.name: shown.number for shown in self.classes}

    def is_crisp(self, query: StudioQuery) -> bool:
        """Say whether the refined masks of a photo are shown."""
        return self.crisp and query.crisp_peaks is not None

    def snapshot(self, query: StudioQuery) -> StudioQuery:
        """Return a photo as it is at one moment, its maps included.

        Pictures and tables are made from snapshots: the search writes scores and maps one after the other, and whoever
        reads a photo piece by piece meanwhile would get scores of one prediction and maps of another, or none.
        """
        with self.lock:
            if query.maps is not None:
                return query
            maps = self.maps.read(query.key, self.is_crisp(query))
            return replace(query, shares=dict(query.shares), maps=maps)

    def prediction(
        self, query: StudioQuery, photo: Pixels, crisp: bool | None = None, moved: bool = True
    ) -> Prediction:
        """Return the prediction of a photo.

        Args:
            query: The photo, which was predicted.
            photo: Its pixels at the size that masks are wanted at.
            crisp: Whether the refined maps are taken; by default if they are shown. A snapshot has those that are.
            moved: Whether at the thresholds that the user chose, or at those of the segmenter.
        """
        maps = query.maps
        if maps is None:
            maps = self.maps.read(query.key, self.is_crisp(query) if crisp is None else crisp)
        scores = {name: score for name, score in (query.scores or {}).items() if name in maps.maps}
        rules = query.rules or (self.segmenter.rules_ if self.segmenter.classes_ else {})
        predicted = Prediction(photo, scores, maps.maps, rules, maps.objects)
        return predicted.at({name: self.thresholds_of(name) for name in self.thresholds}) if moved else predicted

    def thresholds_of(self, name: str) -> Thresholds:
        """Return the thresholds of a class: the segmenter's own, unless the user moved the slider."""
        usual, moved = self.segmenter.thresholds, self.thresholds.get(name)
        return usual if moved is None else moved_thresholds(usual, moved)

    def look_of(self, query: StudioQuery) -> str:
        """Return a text that is different whenever thresholds or refinement make the photo look different."""
        moved = [f"{self.numbers.get(name, 0)}.{round(value * 100)}" for name, value in self.thresholds.items()]
        return "-".join([*moved, "crisp"] if self.is_crisp(query) else moved)

    def is_waiting(self, query: StudioQuery) -> bool:
        """Say whether a photo is still to be predicted or refined."""
        if query.version != self.version:
            return True
        return self.crisp and query.crisp_peaks is None and query.scores is not None and not query.is_painted

    def is_empty(self) -> bool:
        """Say whether nothing was done in this tab yet."""
        return not (self.classes or self.segmenter.examples_ or self.drafts or self.queries)

    def changed(self) -> None:
        """Note that anything may look different now, every photo included."""
        with self.lock:
            self.revision += 1
            self.all_revision = self.revision

    def changed_photo(self, query: StudioQuery) -> None:
        """Note that one photo looks different now. The page is sent this one alone, or 500 photos would slow it."""
        with self.lock:
            self.revision += 1
            query.revision = self.revision

    def changed_progress(self) -> None:
        """Count a change of the progress that leaves all photos as they are, so that pages ask for the new state."""
        with self.lock:
            self.revision += 1

    def new_key(self) -> int:
        """Return a number that no photo of this session has had."""
        with self.lock:
            self.next_key += 1
            return self.next_key - 1

    def photo_file(self, key: int) -> Path:
        """The file in which a photo is kept."""
        return self.folder / "photos" / f"{key}.png"

    def paint(self, key: int, photo: StudioPhoto) -> Paint:
        """Return the paint on a photo that was kept; nothing painted if none was."""
        file = self.paint_file(key)
        return read_paint(file.read_bytes(), photo) if file.is_file() else np.zeros(photo.working, np.uint8)

    def keep_paint(self, key: int, paint: Paint) -> None:
        """Keep the paint on a photo."""
        with whole_file(self.paint_file(key)) as unfinished:
            unfinished.write_bytes(png_of(paint))

    def found(self, key: int, photo: StudioPhoto) -> Paint | None:
        """Return the masks that the editor began with, if it was opened on this photo."""
        file = self._found_file(key)
        return read_paint(file.read_bytes(), photo) if file.is_file() else None

    def keep_found(self, key: int, masks: Paint) -> None:
        """Keep the masks that the editor begins with: a correction is about these, whatever is found meanwhile."""
        with whole_file(self._found_file(key)) as unfinished:
            unfinished.write_bytes(png_of(masks))

    def forget(self, key: int, photo: StudioPhoto) -> None:
        """Delete the files of a photo."""
        photo.remove()
        self.paint_file(key).unlink(missing_ok=True)
        self._found_file(key).unlink(missing_ok=True)
        self.maps.remove(key)

    def empty(self, segmenter: Segmenter) -> None:
        """Remove everything that was done, from memory and from disk."""
        with self.lock:
            self.segmenter = segmenter
            self.classes, self.thresholds, self.crisp = classes_of(segmenter), {}, True
            self.stacks, self.drafts, self.queries = {}, {}, {}
            self.forecast, self.forecast_version, self.earlier = {}, -1, None
            self.maps.clear()
            self.version += 1
            self.changed()
            shutil.rmtree(self.folder, ignore_errors=True)

    def paint_file(self, key: int) -> Path:
        """The file in which the paint on a photo is kept."""
        return self.folder / "paint" / f"{key}.png"

    def _found_file(self, key: int) -> Path:
        return self.folder / "paint" / f"{key}-found.png"


def moved_thresholds(usual: Thresholds, mask: float) -> Thresholds:
    """Return both thresholds for a slider that sets the mask threshold; the presence threshold moves along with it.

    >>> moved_thresholds(Thresholds(0.5, 0.5), 0.3)
    Thresholds(presence=0.3, mask=0.3)
    """
    if mask <= usual.mask:
        presence = usual.presence * mask / usual.mask if usual.mask else 0.0
    else:
        presence = 1 - (1 - usual.presence) * (1 - mask) / (1 - usual.mask)
    return Thresholds(round(presence, 4), mask)


def new_session(segmenter: Segmenter, folder: Path, owner: str = "") -> Session:
    """Make a session with the classes and examples of `segmenter`, whose files are in a new folder inside `folder`."""
    id = secrets.token_hex(8)
    return Session(id, owner, folder / id, segmenter, classes_of(segmenter))


def classes_of(segmenter: Segmenter) -> list[StudioClass]:
    """The classes of a segmenter, numbered from 1."""
    return [StudioClass(name, number) for number, name in enumerate(segmenter.classes_, start=1)]
