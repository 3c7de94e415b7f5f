"""Folders of photos with outlines drawn on them: LabelMe's JSON files, YOLO's text files."""

from contextlib import suppress
from functools import cached_property
from pathlib import Path

from emat.datasets.dataset import Dataset
from emat.datasets.file_tree import FileTree
from emat.datasets.tree_dataset import TreeDataset
from emat.errors import EmatError
from emat.formats.class_names import number_classes, read_class_names
from emat.formats.drawing import Drawing, LabelMap
from emat.formats.labelme import read_labelme
from emat.formats.yolo_seg import read_yolo, read_yolo_names
from emat.images import PHOTO_SUFFIXES, Pixels, photo_size, read_photo

YOLO_CLASS_FILES = ("data.yaml", "dataset.yaml", "data.yml", "classes.txt")


class LabelMeDataset(Dataset):
    """A JSON file for each photo; a name is the JSON file's path without suffix.

    Classes are the labels in alphabetical order, less those for void, unless `labels.txt` or `classes.txt` lists them.
    """

    kind = "labelme"

    def __init__(self, root: Path) -> None:
        self.root = root
        files = sorted(root.rglob("*.json"))
        self._files = {path.relative_to(root).with_suffix("").as_posix(): path for path in files}
        self._read: dict[str, Drawing] = {}
        if not self._files:
            raise EmatError(f"{root} has no LabelMe files; there is one JSON file beside each photo")
        self.names = tuple(self._files)

    @cached_property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The listed labels, or all that occur and do not stand for void."""
        for file in (self.root / "labels.txt", self.root / "classes.txt"):
            if file.is_file():
                return read_class_names(file)
        labels: set[str] = set()
        for name in self.names:
            with suppress(EmatError):  # a damaged file is reported when its mask is asked for
                labels.update(drawn.class_name for drawn in self._drawing(name).objects if not drawn.crowd)
        return number_classes(sorted(labels))

    def image(self, name: str) -> Pixels:
        """The photo, (H, W, 3) uint8."""
        return read_photo(self.photo_file(name))

    def image_size(self, name: str) -> tuple[int, int]:
        """(H, W) of the photo, from its header."""
        return photo_size(self.photo_file(name))

    def photo_file(self, name: str) -> Path:
        """The photo that the JSON file's `imagePath` leads to."""
        drawing, file = self._drawing(name), self._files[name]
        photo = file.parent / drawing.photo
        if not photo.is_file():
            raise EmatError(f"{photo} does not exist; add the photo, or correct imagePath in {file}")
        return photo

    def mask_file(self, name: str) -> Path | None:
        """The JSON file."""
        return self._files.get(name)

    def mask(self, name: str) -> LabelMap:
        """Class indices, (H, W), drawn from the outlines."""
        return self._drawing(name).label_map(self.classes)

    def _drawing(self, name: str) -> Drawing:
        if name not in self._files:
            raise self.unknown(name)
        if name not in self._read:
            self._read[name] = read_labelme(self._files[name])
        return self._read[name]


class YoloDataset(TreeDataset):
    """`images/` and `labels/` below the root or below each split; a name is the photo's path without suffix.

    `images/train/x.jpg` has its outlines in `labels/train/x.txt`, `train/images/x.jpg` in
    `train/labels/x.txt`.
    """

    kind = "yolo"

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tree = FileTree(root)
        photos = self._tree.files("", PHOTO_SUFFIXES, nested=True)
        self._photos = {name: path for name, path in photos.items() if "images" in name.split("/")[:-1]}
        if not self._photos:
            raise EmatError(f"{root} has no photos in a folder named images")
        self.names = tuple(self._photos)
        file = next((root / file for file in YOLO_CLASS_FILES if (root / file).is_file()), None)
        if file is None:
            raise EmatError(f"{root} has no class list; put a data.yaml with names or a classes.txt into it")
        self.classes = read_yolo_names(file)

    def mask(self, name: str) -> LabelMap:
        """Class indices, (H, W), drawn from the outlines; all background where there is no text file."""
        return read_yolo(self._labels(name), name, self.image_size(name), self.classes).label_map(self.classes)

    def mask_file(self, name: str) -> Path | None:
        """The text file, if there is one."""
        labels = self._labels(name)
        return labels if labels.is_file() else None

    def _labels(self, name: str) -> Path:
        if name not in self._photos:
            raise self.unknown(name)
        *folders, stem = name.split("/")
        place = len(folders) - 1 - folders[::-1].index("images")  # the last one, as YOLO tools take it
        folders[place] = "labels"
        return self.root.joinpath(*folders, f"{stem}.txt")
