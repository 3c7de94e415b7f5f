"""FiftyOne: the model gives the labels of FiftyOne itself. Skipped where fiftyone is not installed, as in CI."""

import numpy as np
import pytest

from emat import Segmenter
from emat.integrations.fiftyone import model_of
from tests.inference.spots import spot_examples

pytest.importorskip("fiftyone", reason="FiftyOne needs the extra `fiftyone`, which is not part of `all`")


@pytest.fixture(scope="module")
def fitted() -> Segmenter:
    return Segmenter.load("default", device="cpu", refine=None).fit(spot_examples(1, 2))


def test_a_label_map_or_single_objects_are_what_predict_says(fitted: Segmenter) -> None:
    from fiftyone.core.models import Model

    photo = np.asarray(spot_examples(3)[0].photo)
    prediction = fitted.predict(photo)
    model = model_of(fitted)
    assert isinstance(model, Model)
    assert np.array_equal(model.predict(photo).mask, prediction.label_map)
    objects = model_of(fitted, instances=True).predict(photo).detections
    assert len(objects) == len(prediction.instances("spot").rows) > 1
    assert {each.label for each in objects} == {"spot"}
    assert sum(int(each.mask.sum()) for each in objects) == int((prediction.label_map == 1).sum())
    assert all(0 <= value <= 1 for each in objects for value in each.bounding_box)
