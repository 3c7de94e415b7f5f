"""Data sets: images, masks as class indices, names of classes, and the lists that cut them into folds.

>>> dataset = open_dataset("VOCdevkit/VOC2012")  # doctest: +SKIP
>>> dataset.mask("2007_000033").shape  # doctest: +SKIP
(366, 500)
"""

from emat.datasets.dataset import Dataset, Entry
from emat.datasets.opening import open_dataset

__all__ = ["Dataset", "Entry", "open_dataset"]
