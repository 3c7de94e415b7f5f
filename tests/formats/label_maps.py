"""Label maps to write, small ones of every kind for laws and a fixed one that has it all."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from emat.images import VOID

CLASSES = ("cat", "3 series", "dog")

SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12)
MASKS = hnp.arrays(bool, SHAPES)
LABEL_MAPS = hnp.arrays(np.uint8, SHAPES, elements=st.sampled_from([0, 0, 1, 2, 3, VOID]))


def rich_label_map() -> np.ndarray:
    """(20, 30): a cat with a hole in which a dog sits with a hole of its own, a touching corner, and void."""
    label_map = np.zeros((20, 30), np.uint8)
    label_map[2:14, 3:17] = 1
    label_map[4:12, 6:14] = 0
    label_map[5:10, 7:12] = 3
    label_map[7, 9] = 0
    label_map[14:16, 17:19] = 1  # touches the cat at a corner alone
    label_map[0:20, 28:30] = 2  # to three edges of the photo
    label_map[17:20, 0:9] = VOID
    return label_map
