"""COCO-20i from COCO's own files: photos and instance JSON, of 2014, of 2017, or of anyone's own data set.

Masks are drawn from the annotations when first asked for and kept on disk. `photos/` is `<root>/<split>`,
`<root>/images/<split>` or `<root>/images`. A name is the photo's path as fold lists write it,
`val2014/COCO_val2014_000000000042.jpg`, or the plain file name where all photos lie in one folder.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from emat.datasets.dataset import Dataset, Missing
from emat.datasets.mask_cache import MaskCache
from emat.errors import EmatError
from emat.formats.coco_json import CocoInstances, file_digest, read_coco
from emat.formats.drawing import LabelMap
from emat.images import Pixels, photo_size, read_photo

FILE_NAMES = ("instances_*.json", "*coco*.json", "annotations.json")
DRAWING_RULES = "1"  # part of every kept mask's place: count up when `Drawing.label_map` paints differently


def coco_files(root: Path) -> list[Path]:
    """The instance JSON files of `root`: itself, in `annotations/`, in it, or in the folders below it."""
    if root.is_file():
        return [root] if root.suffix == ".json" else []
    for folders in ([root / "annotations"], [root], sorted(p for p in root.glob("*") if p.is_dir())):
        for pattern in FILE_NAMES:
            files = sorted(file for folder in folders for file in folder.glob(pattern))
            if files:
                return files
    return []


@dataclass(frozen=True)
class CocoSplit:
    """One JSON file, the folder of its photos, and what stands before a photo's file name in its name."""

    file: Path
    photos: Path | None
    prefix: str

    @cached_property
    def instances(self) -> CocoInstances:
        """The parsed file; COCO's own take some ten seconds, so this waits until it is needed."""
        return read_coco(self.file)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return file_digest(self.file)


class CocoDataset(Dataset):
    """Photos and instance JSON; class indices follow the order of category ids, 1 to 80 for COCO."""

    kind = "coco"

    def __init__(self, root: Path, keep_masks_in: Path | None = None) -> None:
        self.root = root
        files = coco_files(root)
        if not files:
            raise EmatError(f"{root} has no instance JSON; COCO keeps it as annotations/instances_val2014.json")
        self.splits = tuple(_split(root, file) for file in files)
        self._cache = MaskCache(keep_masks_in)

    @cached_property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the categories, in order of their ids."""
        first, *others = self.splits
        for other in others:
            if other.instances.classes != first.instances.classes:
                raise EmatError(f"{first.file} and {other.file} list different categories; open each by itself")
        return first.instances.classes

    @cached_property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Of every photo in the JSON files."""
        return tuple(split.prefix + photo for split in self.splits for photo in sorted(split.instances.drawings))

    @property
    def has_photos(self) -> bool:
        """Whether there is a folder of photos."""
        return any(split.photos for split in self.splits)

    def image(self, name: str) -> Pixels:
        """The photo, (H, W, 3) uint8."""
        return read_photo(self.photo_file(name))

    def image_size(self, name: str) -> tuple[int, int]:
        """(H, W) of the photo, from its header."""
        return photo_size(self.photo_file(name))

    def photo_file(self, name: str) -> Path:
        """The photo in the folder of its split."""
        split = self._split_of(name)
        if split.photos is None:
            raise EmatError(f"{self.root} has no photos for {split.file.name}; add {split.prefix}")
        photo = split.photos / name.removeprefix(split.prefix)
        if not photo.is_file():
            raise EmatError(f"{photo} does not exist; add the photo, or remove it from {split.file.name}")
        return photo

    def mask_file(self, name: str) -> Path:
        """The JSON file of its split."""
        return self._split_of(name).file

    def mask(self, name: str) -> LabelMap:
        """Class indices, (H, W): from the cache, or drawn from the annotations and kept."""
        split = self._split_of(name)
        place = f"{split.digest[:16]}-{DRAWING_RULES}/{name}"
        kept = self._cache.read(place)
        if kept is None:
            drawing = split.instances.drawings.get(name.removeprefix(split.prefix))
            if drawing is None:
                raise self.unknown(name)
            kept = drawing.label_map(split.instances.classes)
            self._cache.write(place, kept)
        return kept

    def missing(self) -> Iterator[Missing]:
        """Photos that the annotations name and the folder lacks."""
        for split in self.splits if self.has_photos else ():
            for photo in sorted(split.instances.drawings):
                if split.photos is None or not (split.photos / photo).is_file():
                    yield Missing("photo", split.prefix + photo)

    def _split_of(self, name: str) -> CocoSplit:
        possible = [split for split in self.splits if name.startswith(split.prefix)]
        if len(possible) > 1:  # several JSON files over one folder of photos
            possible = [split for split in possible if name.removeprefix(split.prefix) in split.instances.drawings]
        if not possible:
            raise self.unknown(name)
        return possible[0]


def _split(root: Path, file: Path) -> CocoSplit:
    if root.is_file():
        root = file.parent.parent if file.parent.name == "annotations" else file.parent
    name = file.stem.removeprefix("instances_") if file.stem.startswith("instances_") else ""
    if name:
        for photos in (root / name, root / "images" / name):
            if photos.is_dir():
                return CocoSplit(file, photos, f"{name}/")
    if (root / "images").is_dir():
        return CocoSplit(file, root / "images", "")
    if name:
        return CocoSplit(file, None, f"{name}/")
    return CocoSplit(file, file.parent, "" if file.parent == root else f"{file.parent.name}/")
