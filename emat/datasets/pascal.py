"""PASCAL VOC, and anything laid out like it: `JPEGImages`, `SegmentationClassAug` or `SegmentationClass`.

A folder or zip of masks is enough to draw tasks. Photos and masks may also be given separately, and the photos may then
be smaller than their masks: copies of VOC at a reduced size are common, and its masks are published separately.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from emat.datasets.dataset import Missing
from emat.datasets.file_tree import FileTree, TreeDataset
from emat.errors import EmatError
from emat.formats.class_names import VOC_CLASSES, class_names_in
from emat.images import MASK_SUFFIXES, PHOTO_SUFFIXES, Pixels, read_mask, resize_mask, same_scale, size_in_words
from emat.progress import tell_once

MASK_FOLDERS = ("SegmentationClassAug", "SegmentationClass")  # the first contains all masks of the second
PHOTO_FOLDER = "JPEGImages"
LISTS_FOLDER = "ImageSets/Segmentation"


def voc_mask_folder(tree: FileTree) -> str | None:
    """Return the folder of VOC's masks, `SegmentationClassAug` if there are two; None if there is none."""
    for name in MASK_FOLDERS:
        for folder in tree.folders:
            if PurePosixPath(folder).name == name:
                return folder
    return None


class PascalDataset(TreeDataset):
    """A VOC tree, or a folder or zip of photos with another one of masks.

    Classes are the twenty of VOC, unless there is a `classes.txt` beside the folder of masks.
    """

    kind = "pascal"

    def __init__(self, root: Path, masks: Path | None = None) -> None:
        """Open a VOC tree.

        Args:
            root: The tree, or a folder or zip of masks, or one of photos if `masks` is given.
            masks: A folder or zip of masks that is used instead of those at `root`.

        Raises:
            EmatError: There are no masks, or none of them belongs to a photo.
        """
        self.root = root
        self._tree = FileTree(root)
        self._separate_masks = None if masks is None else FileTree(masks)
        folder = voc_mask_folder(self._mask_tree)
        if folder is None:
            folder = _only_mask_folder(self._mask_tree)
        mask_top = _parent(folder)
        self._masks = self._mask_tree.files(folder, MASK_SUFFIXES, tell=True)
        if not self._masks:
            raise EmatError(
                "no-masks", f"{self._mask_tree.describe(folder)} has no masks; they are PNG files of class indices"
            )
        photos = _below(mask_top, PHOTO_FOLDER) if masks is None else _photo_folder(self._tree)
        self._top = mask_top if masks is None else _parent(photos)
        self._photos = self._tree.files(photos, PHOTO_SUFFIXES, tell=True)
        self.names = tuple(name for name in self._masks if masks is None or name in self._photos)
        if not self.names:
            photo, mask = next(iter(self._photos)), next(iter(self._masks))
            raise EmatError(
                "names-do-not-match",
                f"no photo in {root} has a mask in {masks}: they are named {photo} and {mask}, for example",
            )
        self.classes = _read_classes(self._mask_tree, mask_top)
        if masks is not None:
            self._tell_if_resized()

    @property
    def masks_root(self) -> Path:
        """Where the masks are: the root, unless they were given separately."""
        return self._mask_tree.root

    def mask(self, name: str) -> Pixels:
        """Return class indices, (H, W) uint8. A mask that was given separately is resized to its photo."""
        mask = self.stored_mask(name)
        if self._separate_masks is None or (size := self.image_size(name)) == mask.shape:
            return mask
        if not same_scale(mask.shape, size):
            raise EmatError(
                "mask-size",
                f"{self._mask_tree.describe(self._masks[name])} is {size_in_words(mask.shape)} pixels and its photo "
                f"{size_in_words(size)}, which have different shapes; correct one of them or leave both out",
            )
        return resize_mask(mask, size)

    def stored_mask(self, name: str) -> Pixels:
        """Return class indices, (H, W) uint8, at the size of the mask's file."""
        return self._read_mask(name, read_mask)

    def missing(self) -> Iterator[Missing]:
        """Give the masks without a photo, and the names in `ImageSets/Segmentation` without a mask.

        VOC has many photos that were never segmented, so a photo without a mask is not a fault. If masks are given
        separately, a mask without a photo is not a fault either, because all masks of VOC may be used with few photos.
        """
        if self.has_photos:
            yield from (Missing("photo", name) for name in self.names if name not in self._photos)
        listed: dict[str, None] = {}
        folder = _below(self._top, LISTS_FOLDER)
        for file in self._tree.folders.get(folder, ()):
            if file.endswith(".txt"):
                listed.update(dict.fromkeys(self._tree.text(f"{folder}/{file}").split()))
        yield from (Missing("mask", name) for name in listed if name not in self._masks)

    def _tell_if_resized(self) -> None:
        """Log that masks are resized, if the first, the middle or the last one differs from its photo in size."""
        for name in dict.fromkeys((self.names[0], self.names[len(self.names) // 2], self.names[-1])):
            try:
                stored, size = self.stored_mask(name).shape, self.image_size(name)
            except EmatError:
                continue  # the error is raised when this photo is used
            if stored != size and same_scale(stored, size):
                example = f"{name} from {size_in_words(stored)} to {size_in_words(size)} pixels"
                tell_once(f"masks of {self.masks_root} are resized to their photos, for example {example}")
                return


def _only_mask_folder(tree: FileTree) -> str:
    folders = [
        folder for folder, names in tree.folders.items() if any(name.lower().endswith(MASK_SUFFIXES) for name in names)
    ]
    if len(folders) != 1:
        raise EmatError(
            "unknown-layout",
            f"{tree.root} has no {' or '.join(MASK_FOLDERS)}, and masks in {len(folders)} folders; "
            "give a VOC tree, or one folder or zip of masks",
        )
    return folders[0]


def _photo_folder(tree: FileTree) -> str:
    """Return the folder `JPEGImages`, anywhere in the tree, or the only folder that has photos."""
    folders = [folder for folder in tree.folders if tree.files(folder, PHOTO_SUFFIXES)]
    named = [folder for folder in folders if PurePosixPath(folder).name == PHOTO_FOLDER]
    if not named and len(folders) != 1:
        raise EmatError(
            "unknown-layout",
            f"{tree.root} has no {PHOTO_FOLDER}, and photos in {len(folders)} folders; give the folder of the photos",
        )
    return (named or folders)[0]


def _read_classes(tree: FileTree, top: str) -> tuple[str, ...]:
    if "classes.txt" not in tree.folders.get(top, ()):
        return VOC_CLASSES
    path = _below(top, "classes.txt")
    return class_names_in(tree.text(path), tree.describe(path))


def _parent(folder: str) -> str:
    return "" if folder == "" else str(PurePosixPath(folder).parent).removeprefix(".")


def _below(top: str, path: str) -> str:
    return f"{top}/{path}" if top else path
