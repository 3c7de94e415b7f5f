"""Folders (or zips) of photos with mask files or outlines, in four common layouts.

`FolderDataset` has `images/` and `masks/`, and a `classes.txt` that names the values in the masks.
`ClassFoldersDataset` has a folder for each class, and each mask shows one object: `images/<class>/x.jpg` with
`masks/<class>/x.png`, or `<class>/x.jpg` beside `<class>/x.png` as in FSS-1000. The masks of `LabelMeDataset` and
`YoloDataset` are outlines, in JSON files beside the photos and in text files in `labels/`.
"""

import os
from functools import cached_property
from pathlib import Path

import numpy as np

from emat.datasets.dataset import Dataset
from emat.datasets.file_tree import FileTree, TreeDataset
from emat.errors import EmatError
from emat.files import is_file, walk
from emat.formats.class_names import class_names_in, label_type, number_classes, read_class_names, tidy_name
from emat.formats.drawing import Drawing, LabelMap
from emat.formats.labelme import read_labelme
from emat.formats.yolo import read_yolo, read_yolo_names
from emat.images import (
    MASK_SUFFIXES,
    PHOTO_SUFFIXES,
    VOID,
    Pixels,
    photo_size,
    read_mask,
    read_object,
    read_one_class_mask,
    read_photo,
)
from emat.progress import tell_once

CLASS_FILES = ("classes.txt", "labels.txt")
NOTHING = "nothing"  # a folder of photos that show none of the classes, if it has no masks
ALLOWED = "EMAT_PHOTOS"  # folders outside of a LabelMe data set whose photos may be read
YOLO_CLASS_FILES = ("data.yaml", "dataset.yaml", "data.yml", "classes.txt")


class FolderDataset(TreeDataset):
    """`images/`, `masks/` and `classes.txt`. The name of a photo is its path below `images/`, without suffix."""

    kind = "folder"

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tree = FileTree(root)
        self._masks = self._tree.files("masks", MASK_SUFFIXES, nested=True, tell=True)
        self._photos = self._tree.files("images", PHOTO_SUFFIXES, nested=True, tell=True)
        if not self._masks:
            raise EmatError(
                "no-masks", f"{root} has no masks; put indexed or greyscale PNG files into {root / 'masks'}"
            )
        file = next((file for file in CLASS_FILES if file in self._tree.folders.get("", ())), None)
        if file is None:
            raise EmatError(
                "no-classes",
                f"{root} has no classes.txt; write one class name on each line, the first for mask value 1",
            )
        self.classes = class_names_in(self._tree.text(file), self._tree.describe(file))
        self.names = tuple(self._masks)

    def mask(self, name: str) -> Pixels:
        """Return class indices, (H, W) uint8.

        If there is only one class, white on black means that class and not void (`read_one_class_mask`).
        """
        return self._read_mask(name, read_one_class_mask if len(self.classes) == 1 else read_mask)


class ClassFoldersDataset(TreeDataset):
    """A folder for each class. The name of a photo is `<class>/x`; classes are numbered in alphabetical order."""

    kind = "class-folders"

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tree = FileTree(root)
        self._masks, self._photos = _photos_and_masks(self._tree)
        if not self._masks:
            raise EmatError(
                "no-masks", f"{root} has no masks; put them into masks/<class>/x.png, or as <class>/x.png beside photos"
            )
        self.names = tuple(self._masks)
        drawn, seen = ({_class_of(name) for name in names} for names in (self._masks, self._photos))
        if NOTHING not in drawn:
            self._photos = {name: path for name, path in self._photos.items() if _class_of(name) != NOTHING}
        self.classes = number_classes(sorted(drawn | (seen - {NOTHING})))
        self._index = {name: number for number, name in enumerate(self.classes, start=1)}

    def mask(self, name: str) -> LabelMap:
        """Return class indices, (H, W): the index of the photo's class where its object is, 255 if unknown."""
        drawn = self._read_mask(name, read_object)
        label_map: LabelMap = np.zeros(drawn.inside.shape, label_type(self.classes))
        label_map[drawn.inside] = self._index[_class_of(name)]
        label_map[drawn.void] = VOID
        return label_map


def has_pairs_in_class_folders(tree: FileTree) -> bool:
    """Whether a folder below the root has a photo and a mask of the same name."""
    return any(_pairs(names) for folder, names in tree.folders.items() if folder)


def _photos_and_masks(tree: FileTree) -> tuple[dict[str, str], dict[str, str]]:
    if any(folder.startswith("masks/") for folder in tree.folders):
        masks = tree.files("masks", MASK_SUFFIXES, nested=True, tell=True)
        photos = tree.files("images", PHOTO_SUFFIXES, nested=True, tell=True)
    else:
        masks = tree.files("", (".png",), nested=True)
        photos = tree.files("", (".jpg", ".jpeg"), nested=True)
    return ({n: p for n, p in masks.items() if "/" in n}, {n: p for n, p in photos.items() if "/" in n})


def _class_of(name: str) -> str:
    return tidy_name(name.rpartition("/")[0])


def _pairs(names: tuple[str, ...]) -> bool:
    stems = {name[:-4] for name in names if name.lower().endswith(".png")}
    return any(name.lower().endswith((".jpg", ".jpeg")) and name.rpartition(".")[0] in stems for name in names)


def json_files(root: Path) -> list[Path]:
    """Return the JSON files of a folder and the folders below it, sorted by their paths."""
    return sorted(folder / name for folder, names in walk(root) for name in names if name.endswith(".json"))


