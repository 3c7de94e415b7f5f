"""Masks from anywhere, to be measured: a folder of mask images, or a COCO file.

A mask image belongs to the photo of the same name; endings that other programs add, such as `_cp_masks`, are allowed.
Its values are class indices, named by `classes.txt`, or numbers of single objects. Which of both cannot be seen, so it
has to be said where there is no `classes.txt`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emat.errors import EmatError
from emat.files import without_suffix
from emat.formats.class_names import read_class_names
from emat.formats.coco import CocoInstances, read_coco
from emat.formats.drawing import Drawing
from emat.images import MASK_SUFFIXES, Pixels, read_object_mask
from emat.images.sources import MASK_FORMATS, MAX_PIXELS, load_image
from emat.measure.scene import Scene, no_objects, numbered

MEANINGS = ("classes", "objects")
ENDINGS = ("", "_mask", "_masks", "_cp_masks", "_label", "_labels", "_seg")
OBJECT = "object"  # the class of objects that have no name


class MaskFiles:
    """The masks of photos.

    Args:
        path: A folder of mask images, or a COCO file.
        meaning: What the values of mask images are: "classes" or "objects"; by default "classes" if there is a
            classes.txt in the folder or in the one around it.

    Raises:
        EmatError: There is nothing at the path, or what is there is not masks.
    """

    def __init__(self, path: Path, meaning: str | None = None) -> None:
        if meaning not in (None, *MEANINGS):
            raise EmatError("unknown-choice", f"--mask-values is {meaning!r}; it must be {' or '.join(MEANINGS)}")
        self.path = path
        self._shared: dict[str, tuple[str, str]] = {}
        self._coco: CocoInstances | None = None
        self.classes: tuple[str, ...]
        if path.is_file() and path.suffix.lower() == ".json":
            self._coco = read_coco(path)
            self.classes = self._coco.classes
            return
        if not path.is_dir():
            raise EmatError("wrong-file-kind", f"{path} is neither a folder of masks nor a COCO file; check the name")
        listed = next((file for file in (path / "classes.txt", path.parent / "classes.txt") if file.is_file()), None)
        if meaning == "classes" and listed is None:
            raise EmatError(
                "no-classes", f"{path} has no classes.txt; write the names of the classes into it, one on each line"
            )
        self.meaning = meaning or ("classes" if listed else None)
        self.classes = read_class_names(listed) if listed and self.meaning == "classes" else (OBJECT,)
        self._found: dict[str, Path] = {}
        self._further: dict[str, Path] = {}  # of two masks of the same name, the second
        for file in sorted(path.rglob("*")):
            if file.suffix.lower() in MASK_SUFFIXES and file.is_file():
                stem = without_suffix(file.relative_to(path).as_posix())
                (self._further if stem in self._found else self._found)[stem] = file

    def belong_to(self, names: Sequence[str]) -> None:
        """Say which photos there are. A mask may lack the folders of its photo's name, so two photos may find the same.

        That mask then belongs to the photo whose whole name it has; for the other photos it counts as ambiguous.
        """
        takers: defaultdict[str, list[str]] = defaultdict(list)
        for name in dict.fromkeys(names):
            with suppress(EmatError):  # which is said when the photo is measured
                takers[self._found_for(name)].append(name)
        for mask, sharing in takers.items():
            owner = next((name for name in sharing if mask in (name, without_suffix(name))), None)
            for name in sharing if len(sharing) > 1 else ():
                if name != owner:
                    self._shared[name] = (mask, next(other for other in sharing if other != name))

    def _found_for(self, name: str) -> str:
        """The name of a photo's mask without its suffix, or its file name in the COCO file."""
        if self._coco is not None:
            return self._drawing_of(self._coco, name).photo
        return without_suffix(self.file_of(name).relative_to(self.path).as_posix())

    def _refuse_shared(self, name: str) -> None:
        """Raise an EmatError if another photo has the same mask."""
        if name in self._shared:
            mask, other = self._shared[name]
            raise EmatError(
                "ambiguous-mask",
                f"{mask} in {self.path} would be the mask of {name} and of {other}; put the masks into the same "
                "folders as the photos",
            )

    def scene(self, name: str, photo: Pixels, touching: str) -> Scene:
        """Return the scene of a photo.

        Args:
            name: The photo's name.
            photo: Its pixels (H, W, 3).
            touching: Whether objects of a label map that touch are taken apart, "split", or not, "together".

        Raises:
            EmatError: The photo has no mask, or its mask cannot be read or has another size.
        """
        if self._coco is not None:
            return self._from_coco(self._coco, name, photo)
        file = self.file_of(name)
        if self.meaning is None:
            return self._of_one_class(file, name, photo, touching)
        values = _values(file)
        if self.meaning == "objects":
            return Scene.of_label_image(photo, values, OBJECT, name, file.name)
        return Scene.of_label_map(photo, values, self.classes, name, source=file.name, touching=touching)

    def region(self, name: str) -> NDArray[np.bool_]:
        """Return the mask (H, W) of a photo in a folder, whatever colour its object has.

        Raises:
            EmatError: There is none, or it cannot be read.
        """
        return read_object_mask(self.file_of(name))

    def file_of(self, name: str) -> Path:
        """Return the mask image of a photo; EmatError if there is none, or two that differ only in their suffix."""
        self._refuse_shared(name)
        stem = without_suffix(name)
        stems = [stem, stem.rpartition("/")[2]]
        stems += [candidate.removesuffix(".ome") for candidate in stems if candidate.endswith(".ome")]
        for candidate in stems:
            for ending in ENDINGS:
                if (file := self._found.get(f"{candidate}{ending}")) is None:
                    continue
                if (other := self._further.get(f"{candidate}{ending}")) is not None:
                    raise EmatError(
                        "ambiguous-mask", f"{file} and {other} are both masks of {name}; remove one of them"
                    )
                return file
        raise EmatError("no-such-mask", f"{self.path} has no mask for {name}; its name would be {stem}.png")

    def _of_one_class(self, file: Path, name: str, photo: Pixels, touching: str) -> Scene:
        """A mask of which nobody said what its values are; only one with a single value or colour beside 0 is clear."""
        inside = read_object_mask(file)
        values = np.asarray(load_image(file, MASK_FORMATS, MAX_PIXELS, str(file)))
        kinds = np.unique(values[values > 0]) if values.ndim == 2 else values[:0]
        if len(kinds) > 1 and inside[values == kinds[0]].any():  # else these are the smooth edges of black and white
            raise EmatError(
                "ambiguous-mask",
                f"{file} has {len(kinds)} values, and nothing says whether they are classes or single objects; add "
                "--mask-values classes or --mask-values objects, or a classes.txt",
            )
        return Scene.of_label_map(photo, inside.astype(np.uint8), (OBJECT,), name, source=file.name, touching=touching)

    def _from_coco(self, coco: CocoInstances, name: str, photo: Pixels) -> Scene:
        drawing = self._drawing_of(coco, name)
        if (drawing.height, drawing.width) != photo.shape[:2]:
            raise EmatError(
                "mask-size", f"{self.path} gives {name} another size than the photo has; save both at the same size"
            )
        size = photo.shape[:2]
        drawn = list(enumerate((shape for shape in drawing.objects if not shape.crowd), start=1))
        classes = dict.fromkeys(shape.class_name for _, shape in drawn)
        labels = {class_name: np.zeros(size, np.int32) for class_name in classes}
        covered = np.zeros(size, np.int32)
        areas = {number: int(drawing.filled(one).sum()) for number, one in drawn}
        for number, one in sorted(drawn, key=lambda item: -areas[item[0]]):  # what lies on an object must not vanish
            inside = drawing.filled(one)
            labels[one.class_name][inside] = number
            covered += inside
        overlap = {class_name for class_name in labels if ((labels[class_name] > 0) & (covered > 1)).any()}
        below = max(overlap, key=lambda class_name: int((labels[class_name] > 0).sum()), default=None)
        overlapping = frozenset(() if below is None else (below,))
        every = {class_name: labels.get(class_name, no_objects(size)) for class_name in self.classes}
        return Scene(name, photo, numbered(every), dict.fromkeys(every, self.path.name), overlapping)

    def _drawing_of(self, coco: CocoInstances, name: str) -> Drawing:
        self._refuse_shared(name)
        drawing = coco.drawings.get(name) or coco.drawings.get(name.rpartition("/")[2])
        if drawing is None:
            raise EmatError("no-such-photo", f"{self.path} has no photo {name}; check the file names in it")
        return drawing


def _values(file: Path) -> NDArray[np.int32]:
    image = load_image(file, MASK_FORMATS, MAX_PIXELS, str(file))
    values = np.asarray(image)
    if values.ndim != 2 or values.dtype.kind not in "bui":
        raise EmatError(
            "mask-colours", f"{file} is in colours or fractions; save the mask as an indexed or grey PNG or TIFF"
        )
    if values.min() < 0:
        raise EmatError(
            "mask-colours", f"{file} has the value {values.min()}, but classes and objects count from 0; save it again"
        )
    return values.astype(np.int32)
