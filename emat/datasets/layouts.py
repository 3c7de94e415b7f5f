"""Opening a data set by its path; its layout is recognised from its folders and files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from emat.datasets.coco import CocoDataset, CocoPngDataset, coco_files, has_coco_pngs
from emat.datasets.dataset import Dataset
from emat.datasets.file_tree import FileTree
from emat.datasets.folders import (
    CLASS_FILES,
    YOLO_CLASS_FILES,
    ClassFoldersDataset,
    FolderDataset,
    LabelMeDataset,
    YoloDataset,
    has_pairs_in_class_folders,
    json_files,
)
from emat.datasets.pascal import PascalDataset, voc_mask_folder
from emat.errors import EmatError
from emat.files import from_user
from emat.formats.labelme import is_labelme
from emat.images import MASK_SUFFIXES


@dataclass(frozen=True)
class Layout:
    """A layout of data sets.

    Attributes:
        looks_like: The folders and files of the layout, for messages.
        fits: Whether a path has this layout.
        open: Opens the data set at a path.
    """

    looks_like: str
    fits: Callable[[Path], bool]
    open: Callable[[Path], Dataset]


def open_dataset(root: Path | str, kind: str | None = None, masks: Path | str | None = None) -> Dataset:
    """Open the data set at a path.

    Args:
        root: A folder, a zip, or a COCO JSON file.
        kind: One of `LAYOUTS`; recognised from the files if not given.
        masks: A folder or zip of PASCAL VOC masks, if they are not with the photos at `root`. Masks are resized to
            their photos by nearest neighbour if both sides differ by the same scale.

    Returns:
        The data set. Photos and masks are read later, except up to three masks if `masks` is given.

    Raises:
        EmatError: The path does not exist, its layout is not known, or no photo has a mask.

    Example:
        open_dataset("photos", masks="voc2012-masks.zip")
    """
    root = from_user(root)
    if not root.exists():
        raise EmatError("no-such-file", f"{root} does not exist; check the path")
    if masks is not None:
        if kind not in (None, PascalDataset.kind):
            raise EmatError(
                "conflicting-options", f"separate masks are read as {PascalDataset.kind}, not as {kind}; omit --masks"
            )
        return PascalDataset(root, from_user(masks))
    if kind is not None:
        if kind not in LAYOUTS:
            raise EmatError(
                "unknown-choice", f"there is no kind of data set {kind!r}; the kinds are {', '.join(LAYOUTS)}"
            )
        return LAYOUTS[kind].open(root)
    for layout in LAYOUTS.values():
        if layout.fits(root):
            return layout.open(root)
    layouts = "; ".join(f"{kind}: {layout.looks_like}" for kind, layout in LAYOUTS.items())
    raise EmatError(
        "unknown-layout",
        f"{root} has none of the known layouts; the simplest is a folder for each class, with a mask of the same name "
        f"beside each photo, such as {root / 'cat' / 'a.jpg'} and {root / 'cat' / 'a.png'}. All layouts: {layouts}",
    )


def _open_coco(root: Path) -> Dataset:
    # If both are there, the PNG masks are taken, because the published results were obtained with them.
    if root.is_dir() and has_coco_pngs(FileTree(root)):
        return CocoPngDataset(root)
    return CocoDataset(root)


def _is_coco(root: Path) -> bool:
    return bool(coco_files(root)) or (root.is_dir() and has_coco_pngs(FileTree(root)))


def _is_pascal(root: Path) -> bool:
    return root.suffix != ".json" and voc_mask_folder(FileTree(root)) is not None


def _is_yolo(root: Path) -> bool:
    has_names = any((root / name).is_file() for name in YOLO_CLASS_FILES)
    return has_names and any("labels" in folder.split("/") for folder in FileTree(root).folders)


def _is_folder(root: Path) -> bool:
    tree = FileTree(root)
    has_masks = any(folder.split("/")[0] == "masks" for folder in tree.folders)
    return has_masks and ("masks" in tree.folders or any(file in tree.folders.get("", ()) for file in CLASS_FILES))


def _is_class_folders(root: Path) -> bool:
    tree = FileTree(root)
    return any(f.startswith("masks/") for f in tree.folders) or has_pairs_in_class_folders(tree)


def _is_labelme(root: Path) -> bool:
    return root.is_dir() and any(map(is_labelme, json_files(root)))


def _is_masks_alone(root: Path) -> bool:
    folders = FileTree(root).folders
    return len(folders) == 1 and all(n.lower().endswith(MASK_SUFFIXES) for names in folders.values() for n in names)


# They are tried in this order.
LAYOUTS: dict[str, Layout] = {
    "coco": Layout(
        "annotations/instances_*.json or annotations/<split>/*.png, photos in <split>/ or images/", _is_coco, _open_coco
    ),
    "pascal": Layout(
        "JPEGImages/ with SegmentationClassAug/ or SegmentationClass/, or a folder or zip of masks only",
        lambda root: _is_pascal(root) or _is_masks_alone(root),
        PascalDataset,
    ),
    "yolo": Layout("images/ and labels/ with data.yaml or classes.txt", _is_yolo, YoloDataset),
    "folder": Layout("images/ and masks/ with classes.txt", _is_folder, FolderDataset),
    "class-folders": Layout(
        "images/<class>/ and masks/<class>/, or <class>/ with x.jpg beside x.png",
        _is_class_folders,
        ClassFoldersDataset,
    ),
    "labelme": Layout("photos, each with a LabelMe JSON file", _is_labelme, LabelMeDataset),
}
