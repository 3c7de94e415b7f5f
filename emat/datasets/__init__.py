"""Data sets: photos, masks of class indices, names of classes, and the lists that divide them into folds.

>>> dataset = open_dataset("VOCdevkit/VOC2012")  # doctest: +SKIP
>>> dataset.mask("2007_000033").shape  # doctest: +SKIP
(366, 500)
"""

from emat.datasets.dataset import Dataset, PhotoEntry
from emat.datasets.layouts import open_dataset

__all__ = ["Dataset", "PhotoEntry", "open_dataset"]
