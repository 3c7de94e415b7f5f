"""CVAT: the function gives the objects of CVAT's own SDK. Skipped where `cvat-sdk` is not installed, as in CI."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from emat import Segmenter
from emat.integrations.cvat import create
from tests.raises import raises_code
from tests.scale.conftest import photo_of

cvat_sdk = pytest.importorskip("cvat_sdk", reason="CVAT needs the extra `cvat`, which is not part of `all`")


def context(threshold: float | None = None, polygons: bool = False) -> Any:
    """What the SDK gives to `detect`."""
    from cvat_sdk.auto_annotation.driver import _DetectionFunctionContextImpl

    return _DetectionFunctionContextImpl(frame_name="a.png", conf_threshold=threshold, conv_mask_to_poly=polygons)


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


@pytest.mark.parametrize(("kind", "polygons"), [("mask", False), ("any", False), ("polygon", True)])
def test_the_driver_of_cvat_annotates_a_task_with_the_function(
    fitted_file: Path, fitted: Segmenter, monkeypatch: pytest.MonkeyPatch, kind: str, polygons: bool
) -> None:
    """The SDK's `annotate_task` as it is; only the server is missing, whose task and upload are given here."""
    from cvat_sdk.auto_annotation import driver

    labels = [
        SimpleNamespace(id=40 + number, name=name, type=kind, attributes=[], sublabels=[])
        for number, name in enumerate(fitted.classes_)
    ]
    frames = [SimpleNamespace(frame_index=n, frame_name=f"{n}.png", media=_Media(n)) for n in (5, 6)]
    task = SimpleNamespace(labels=labels, samples=frames)
    monkeypatch.setattr(driver, "TaskDataset", lambda *_, **__: task)
    uploaded: list[Any] = []
    api = SimpleNamespace(update_annotations=lambda number, labeled_data_request: uploaded.append(labeled_data_request))
    client: Any = SimpleNamespace(logger=logging.getLogger("cvat"), tasks=SimpleNamespace(api=api))
    function = create(str(fitted_file), device="cpu")
    driver.annotate_task(client, 7, function, clear_existing=True, conv_mask_to_poly=polygons)
    (request,) = uploaded
    found = {(shape.frame, shape.label_id) for shape in request.shapes}
    assert found == {
        (frame, 40 + fitted.classes_.index(name))
        for frame in (5, 6)
        for name in fitted.predict(photo_of(frame)).present
    }
    assert {str(shape.type) for shape in request.shapes} == {"polygon" if polygons else "mask"}


class _Media:
    """The photo of a frame, as the SDK's media elements give it."""

    def __init__(self, number: int) -> None:
        self._number = number

    def load_image(self) -> Image.Image:
        return Image.fromarray(photo_of(self._number))


def test_a_file_that_is_not_there_is_one_sentence() -> None:
    with raises_code("no-such-file"):
        create("absent.emat")
