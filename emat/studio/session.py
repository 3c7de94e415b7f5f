"""What belongs to one tab of the browser. Photos, paint and probability maps are files in the session's folder."""

import secrets
import shutil
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emat.files import whole_file
from emat.inference.forecast import Forecast
from emat.inference.prediction import Prediction
from emat.inference.segmenter import Segmenter
from emat.pictures.palette import COLOURS, colour_of
from emat.refine.mobilesam import find_mobilesam
from emat.studio.photos import Paint, StudioPhoto, png_of, read_paint

RECENT = 6  # predictions that stay in memory, for sliders that are being moved
MOST_CLASSES = len(COLOURS)  # each has a colour of its own
MOST_PHOTOS = 1000
MOST_DRAFTS = 200


@dataclass(frozen=True)
class Maps:
    """What is kept of a prediction beside its scores."""

    probabilities: Mapping[str, NDArray[np.float32]]  # (h, w) of each class
    objects: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)  # (h, w): MobileSAM's objects, from 1


class KeptMaps:
    """Probability maps by the keys of photos, in `folder`.

    Probabilities are kept as float16, a rounding of less than a thousandth.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._recent: OrderedDict[Path, Maps] = OrderedDict()
        self._lock = threading.Lock()

    def write(self, key: int, prediction: Prediction, crisp: bool = False) -> None:
        """Keep the maps of a photo's prediction, or of the same prediction after refinement."""
        arrays: dict[str, NDArray[np.generic]] = {"names": np.array(list(prediction.maps), str)}
        for index, (name, map_) in enumerate(prediction.maps.items()):
            arrays[f"map{index}"] = map_.astype(np.float16)
            if name in prediction.objects:
                arrays[f"objects{index}"] = prediction.objects[name]
        file = self._file(key, crisp)
        with whole_file(file) as unfinished, unfinished.open("wb") as written:
            np.savez_compressed(written, **arrays)  # type: ignore[arg-type]
        with self._lock:
            self._recent.pop(file, None)

    def read(self, key: int, crisp: bool = False) -> Maps:
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

    def _file(self, key: int, crisp: bool = False) -> Path:
        return self.folder / (f"{key}-crisp.npz" if crisp else f"{key}.npz")

    def _read(self, file: Path) -> Maps:
        if not file.is_file():
            return Maps({})
        with np.load(file, allow_pickle=False) as arrays:
            names = [str(name) for name in arrays["names"]]
            maps = {name: arrays[f"map{index}"].astype(np.float32) for index, name in enumerate(names)}
            objects = {
                name: arrays[f"objects{index}"] for index, name in enumerate(names) if f"objects{index}" in arrays
            }
        return Maps(maps, objects)


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


@dataclass(eq=False)
class StudioQuery:
    """A photo in which the classes are to be found, with its prediction and its correction."""

    key: int
    photo: StudioPhoto
    scores: Mapping[str, float] | None = None  # None before it was predicted
    peaks: Mapping[str, float] = field(default_factory=dict)  # highest probability of each class, see `search.peaks`
    crisp_peaks: Mapping[str, float] | None = None  # the same after refinement; None before that
    drawn: dict[str, tuple[str, ...]] = field(default_factory=dict)  # classes with a pixel, by `Session.look_of`
    uncertainty: float = 0.0  # of the prediction, 0 to 1
    version: int = -1  # of the examples that the prediction comes from
    corrected: tuple[str, ...] | None = None  # the classes that the user painted; what was painted is final
    revision: int = 0  # of the session, when this photo changed
    changes: int = 0  # of prediction or correction; part of the pictures' addresses, so that browsers fetch them anew


@dataclass(eq=False)
class SearchState:
    """How far the search through the photos is."""

    phase: str = "idle"  # "idle", "learning", "looking", "refining" or "stopped"
    done: int = 0
    count: int = 0
    problem: str = ""  # a sentence about what ended it


@dataclass(eq=False)
class Session:
    """The state of one tab. Hold `lock` while you change it; `version` counts the changes of the examples."""

    id: str
    owner: str  # a hash of the cookie of the browser that it belongs to
    folder: Path
    segmenter: Segmenter
    classes: list[StudioClass] = field(default_factory=list)
    thresholds: dict[str, float] = field(default_factory=dict)  # by class, where moved
    crisp: bool = True  # whether masks are refined, if MobileSAM is on this machine
    drafts: dict[int, Draft] = field(default_factory=dict)
    queries: dict[int, StudioQuery] = field(default_factory=dict)
    forecast: Mapping[str, Forecast] = field(default_factory=dict)
    forecast_version: int = -1  # of the examples that the forecast is about
    search: SearchState = field(default_factory=SearchState)
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

    @property
    def refines(self) -> bool:
        """Whether masks are refined: the user wants it, and MobileSAM is on this machine."""
        return self.crisp and find_mobilesam() is not None

    def is_crisp(self, query: StudioQuery) -> bool:
        """Say whether the refined masks of a photo are shown."""
        return self.crisp and query.crisp_peaks is not None

    def maps_of(self, query: StudioQuery) -> Maps:
        """Return the maps of a photo that are shown, refined or not."""
        return self.maps.read(query.key, self.is_crisp(query))

    def look_of(self, query: StudioQuery) -> str:
        """Return a text that is different whenever thresholds or refinement make the photo look different."""
        moved = [f"{self.numbers.get(name, 0)}.{round(value * 100)}" for name, value in self.thresholds.items()]
        return "-".join([*moved, "crisp"] if self.is_crisp(query) else moved)

    def is_waiting(self, query: StudioQuery) -> bool:
        """Say whether a photo is still to be predicted or refined."""
        if query.version != self.version:
            return True
        return self.refines and query.crisp_peaks is None and query.scores is not None and query.corrected is None

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
        """Note that something changed, but no photo."""
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
        file = self._paint_file(key)
        return read_paint(file.read_bytes(), photo) if file.is_file() else np.zeros(photo.working, np.uint8)

    def keep_paint(self, key: int, paint: Paint) -> None:
        """Keep the paint on a photo."""
        with whole_file(self._paint_file(key)) as unfinished:
            unfinished.write_bytes(png_of(paint))

    def forget(self, key: int, photo: StudioPhoto) -> None:
        """Delete the files of a photo."""
        photo.remove()
        self._paint_file(key).unlink(missing_ok=True)
        self.maps.remove(key)

    def empty(self, segmenter: Segmenter) -> None:
        """Remove everything that was done, from memory and from disk."""
        with self.lock:
            self.segmenter = segmenter
            self.classes, self.thresholds, self.crisp = classes_of(segmenter), {}, True
            self.drafts, self.queries = {}, {}
            self.forecast, self.forecast_version = {}, -1
            self.maps.clear()
            self.version += 1
            self.changed()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _paint_file(self, key: int) -> Path:
        return self.folder / "paint" / f"{key}.png"


def new_session(segmenter: Segmenter, folder: Path, owner: str = "") -> Session:
    """Make a session with the classes and examples of `segmenter`, whose files are in a new folder inside `folder`."""
    id = secrets.token_hex(8)
    return Session(id, owner, folder / id, segmenter, classes_of(segmenter))


def classes_of(segmenter: Segmenter) -> list[StudioClass]:
    """The classes of a segmenter, numbered from 1."""
    return [StudioClass(name, number) for number, name in enumerate(segmenter.classes_, start=1)]
