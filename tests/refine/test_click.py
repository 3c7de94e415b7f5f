import numpy as np
import pytest
import torch

from emat.errors import EmatError
from emat.images import Pixels
from emat.refine.click import Clicker, click
from emat.refine.mobilesam import EncodedPhoto, MobileSAM

PHOTO = np.zeros((40, 60, 3), np.uint8)


@pytest.fixture(scope="module")
def untrained() -> Clicker:
    return Clicker(PHOTO, MobileSAM())


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
def test_a_wrong_click_is_explained(untrained: Clicker, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(EmatError, match=message):
        untrained.mask(**arguments)  # type: ignore[arg-type]


def test_one_click_means_an_object_and_not_the_whole_photo(untrained: Clicker) -> None:
    logits = torch.full((3, 256, 256), -1.0)
    logits[0, :171] = 1.0  # all of a photo of 40 x 60 pixels, which fills two thirds of the square
    logits[1, 50:60, 50:60] = logits[2, :100] = 1.0
    surest_of_all = torch.tensor([0.9, 0.6, 0.7])
    assert untrained._best_object(logits, surest_of_all) == 2
    assert untrained._best_object(logits[:1], surest_of_all[:1]) == 0, "there is nothing better"


def square_photo() -> np.ndarray:
    photo = np.full((120, 160, 3), 90, np.uint8)
    photo[30:90, 40:100] = (220, 60, 40)
    return photo


def iou(mask: np.ndarray, truth: np.ndarray) -> float:
    return float((mask & truth).sum() / (mask | truth).sum())


def test_clicks_and_boxes_give_the_object(mobilesam: MobileSAM) -> None:
    photo = square_photo()
    square = photo[..., 0] == 220
    clicker = Clicker(photo, mobilesam)
    for mask in (clicker.mask([(70, 60)]), clicker.mask(box=(38, 28, 102, 92))):
        assert mask.shape == (120, 160)
        assert iou(mask, square) > 0.9
    outside = clicker.mask([(10, 10), (70, 60)], labels=[1, 0])
    assert not outside[40:80, 50:90].any()


def test_a_photo_is_encoded_once_however_often_it_is_clicked(
    mobilesam: MobileSAM, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = square_photo()
    encode, encoded = mobilesam.encode, []

    def counted(pixels: Pixels) -> EncodedPhoto:
        encoded.append(pixels)
        return encode(pixels)

    monkeypatch.setattr(mobilesam, "encode", counted)
    monkeypatch.setattr("emat.refine.mobilesam._loaded", [mobilesam])
    first = click(photo, [(70, 60)])
    again = click(photo.copy(), [(70, 60)])
    assert np.array_equal(first, again)
    assert click(photo, box=(38, 28, 102, 92)).any()
    assert len(encoded) == 1
    click(photo[:100], [(70, 60)])
    assert len(encoded) == 2
