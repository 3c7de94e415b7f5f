"""COCO-20i from the pre-rendered masks that circulate: `annotations/train2014/*.png`, values 1 to 80."""

from pathlib import Path

from emat.datasets.file_tree import FileTree
from emat.datasets.tree_dataset import TreeDataset
from emat.errors import EmatError
from emat.formats.coco_json import COCO_CLASSES
from emat.images import MASK_SUFFIXES, PHOTO_SUFFIXES, Pixels, read_mask


def has_coco_pngs(tree: FileTree) -> bool:
    """Whether `annotations/` has folders of masks."""
    return any(
        folder.startswith("annotations/") and any(name.lower().endswith(MASK_SUFFIXES) for name in names)
        for folder, names in tree.folders.items()
    )


class CocoPngDataset(TreeDataset):
    """Masks in `annotations/<split>/`, photos in `<split>/`; names are photo paths, as in fold lists."""

    kind = "coco"
    classes = COCO_CLASSES

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tree = FileTree(root)
        masks = self._tree.files("annotations", MASK_SUFFIXES, nested=True)
        if not masks:
            raise EmatError(f"{root} has no masks; they lie in folders such as annotations/val2014/")
        splits = sorted({name.rpartition("/")[0] for name in masks})
        photos = [path for split in splits for path in self._tree.files(split, PHOTO_SUFFIXES).values()]
        self._photos = {path: path for path in photos}
        self._masks = {f"{name}.jpg": path for name, path in masks.items()}
        self.names = tuple(self._masks)

    def mask(self, name: str) -> Pixels:
        """Class indices, (H, W) uint8."""
        if name not in self._masks:
            raise self.unknown(name)
        path = self._masks[name]
        return read_mask(self._tree.source(path), name=self._tree.describe(path))
