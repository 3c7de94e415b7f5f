"""Folders (or zips) of photos and mask files, in two common layouts.

`FolderDataset` has `images/` and `masks/`, and a `classes.txt` that names the values in the masks.
`ClassFoldersDataset` has a folder for each class, and each mask shows one object: `images/<class>/x.jpg` with
`masks/<class>/x.png`, or `<class>/x.jpg` beside `<class>/x.png` as in FSS-1000.
"""

from pathlib import Path

import numpy as np

from emat.datasets.file_tree import FileTree, TreeDataset
from emat.errors import EmatError
from emat.formats.class_names import class_names_in, label_type, number_classes
from emat.formats.drawing import LabelMap
from emat.images import MASK_SUFFIXES, PHOTO_SUFFIXES, VOID, Pixels, read_mask, read_object, read_one_class_mask

CLASS_FILES = ("classes.txt", "labels.txt")
NOTHING = "nothing"  # a folder of photos that show none of the classes, if it has no masks


class FolderDataset(TreeDataset):
    """`images/`, `masks/` and `classes.txt`. The name of a photo is its path below `images/`, without suffix."""

    kind = "folder"

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tree = FileTree(root)
        self._masks = self._tree.files("masks", MASK_SUFFIXES, nested=True)
        self._photos = self._tree.files("images", PHOTO_SUFFIXES, nested=True)
        if not self._masks:
            raise EmatError(f"{root} has no masks; put indexed or greyscale PNG files into {root / 'masks'}")
        file = next((file for file in CLASS_FILES if file in self._tree.folders.get("", ())), None)
        if file is None:
            raise EmatError(f"{root} has no classes.txt; write one class name on each line, the first for mask value 1")
        self.classes = class_names_in(self._tree.text(file), self._tree.describe(file))
        self.names = tuple(self._masks)

    def mask(self, name: str) -> Pixels:
        """Return class indices, (H, W) uint8.

        If there is only one class, white on black means that class and not void (`read_one_class_mask`).
        """
        if name not in self._masks:
            raise self.unknown(name)
        path = self._masks[name]
        read = read_one_class_mask if len(self.classes) == 1 else read_mask
        return read(self._tree.source(path), name=self._tree.describe(path))


class ClassFoldersDataset(TreeDataset):
    """A folder for each class. The name of a photo is `<class>/x`; classes are numbered in alphabetical order."""

    kind = "class-folders"

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tree = FileTree(root)
        self._masks, self._photos = _photos_and_masks(self._tree)
        if not self._masks:
            raise EmatError(
                f"{root} has no masks; put them into masks/<class>/x.png, or as <class>/x.png beside photos"
            )
        self.names = tuple(self._masks)
        drawn, seen = ({_class_of(name) for name in names} for names in (self._masks, self._photos))
        if NOTHING not in drawn:
            self._photos = {name: path for name, path in self._photos.items() if _class_of(name) != NOTHING}
        self.classes = number_classes(sorted(drawn | (seen - {NOTHING})))
        self._index = {name: number for number, name in enumerate(self.classes, start=1)}

    def mask(self, name: str) -> LabelMap:
        """Return class indices, (H, W): the index of the photo's class where its object is, 255 if unknown."""
        if name not in self._masks:
            raise self.unknown(name)
        path = self._masks[name]
        drawn = read_object(self._tree.source(path), name=self._tree.describe(path))
        label_map: LabelMap = np.zeros(drawn.inside.shape, label_type(self.classes))
        label_map[drawn.inside] = self._index[_class_of(name)]
        label_map[drawn.void] = VOID
        return label_map


def has_pairs_in_class_folders(tree: FileTree) -> bool:
    """Whether a folder below the root has a photo and a mask of the same name."""
    return any(_pairs(names) for folder, names in tree.folders.items() if folder)


def _photos_and_masks(tree: FileTree) -> tuple[dict[str, str], dict[str, str]]:
    if any(folder.startswith("masks/") for folder in tree.folders):
        masks = tree.files("masks", MASK_SUFFIXES, nested=True)
        photos = tree.files("images", PHOTO_SUFFIXES, nested=True)
    else:
        masks = tree.files("", (".png",), nested=True)
        photos = tree.files("", (".jpg", ".jpeg"), nested=True)
    return ({n: p for n, p in masks.items() if "/" in n}, {n: p for n, p in photos.items() if "/" in n})


def _class_of(name: str) -> str:
    return name.rpartition("/")[0]


def _pairs(names: tuple[str, ...]) -> bool:
    stems = {name[:-4] for name in names if name.lower().endswith(".png")}
    return any(name.lower().endswith((".jpg", ".jpeg")) and name.rpartition(".")[0] in stems for name in names)
