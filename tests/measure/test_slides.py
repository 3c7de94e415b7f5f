"""A slide that is measured part by part has the numbers of the same photo measured as a whole."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray

from emat.images.slides import Slide
from emat.inference import slides
from emat.inference.prediction import Prediction
from emat.inference.slides import SlidePart
from emat.inference.tiles import View
from emat.measure import Filters, MeasureOptions, Scene, measure
from emat.measure.properties import GROUPS, Row
from emat.measure.scene import Area
from emat.measure.shares import Within
from emat.measure.slides import SlideMeasurement
from emat.measure.units import Scale
from emat.measure.verdicts import Condition
from tests.raises import raises_code

SIZE = (210, 330)
CLASSES = ("leaf", "lesion")


def tissue() -> NDArray[np.uint8]:
    """A label map with a ring, a diagonal line and small things, many of them on seams of parts of 50 pixels."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    labels = np.zeros(SIZE, np.uint8)
    distance = np.hypot(y - 100, x - 100)
    labels[(distance < 70) & (distance > 40)] = 1
    labels[np.hypot(y - 100, x - 150) < 12] = 2
    labels[np.abs(x - 240 - (y - 100) * 0.7) < 2] = 1
    labels[49, 299], labels[50, 300] = 1, 1  # they touch at the corner of four parts
    labels[200:210, 320:330] = 1  # at the border
    random = np.random.default_rng(0)
    for _ in range(40):
        top, left = random.integers(0, 200), random.integers(0, 320)
        labels[top : top + random.integers(1, 7), left : left + random.integers(1, 7)] = random.integers(1, 3)
    return labels


def parts(labels: NDArray[np.uint8], photo: NDArray[np.uint8], side: int = 50) -> Iterator[SlidePart]:
    for top in range(0, SIZE[0], side):
        for left in range(0, SIZE[1], side):
            view = View(top, left, min(side, SIZE[0] - top), min(side, SIZE[1] - left))
            own = labels[view.area]
            maps = {name: (own == number).astype(np.float32) for number, name in enumerate(CLASSES, start=1)}
            found = Prediction(photo[view.area], dict.fromkeys(CLASSES, 1.0), maps)
            object.__setattr__(found, "label_map", own)  # as it is, without the rules for fringes
            yield SlidePart(view, View(0, 0, view.height, view.width), found)


@pytest.fixture
def photo() -> NDArray[np.uint8]:
    return np.random.default_rng(1).integers(0, 255, (*SIZE, 3), np.uint8)


@pytest.fixture
def slide(photo: NDArray[np.uint8], tmp_path: Path) -> Iterator[Slide]:
    tifffile.imwrite(tmp_path / "slide.tif", photo, tile=(64, 64), photometric="rgb")
    with Slide(tmp_path / "slide.tif") as opened:
        yield opened


def content(rows: list[Row]) -> list[dict[str, object]]:
    """Rows without numbers of objects, which are given in another order, sorted by place."""
    plain = [{key: row[key] for key in row if key != "id" and not key.startswith("id_of_")} for row in rows]
    return sorted(plain, key=lambda row: (str(row["class"]), row["top"], row["left"], row["area"]))  # type: ignore[arg-type]


@pytest.mark.parametrize("touching", ["together", "split"])
def test_parts_give_the_rows_of_the_whole(slide: Slide, photo: NDArray[np.uint8], touching: str) -> None:
    labels = tissue()
    options = MeasureOptions(
        groups=GROUPS,
        scale=Scale(0.5, "um", "test"),
        within=[Within("lesion", "leaf")],
        filters=Filters(Area(3)),
        accept=[Condition.read("leaf.feret_max.max < 80um", CLASSES)],
    )
    scene = Scene.of_label_map(photo, labels, CLASSES, "slide.tif", touching=touching)
    whole = measure(scene, options)
    measurement = SlideMeasurement("slide.tif", slide, CLASSES, options, options.scale, "mask", {}, touching)
    placed = [each for part in parts(labels, photo) for each in measurement.add(part)]
    rows = [row for each in placed for row in each.rows]
    assert [row["id"] for row in rows] == list(range(1, len(whole.objects) + 1))
    if touching == "split":  # where necks are equally narrow, the order of pixels decides; areas of classes stay
        assert sum(int(row["area"] or 0) for row in rows) == sum(int(row["area"] or 0) for row in whole.objects)
        return
    for one, other in zip(content(rows), content(whole.objects), strict=True):
        one.pop("score")
        other.pop("score")
        assert one == pytest.approx(other, nan_ok=True)
    leaves = {row["id"]: row for row in rows if row["class"] == "leaf"}
    homes = [row["id_of_leaf"] for row in rows if row["class"] == "lesion" and row["id_of_leaf"] is not None]
    assert homes
    assert set(homes) <= set(leaves)
    for row, of_whole in zip(measurement.photos({}), whole.photos, strict=True):
        assert {**row, "score": None} == pytest.approx({**of_whole, "score": None}, nan_ok=True)
        assert row["verdict"] == "NOT OK"


def test_no_more_is_kept_than_reaches_into_the_last_band(slide: Slide, photo: NDArray[np.uint8]) -> None:
    labels = np.zeros(SIZE, np.uint8)
    labels[10:20, 10:20] = 1
    labels[45:205, 100:104] = 1
    joiner = slides.SeamJoiner(CLASSES, SIZE)
    sizes = []
    for part in parts(labels, photo):
        regions = list(joiner.add(part))
        if part.view.left + part.view.width == SIZE[1]:
            sizes.append([int(each.mask("leaf").sum()) for each in regions])
    assert sizes == [[100], [], [], [], [640]]


def test_an_object_larger_than_the_memory_is_refused(
    slide: Slide, photo: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slides, "MAX_PIXELS", 1000)
    joiner = slides.SeamJoiner(CLASSES, SIZE)
    *before, last = parts(np.ones(SIZE, np.uint8), photo)
    assert not [region for part in before for region in joiner.add(part)]
    with raises_code("object-too-large"):
        list(joiner.add(last))
