"""CVAT: the function gives the objects of CVAT's own SDK. Skipped where `cvat-sdk` is not installed, as in CI."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from emat import Segmenter
from emat.errors import EmatError
from emat.integrations.cvat import create
from tests.scale.conftest import photo_of

cvat_sdk = pytest.importorskip("cvat_sdk", reason="CVAT needs the extra `cvat`, which is not part of `all`")


def context(threshold: float | None = None, polygons: bool = False) -> Any:
    return SimpleNamespace(frame_name="a.png", conf_threshold=threshold, conv_mask_to_poly=polygons)


def test_the_function_lists_the_classes_and_finds_them(fitted_file: Path, fitted: Segmenter) -> None:
    from cvat_sdk.masks import decode_mask

    function = create(str(fitted_file), device="cpu")
    assert [label.name for label in function.spec.labels] == ["square", "corner"]
    expected = fitted.predict(photo_of(5))
    assert expected.present
    shapes = function.detect(context(), Image.fromarray(photo_of(5)))
    assert {function.spec.labels[shape.label_id].name for shape in shapes} == expected.present
    for shape in shapes:
        assert str(shape.type) == "mask"
        mask = decode_mask(shape.points, image_width=64, image_height=48)
        assert np.array_equal(mask, expected.mask(function.spec.labels[shape.label_id].name))


def test_polygons_and_a_confidence_are_kept_to(fitted_file: Path) -> None:
    function = create(str(fitted_file), device="cpu")
    shapes = function.detect(context(polygons=True), Image.fromarray(photo_of(5)))
    assert shapes
    assert all(str(shape.type) == "polygon" and len(shape.points) >= 6 for shape in shapes)
    assert function.detect(context(threshold=1.0), Image.fromarray(photo_of(5))) == []


def test_the_driver_of_cvat_takes_the_function(fitted_file: Path) -> None:
    from cvat_sdk.auto_annotation import driver

    function = create(str(fitted_file), device="cpu")
    assert isinstance(function.spec, driver.DetectionFunctionSpec)


def test_a_file_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(EmatError, match="does not exist"):
        create("absent.emat")
