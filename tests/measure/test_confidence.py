"""How many false OKs to expect is asked of the examples, by the same rules as the photos are judged."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emat import Example, Segmenter
from emat.images import Pixels
from emat.measure import Filters, MeasureOptions
from emat.measure.measuring import left_out_confidence
from emat.measure.scene import Area, Mask
from emat.measure.shares import Within, otsu_region
from emat.measure.units import ScaleObject
from emat.measure.verdicts import Condition, Confidence
from tests.raises import raises_code

SIZE = (90, 120)
GROUND, LEAF, LESION, COIN = (200, 200, 200), (40, 150, 40), (130, 70, 20), (60, 60, 220)


def example(number: int) -> tuple[Pixels, dict[str, Mask]]:
    """A leaf of 60 x 50 pixels with a lesion of 16 x 16, and a coin that is 20 pixels wide."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    left = 5 + 4 * number
    leaf = (y >= 20) & (y < 70) & (x >= left) & (x < left + 60)
    lesion = (y >= 30) & (y < 46) & (x >= left + 20) & (x < left + 36)
    coin = np.hypot(y - 45.3, x - 100.2) < 10
    photo = np.empty((*SIZE, 3), np.float64)
    photo[...] = GROUND
    for mask, colour in ((leaf, LEAF), (lesion, LESION), (coin, COIN)):
        photo[mask] = colour
    photo += np.random.default_rng(number).normal(0, 3, photo.shape)
    return photo.clip(0, 255).astype(np.uint8), {"lesion": lesion, "leaf": leaf & ~lesion, "coin": coin}


@pytest.fixture(scope="module")
def fitted(tiny_head: Path) -> Segmenter:
    examples = [Example(*example(number)) for number in range(3)]
    return Segmenter.load(tiny_head, learn=True, refine="guided", overlap=("lesion", "leaf")).fit(examples)


def confidence(
    fitted: Segmenter,
    accept: str,
    magnified: int = 1,
    within: Sequence[Within] = (),
    smallest: str | None = None,
    regions: Any = None,
    scale_object: ScaleObject | None = None,
) -> Confidence:
    condition = Condition.read(accept, (*fitted.classes_, *(regions or {})))
    filters = Filters(None if smallest is None else Area.read(smallest))
    options = MeasureOptions((), None, scale_object, within, filters, (condition,))
    size = (magnified * SIZE[0], magnified * SIZE[1])
    return left_out_confidence(fitted, options, size, None, "together", regions)


def test_classes_that_overlap_are_whole_in_the_examples_too(fitted: Segmenter) -> None:
    share = 100 * 16**2 / (60 * 50)
    within = (Within("lesion", "leaf"),)
    assert confidence(fitted, f"lesion.share_within <= {share - 0.1}%", within=within).not_ok == 3
    assert confidence(fitted, f"lesion.share_within <= {share + 0.1}%", within=within).not_ok == 0


def test_small_objects_do_not_count_in_the_examples_either(fitted: Segmenter) -> None:
    assert confidence(fitted, "lesion.count == 0", smallest="255px").not_ok == 3
    assert confidence(fitted, "lesion.count == 0", smallest="257px").not_ok == 0
    assert confidence(fitted, "lesion.count == 0", magnified=2, smallest="257px").not_ok == 3, "photos are larger"


def test_the_coin_of_an_example_sets_its_scale(fitted: Segmenter) -> None:
    coin = ScaleObject("coin", 10.0, "mm")  # half a millimetre a pixel
    assert confidence(fitted, "lesion.area <= 62mm2", magnified=3, scale_object=coin).not_ok == 3
    assert confidence(fitted, "lesion.area <= 66mm2", magnified=3, scale_object=coin).not_ok == 0
    with raises_code("too-few-examples", "sets the scale"):
        confidence(fitted, "lesion.area <= 66mm2", scale_object=ScaleObject("leaf", 10.0, "mm"))


def test_regions_are_found_on_the_examples(fitted: Segmenter) -> None:
    within = (Within("lesion", "plant"),)
    words = {"within": within, "regions": {"plant": otsu_region}}
    assert confidence(fitted, "lesion.share_within <= 1%", **words).not_ok == 3  # type: ignore[arg-type]
    assert confidence(fitted, "plant.area <= 100px", **words).not_ok == 3  # type: ignore[arg-type]
    with raises_code("too-few-examples", "the examples have no plant"):
        confidence(fitted, "lesion.share_within <= 1%", within=within, regions={"plant": None})
