import pytest

from emat import Example, Segmenter, cross_validate
from tests.inference.spots import spot_examples
from tests.raises import raises_code


def test_every_example_is_predicted_by_a_segmenter_that_has_not_seen_it() -> None:
    examples = [*spot_examples(1, 2, 3), Example(spot_examples(4)[0].photo, {}, absent=["spot"], name="empty")]
    found = cross_validate(examples, Segmenter.load("default", device="cpu", refine=None))
    assert [row.example for row in found.rows] == [example.title for example in examples]
    assert found.iou.keys() == {"spot"}
    assert found.iou["spot"] > 0.5
    assert found.rows[-1].iou is None
    assert not found.rows[-1].present
    assert len(repr(found).splitlines()) == 1 + len(examples)
    assert "<td>spot</td>" in found._repr_html_()


def test_folds_leave_out_several_at_once_and_the_segmenter_stays_as_it_was() -> None:
    segmenter = Segmenter.load("default", device="cpu", refine=None, learn=False).fit(spot_examples(9))
    found = cross_validate(spot_examples(1, 2, 3), segmenter, folds=2)
    assert len(found.rows) == 3
    assert len(segmenter.examples_) == 1


@pytest.mark.parametrize(
    ("count", "folds", "code"), [(1, None, "too-few-examples"), (3, 1, "bad-number"), (3, 4, "bad-number")]
)
def test_what_cannot_be_left_out_is_refused(count: int, folds: int | None, code: str) -> None:
    with raises_code(code):
        cross_validate(spot_examples(*range(count)), folds=folds)
