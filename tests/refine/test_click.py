import numpy as np
import pytest

from emat.errors import EmatError
from emat.refine.click import Clicker
from emat.refine.mobilesam import MobileSAM

UNTRAINED = Clicker(MobileSAM())
PHOTO = np.zeros((40, 60, 3), np.uint8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs a point or a box"),
        ({"points": [(60, 10)]}, "outside the photo, which has 60 x 40 pixels"),
        ({"points": [(5, 5)], "labels": [1, 0]}, "for 1 points"),
        ({"points": [(5, 5)], "labels": [2]}, "1 \\(on the object\\) or 0"),
        ({"box": (20, 5, 10, 30)}, "not left, top, right, bottom within 60 x 40"),
    ],
)
def test_a_wrong_click_is_explained(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(EmatError, match=message):
        UNTRAINED.mask(PHOTO, **arguments)  # type: ignore[arg-type]


def test_clicks_and_boxes_give_the_object(mobilesam: MobileSAM) -> None:
    photo = np.full((120, 160, 3), 90, np.uint8)
    photo[30:90, 40:100] = (220, 60, 40)
    square = photo[..., 0] == 220
    clicker = Clicker(mobilesam)
    for mask in (clicker.mask(photo, [(70, 60)]), clicker.mask(photo, box=(38, 28, 102, 92))):
        assert mask.shape == (120, 160)
        assert (mask & square).sum() / (mask | square).sum() > 0.9
