"""The size at which photos are learnt from."""

from pathlib import Path

import numpy as np
import pytest

from emat import Example, Segmenter
from emat.errors import EmatError
from emat.inference.working_sizes import best_size
from emat.methods.pixel_features import WORKING_SIDE


def _examples(side: int) -> list[Example]:
    """Two photos of fine stripes, which are lost where a photo is shrunk too far."""
    shown = []
    for seed in (1, 2):
        draw = np.random.RandomState(seed)
        photo = draw.randint(90, 130, (side // 2, side, 3)).astype(np.uint8)
        mask = np.zeros(photo.shape[:2], bool)
        mask[:, side // 4 + 2 * seed : side // 2] = True
        photo[:, ::2][mask[:, ::2]] = (200, 60, 50)
        shown.append(Example(photo, {"stripes": mask}, name=f"photo {seed}"))
    return shown


def test_a_file_keeps_the_size_it_was_fitted_at(tmp_path: Path) -> None:
    segmenter = Segmenter.load("default", device="cpu", size=120).fit(_examples(200))
    assert max(example.working.photo.shape[1] for example in segmenter.examples_ if example.working) == 120
    segmenter.save(tmp_path / "stripes.emat")
    loaded = Segmenter.load(tmp_path / "stripes.emat", device="cpu")
    assert loaded.working_side == 120
    photo = _examples(200)[0].photo
    assert loaded.predict(photo).scores == segmenter.predict(photo).scores


def test_small_photos_are_not_tried_at_a_larger_size() -> None:
    tried = []

    def fitted(side: int) -> Segmenter:
        tried.append(side)
        return Segmenter.load("default", device="cpu", size=side).fit(_examples(60))

    segmenter, said = best_size(fitted)
    assert (tried, said, segmenter.working_side) == ([WORKING_SIDE], None, WORKING_SIDE)


def test_of_large_photos_the_better_forecast_is_kept_and_said() -> None:
    found: dict[int, float] = {}

    def fitted(side: int) -> Segmenter:
        segmenter = Segmenter.load("default", device="cpu", size=side).fit(_examples(440))
        found[side] = segmenter.forecast_["stripes"].iou or 0.0
        return segmenter

    segmenter, said = best_size(fitted)
    better = found[2 * WORKING_SIDE] >= found[WORKING_SIDE] + 0.02
    assert segmenter.working_side == WORKING_SIDE * (2 if better else 1)
    assert said is not None
    assert said.startswith("The larger size helps" if better else "A larger size does not help")


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_size_that_is_no_size_is_refused(size: int) -> None:
    with pytest.raises(EmatError, match="the working size is 64 to 2000 pixels"):
        Segmenter.load("default", device="cpu", size=size)
