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
        self._recent: OrderedDict[int, Maps] = OrderedDict()
        self._lock = threading.Lock()

    def write(self, key: int, prediction: Prediction) -> None:
        """Keep the maps of a photo's prediction."""
        arrays: dict[str, NDArray[np.generic]] = {"names": np.array(list(prediction.maps), str)}
        for index, (name, map_) in enumerate(prediction.maps.items()):
            arrays[f"map{index}"] = map_.astype(np.float16)
            if name in prediction.objects:
                arrays[f"objects{index}"] = prediction.objects[name]
        with whole_file(self._file(key)) as unfinished, unfinished.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        with self._lock:
            self._recent.pop(key, None)

    def read(self, key: int) -> Maps:
        """Return the maps of a photo; empty ones if none are kept."""
        with self._lock:
            if key in self._recent:
                self._recent.move_to_end(key)
                return self._recent[key]
        maps = self._read(self._file(key))
        with self._lock:
            self._recent[key] = maps
            while len(self._recent) > RECENT:
                self._recent.popitem(last=False)
        return maps

    def remove(self, key: int) -> None:
        """Forget the maps of a photo."""
        with self._lock:
            self._recent.pop(key, None)
        self._file(key).unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget all maps."""
        with self._lock:
            self._recent.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, key: int) -> Path:
        return self.folder / f"{key}.npz"

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
    drawn: tuple[str, ...] = ()  # the classes with a pixel at the thresholds `drawn_at`, which were the session's then
    drawn_at: Mapping[str, float] = field(default_factory=dict)
    uncertainty: float = 0.0  # of the prediction, 0 to 1
    version: int = -1  # of the examples that the prediction comes from
    corrected: tuple[str, ...] | None = None  # the classes that the user painted; what was painted is final
    changes: int = 0  # of prediction or correction; part of the pictures' addresses, so that browsers fetch them anew


@dataclass(eq=False)
class SearchState:
    """How far the search through the photos is."""

    phase: str = "idle"  # "idle", "learning", "looking" or "stopped"
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
    drafts: dict[int, Draft] = field(default_factory=dict)
    queries: dict[int, StudioQuery] = field(default_factory=dict)
    forecast: Mapping[str, Forecast] = field(default_factory=dict)
    forecast_version: int = -1  # of the examples that the forecast is about
    search: SearchState = field(default_factory=SearchState)
    version: int = 0
    revision: int = 0  # counts every change that the page shows
    next_key: int = 1
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    used: float = 0.0
    maps: KeptMaps = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.maps = KeptMaps(self.folder / "maps")

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each class by its name."""
        return {shown.name: shown.number for shown in self.classes}

    def is_empty(self) -> bool:
        """Say whether nothing was done in this tab yet."""
        return not (self.classes or self.segmenter.examples_ or self.drafts or self.queries)

    def changed(self) -> None:
        """Note that the page has something new to show."""
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
            self.classes, self.thresholds = classes_of(segmenter), {}
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