def _is_inside(photo: Path, root: Path) -> bool:
    """Whether a photo is in the data set or in a folder that the user allowed. Links inside of these are followed."""
    path = os.path.abspath(photo)
    allowed = [folder for folder in os.environ.get(ALLOWED, "").split(os.pathsep) if folder]
    return any(Path(os.path.abspath(folder)) in Path(path).parents for folder in (str(root), *allowed))


class LabelMeDataset(Dataset):
    """A JSON file for each photo. The name of a photo is the path of its JSON file without suffix.

    Classes are those that `labels.txt` or `classes.txt` lists; without these files, all labels in alphabetical order,
    except the labels for void.
    """

    kind = "labelme"

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files = {path.relative_to(root).with_suffix("").as_posix(): path for path in json_files(root)}
        self._read: dict[str, Drawing] = {}
        if not self._files:
            raise EmatError("no-annotations", f"{root} has no LabelMe files; put a JSON file beside each photo")
        self.names = tuple(self._files)

    @cached_property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The labels that are listed, or all labels in the files that do not mean void."""
        for file in (self.root / "labels.txt", self.root / "classes.txt"):
            if file.is_file():
                return read_class_names(file)
        labels: set[str] = set()
        damage: list[EmatError] = []
        for name in self.names:
            try:
                labels.update(drawn.class_name for drawn in self._drawing(name).objects if not drawn.crowd)
            except EmatError as error:  # it is reported when the mask of this photo is read
                damage.append(error)
        if damage and not labels:  # without classes, no mask is ever read
            raise damage[0]
        return number_classes(sorted(labels))

    def image(self, name: str) -> Pixels:
        """Return the photo, (H, W, 3) uint8."""
        return read_photo(self.photo_file(name), reading=self.reading)

    def image_size(self, name: str) -> tuple[int, int]:
        """Return the height and width of the photo, from its header."""
        return photo_size(self.photo_file(name), reading=self.reading)

    def photo_file(self, name: str) -> Path:
        """Return the path of the photo, which is `imagePath` in the JSON file."""
        drawing, file = self._drawing(name), self._files[name]
        photo = file.parent / drawing.photo
        if not _is_inside(photo, self.root):
            raise EmatError(
                "path-leads-out",
                f"imagePath of {file} leads out of {self.root} to {drawing.photo}; put the photo beside it, or allow "
                f"its folder with {ALLOWED}={Path(os.path.abspath(photo)).parent}",
            )
        if not is_file(photo):
            raise EmatError("no-such-photo", f"{photo} does not exist; add the photo, or correct imagePath in {file}")
        return photo

    def mask_file(self, name: str) -> Path | None:
        """Return the path of the JSON file."""
        return self._files.get(name)

    def mask(self, name: str) -> LabelMap:
        """Return class indices, (H, W), drawn from the outlines."""
        return self._drawing(name).label_map(self.classes)

    def _drawing(self, name: str) -> Drawing:
        if name not in self._files:
            raise self.unknown(name)
        if name not in self._read:
            self._read[name] = read_labelme(self._files[name])
        return self._read[name]


class YoloDataset(TreeDataset):
    """Photos in `images/`, outlines in `labels/`. The name of a photo is its path without suffix.

    The outlines of `images/train/x.jpg` are in `labels/train/x.txt`, those of `train/images/x.jpg` in
    `train/labels/x.txt`.
    """

    kind = "yolo"

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tree = FileTree(root)
        photos = self._tree.files("", PHOTO_SUFFIXES, nested=True, tell=True)
        self._photos = {name: path for name, path in photos.items() if "images" in name.split("/")[:-1]}
        if not self._photos:
            raise EmatError("no-photos", f"{root} has no photos in a folder named images; put them there")
        self.names = tuple(self._photos)
        file = next((root / file for file in YOLO_CLASS_FILES if (root / file).is_file()), None)
        if file is None:
            raise EmatError(
                "no-classes", f"{root} has no class list; put a data.yaml with names or a classes.txt into it"
            )
        self.classes = read_yolo_names(file)
        self._tell_orphans()

    def mask(self, name: str) -> LabelMap:
        """Return class indices, (H, W), drawn from the outlines; all background if there is no text file."""
        return read_yolo(self._labels(name), name, self.image_size(name), self.classes).label_map(self.classes)

    def mask_file(self, name: str) -> Path | None:
        """Return the path of the text file; None if there is none."""
        labels = self._labels(name)
        return labels if labels.is_file() else None

    def _tell_orphans(self) -> None:
        """Say which text files belong to no photo; EmatError if this is so for all of them, as with wrong names."""
        labels = self._tree.files("", (".txt",), nested=True)
        files = {self.root / path for name, path in labels.items() if "labels" in name.split("/")[:-1]}
        orphans = sorted(files - {self._labels(name) for name in self.names})
        if orphans and len(orphans) == len(files):
            raise EmatError(
                "names-do-not-match",
                f"no photo has outlines: {orphans[0]} and all others have no photo of their name in images",
            )
        if orphans:
            tell_once(f"{len(orphans)} of {len(files)} text files have no photo and are left out, such as {orphans[0]}")

    def _labels(self, name: str) -> Path:
        if name not in self._photos:
            raise self.unknown(name)
        *folders, stem = name.split("/")
        last = len(folders) - 1 - folders[::-1].index("images")  # YOLO tools also replace the last folder of this name
        folders[last] = "labels"
        return self.root.joinpath(*folders, f"{stem}.txt")
