"""COCO's own files (photos and instance JSON), and the PNG masks of COCO-20i that were drawn from them.

`CocoDataset` reads photos and instance JSON: those of COCO 2014 and 2017, or any other data set in this format. A mask
is drawn from the annotations when it is first needed, and kept on disk. Photos are in `<root>/<split>`,
`<root>/images/<split>` or `<root>/images`. The name of a photo is its path as in the fold lists,
`val2014/COCO_val2014_000000000042.jpg`, or its file name if all photos are in one folder.

`CocoPngDataset` reads the masks in `annotations/train2014/*.png`, with values 1 to 80. The published results were
obtained with these masks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from emat.datasets.dataset import Dataset, Missing
from emat.datasets.file_tree import FileTree, TreeDataset
from emat.errors import EmatError
from emat.files import emat_home, file_sha256, is_file
from emat.formats.coco import COCO_CLASSES, CocoInstances, read_coco
from emat.formats.drawing import LabelMap
from emat.images import MASK_SUFFIXES, MAX_PIXELS, PHOTO_SUFFIXES, Pixels, photo_size, read_mask, read_photo
from emat.images.sources import load_image
from emat.outputs import whole_file
from emat.progress import tell_first

FILE_NAMES = ("instances_*.json", "*coco*.json", "annotations.json")
DRAWING_RULES = "1"  # part of the path of every kept mask: increase it when `Drawing.label_map` changes


def coco_files(root: Path) -> list[Path]:
    """Find the instance JSON files: `root` itself, or those in `annotations/`, in `root` or in the folders in it."""
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
    """One JSON file, the folder of its photos, and the prefix that turns a photo's file name into its name."""

    file: Path
    photos: Path | None
    prefix: str

    @cached_property
    def instances(self) -> CocoInstances:
        """The content of the file, read when it is first needed, because COCO's files take about ten seconds."""
        return read_coco(self.file)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the file."""
        return file_sha256(self.file)


class CocoDataset(Dataset):
    """Photos and instance JSON. Class indices follow the order of category ids, 1 to 80 for COCO.

    Args:
        root: The folder of the data set, or one JSON file.
        keep_masks_in: The folder for masks that were drawn; `masks` in `emat_home()` if not given.

    Raises:
        EmatError: There is no instance JSON.
    """

    kind = "coco"

    def __init__(self, root: Path, keep_masks_in: Path | None = None) -> None:
        self.root = root
        files = coco_files(root)
        if not files:
            raise EmatError(
                "no-annotations", f"{root} has no instance JSON; COCO keeps it as annotations/instances_val2014.json"
            )
        self.splits = tuple(_split(root, file) for file in files)
        self._cache = MaskCache(keep_masks_in)

    @cached_property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the categories, in the order of their ids."""
        first, *others = self.splits
        for other in others:
            if other.instances.classes != first.instances.classes:
                raise EmatError(
                    "class-lists-differ",
                    f"{first.file} and {other.file} list different categories; open each by itself",
                )
        return first.instances.classes

    @cached_property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of all photos in the JSON files."""
        return tuple(split.prefix + photo for split in self.splits for photo in sorted(split.instances.drawings))

    @property
    def has_photos(self) -> bool:
        """Whether there is a folder of photos."""
        return any(split.photos for split in self.splits)

    def image(self, name: str) -> Pixels:
        """Return the photo, (H, W, 3) uint8."""
        return read_photo(self.photo_file(name), reading=self.reading)

    def image_size(self, name: str) -> tuple[int, int]:
        """Return the height and width of the photo, from its header."""
        return photo_size(self.photo_file(name), reading=self.reading)

    def photo_file(self, name: str) -> Path:
        """Return the path of the photo, in the folder of its split."""
        split = self._split_of(name)
        if split.photos is None:
            raise EmatError("no-photos", f"{self.root} has no photos for {split.file.name}; add {split.prefix}")
        photo = split.photos / name.removeprefix(split.prefix)
        if not is_file(photo):
            raise EmatError(
                "no-such-photo", f"{photo} does not exist; add the photo, or remove it from {split.file.name}"
            )
        return photo

    def mask_file(self, name: str) -> Path:
        """Return the JSON file that the photo is listed in."""
        return self._split_of(name).file

    def mask(self, name: str) -> LabelMap:
        """Return class indices, (H, W): those kept on disk, or new ones drawn from the annotations."""
        split = self._split_of(name)
        path = f"{split.digest[:16]}-{DRAWING_RULES}/{name}"
        kept = self._cache.read(path)
        if kept is None:
            drawing = split.instances.drawings.get(name.removeprefix(split.prefix))
            if drawing is None:
                raise self.unknown(name)
            kept = drawing.label_map(split.instances.classes)
            self._cache.write(path, kept)
        return kept

    def missing(self) -> Iterator[Missing]:
        """Give the photos that are in the annotations but not in the folder."""
        for split in self.splits if self.has_photos else ():
            for photo in sorted(split.instances.drawings):
                if split.photos is None or not is_file(split.photos / photo):
                    yield Missing("photo", split.prefix + photo)

    def _split_of(self, name: str) -> CocoSplit:
        possible = [split for split in self.splits if name.startswith(split.prefix)]
        if len(possible) > 1:  # several JSON files share one folder of photos
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


def has_coco_pngs(tree: FileTree) -> bool:
    """Whether there are folders of PNG masks in `annotations/`."""
    return any(
        folder.startswith("annotations/") and any(name.lower().endswith(MASK_SUFFIXES) for name in names)
        for folder, names in tree.folders.items()
    )


class CocoPngDataset(TreeDataset):
    """Masks in `annotations/<split>/` and photos in `<split>/`; a name is a photo's path, as in the fold lists."""

    kind = "coco"
    classes = COCO_CLASSES

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tree = FileTree(root)
        masks = self._tree.files("annotations", MASK_SUFFIXES, nested=True)
        if not masks:
            raise EmatError("no-masks", f"{root} has no masks; put them into folders such as annotations/val2014/")
        splits = sorted({name.rpartition("/")[0] for name in masks})
        photos = [path for split in splits for path in self._tree.files(split, PHOTO_SUFFIXES).values()]
        self._photos = {path: path for path in photos}
        self._masks = {f"{name}.jpg": path for name, path in masks.items()}
        self.names = tuple(self._masks)

    def mask(self, name: str) -> Pixels:
        """Return class indices, (H, W) uint8."""
        return self._read_mask(name, read_mask)


class MaskCache:
    """Masks that were drawn, kept as PNG files below a folder: `masks` in `emat_home()` if not given.

    A mask whose file is damaged is drawn again. A folder that cannot be written is done without.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder if folder is not None else emat_home() / "masks"

    def read(self, path: str) -> LabelMap | None:
        """Return the mask that was written to `path`, uint8 or uint16; None if there is none."""
        try:
            mask = np.array(load_image(self._path(path), ("PNG",), MAX_PIXELS, path))
        except EmatError:  # it does not exist, or is damaged
            return None
        return mask if mask.ndim == 2 and mask.dtype in (np.uint8, np.uint16) else None

    def write(self, path: str, mask: LabelMap) -> None:
        """Write `mask` to `path`, relative to the folder and without suffix; where that fails, nothing is kept."""
        try:
            with whole_file(self._path(path)) as unfinished:
                Image.fromarray(mask).save(unfinished, "PNG")
        except EmatError as error:
            tell_first("no mask cache", f"drawn masks are not kept: {error}, or set EMAT_HOME")

    def _path(self, path: str) -> Path:
        return self.folder / f"{path}.png"
