"""PASCAL VOC, and anything laid out like it: `JPEGImages`, `SegmentationClassAug` or `SegmentationClass`.

Masks alone, in a folder or a zip, are enough to draw tasks.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from emat.datasets.dataset import Missing
from emat.datasets.file_tree import FileTree
from emat.datasets.tree_dataset import TreeDataset
from emat.errors import EmatError
from emat.formats.class_names import class_names_in
from emat.formats.voc_png import VOC_CLASSES, read_voc_png
from emat.images import MASK_SUFFIXES, PHOTO_SUFFIXES, Pixels

MASK_FOLDERS = ("SegmentationClassAug", "SegmentationClass")  # the augmented one holds all of the other
PHOTO_FOLDER = "JPEGImages"
LISTS_FOLDER = "ImageSets/Segmentation"


def voc_mask_folder(tree: FileTree) -> str | None:
    """The folder of `tree` with VOC's masks, if there is one; `SegmentationClassAug` is preferred."""
    for name in MASK_FOLDERS:
        for folder in tree.folders:
            if PurePosixPath(folder).name == name:
                return folder
    return None


class PascalDataset(TreeDataset):
    """A VOC tree; classes are VOC's twenty unless a `classes.txt` lies beside the folders."""

    kind = "pascal"

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tree = FileTree(root)
        folder = voc_mask_folder(self._tree)
        if folder is None:
            folder = _only_mask_folder(self._tree)
        self._top = "" if folder == "" else str(PurePosixPath(folder).parent).removeprefix(".")
        self._masks = self._tree.files(folder, MASK_SUFFIXES)
        self._photos = self._tree.files(self._below_top(PHOTO_FOLDER), PHOTO_SUFFIXES)
        if not self._masks:
            raise EmatError(f"{self._tree.describe(folder)} holds no masks; they are PNG files of class indices")
        self.names = tuple(self._masks)
        self.classes = self._read_classes()

    def mask(self, name: str) -> Pixels:
        """Class indices, (H, W) uint8."""
        if name not in self._masks:
            raise self.unknown(name)
        path = self._masks[name]
        return read_voc_png(self._tree.source(path), self._tree.describe(path))

    def missing(self) -> Iterator[Missing]:
        """Masks without photo, and names in `ImageSets/Segmentation` without mask.

        VOC has many photos that were never segmented, so a photo without mask is no fault by itself.
        """
        if self.has_photos:
            yield from (Missing("photo", name) for name in self.names if name not in self._photos)
        listed: dict[str, None] = {}
        folder = self._below_top(LISTS_FOLDER)
        for file in self._tree.folders.get(folder, ()):
            if file.endswith(".txt"):
                listed.update(dict.fromkeys(self._tree.text(f"{folder}/{file}").split()))
        yield from (Missing("mask", name) for name in listed if name not in self._masks)

    def _below_top(self, folder: str) -> str:
        return f"{self._top}/{folder}" if self._top else folder

    def _read_classes(self) -> tuple[str, ...]:
        if "classes.txt" not in self._tree.folders.get(self._top, ()):
            return VOC_CLASSES
        path = self._below_top("classes.txt")
        return class_names_in(self._tree.text(path), self._tree.describe(path))


def _only_mask_folder(tree: FileTree) -> str:
    folders = [
        folder for folder, names in tree.folders.items() if any(name.lower().endswith(MASK_SUFFIXES) for name in names)
    ]
    if len(folders) != 1:
        raise EmatError(
            f"{tree.root} has no {' or '.join(MASK_FOLDERS)}, and masks in {len(folders)} folders; "
            "give a VOC tree, or one folder or zip of masks"
        )
    return folders[0]
