"""Data sets: photos, masks of class indices, names of classes, and the lists that divide them into folds.

`dataset` is the interface, and says how much of a photo each class covers. `layouts` opens a data set by its path and
lists the layouts that it recognises: `pascal`, `coco` and `folders` (photos with mask files or outlines), most of them
on a `file_tree`. `checking` looks for faults.

`fold_lists` says which photos stand for which class in a fold, reads and writes such lists, and knows the hashes of the
published ones.

>>> dataset = open_dataset("VOCdevkit/VOC2012")  # doctest: +SKIP
>>> dataset.mask("2007_000033").shape  # doctest: +SKIP
(366, 500)
"""

from emat.datasets.dataset import Dataset
from emat.datasets.layouts import open_dataset

__all__ = ["Dataset", "open_dataset"]
