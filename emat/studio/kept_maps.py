"""The probability maps of predictions, kept as files: those of hundreds of photos would fill the memory."""

import shutil
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emat.files import whole_file
from emat.inference.prediction import Prediction

RECENT = 6  # predictions that stay in memory, for sliders that are being moved


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
