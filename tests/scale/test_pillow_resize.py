import numpy as np
import pytest
import torch

from emat.images import resize_photo
from emat.scale.export import PillowResize


@pytest.mark.parametrize(
    ("size", "target"), [((48, 64), (20, 31)), ((30, 17), (64, 64)), ((40, 40), (40, 25)), ((900, 700), (11, 9))]
)
def test_photos_are_resized_exactly_as_pillow_does(size: tuple[int, int], target: tuple[int, int]) -> None:
    photo = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    found = PillowResize(size, target)(torch.from_numpy(photo).permute(2, 0, 1)[None])
    assert np.array_equal(found[0].permute(1, 2, 0).numpy(), resize_photo(photo, target))
