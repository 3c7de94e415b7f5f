"""Scores follow the paper's definitions, and agree with torchmetrics where it computes the same."""

import json
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torchmetrics.functional.classification import multiclass_jaccard_index, multilabel_exact_match

from emat.evaluation.metrics import ScoreCounts, TaskOutcome, compute, count_outcome, judge_task
from tests.raises import raises_code

CLASS_IDS = (3, 5, 8)
VOID = 255
Outcome = tuple[tuple[int, ...], NDArray[np.bool_], NDArray[np.int64], NDArray[np.uint8]]


@st.composite
def outcomes(draw: st.DrawFn) -> Outcome:
    """Ways (one may be outside the fold), predicted presence, label map and query mask of a task."""
    ways = tuple(draw(st.permutations((*CLASS_IDS, 12)))[: draw(st.integers(1, 4))])
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    size = shape[0] * shape[1]
    pixels = st.lists(st.sampled_from((0, 3, 5, 8, 12, VOID)), min_size=size, max_size=size)
    labels = st.lists(st.integers(0, len(ways)), min_size=size, max_size=size)
    present = draw(st.lists(st.booleans(), min_size=len(ways), max_size=len(ways)))
    mask = np.array(draw(pixels), np.uint8).reshape(shape)
    return ways, np.array(present), np.array(draw(labels)).reshape(shape), mask


TASKS = st.lists(outcomes(), min_size=1, max_size=6)


def count_task(
    class_ids: Sequence[int],
    ways: Sequence[int],
    present: Sequence[bool] | NDArray[np.bool_] | None,
    label_map: NDArray[np.integer],
    mask: NDArray[np.integer],
) -> ScoreCounts:
    return count_outcome(judge_task(ways, present, label_map, mask), class_ids)


def count(outcome: Outcome, class_ids: tuple[int, ...] = CLASS_IDS) -> ScoreCounts:
    return count_task(class_ids, *outcome)


def same(one: ScoreCounts, other: ScoreCounts) -> bool:
    return one.class_ids == other.class_ids and np.allclose(one.row, other.row, rtol=0, atol=1e-12)


def merge(counts: Sequence[ScoreCounts], class_ids: Sequence[int]) -> ScoreCounts:
    return sum(counts, start=ScoreCounts.none(class_ids))


def class_ious(counts: ScoreCounts) -> list[float]:
    return [i / u if u else 0.0 for i, u in zip(counts.intersections, counts.unions, strict=True)]


def perfect(outcome: Outcome) -> Outcome:
    ways, _, _, mask = outcome
    label_map = np.zeros(mask.shape, np.int64)
    for label, way in enumerate(ways, 1):
        label_map[mask == way] = label
    return ways, np.array([bool((mask == way).any()) for way in ways]), label_map, mask


def test_false_masks_are_counted_by_hand() -> None:
    mask = np.array([[3, 3, 0, VOID], [0, 0, 8, 8]], np.uint8)
    label_map = np.array([[1, 0, 2, 2], [0, 0, 0, 0]])
    scores = compute(count_task(CLASS_IDS, (3, 5, 12), [True, True, False], label_map, mask))
    assert scores.false_mask_rate == 0.5  # class 5 was given two of eight pixels, class 12 none
    assert scores.false_area == 0.125


def test_without_an_absent_way_there_is_no_false_mask_rate() -> None:
    scores = compute(count_task(CLASS_IDS, (3,), [True], np.array([[1]]), np.array([[3]], np.uint8)))
    assert np.isnan(scores.false_mask_rate)
    assert np.isnan(scores.false_area)


def test_a_small_task_counted_by_hand() -> None:
    mask = np.array([[3, 3, 0, VOID], [5, 0, 8, 8]], np.uint8)
    label_map = np.array([[1, 0, 1, 1], [2, 2, 0, 2]])
    counts = count_task(CLASS_IDS, (3, 5), [True, True], label_map, mask)
    assert counts.intersections.tolist() == [1, 1, 0]
    assert counts.unions.tolist() == [4, 3, 0]  # void and the class that is not a way are background
    assert counts.right == 1
    assert counts.binary.tolist() == [[1, 6], [2, 7]]
    scores = compute(counts)
    assert scores.miou == pytest.approx((1 / 4 + 1 / 3 + 0) / 3)
    assert scores.foreground_background_iou == pytest.approx((1 / 6 + 2 / 7) / 2)


def test_a_task_is_right_if_every_way_is_right() -> None:
    mask = np.array([[3, 0]], np.uint8)
    empty = np.zeros((1, 2), np.int64)
    for present in ([True, False], [True, True], [False, False], [False, True]):
        assert count_task(CLASS_IDS, (3, 5), present, empty, mask).right == (present == [True, False])


def test_a_way_outside_the_fold_counts_for_accuracy_but_not_for_miou() -> None:
    mask = np.array([[12, 12]], np.uint8)
    counts = count_task(CLASS_IDS, (3, 12), [False, True], np.array([[2, 0]]), mask)
    assert counts.right == 1
    assert counts.unions.tolist() == [0, 0, 0]
    assert counts.binary[1].tolist() == [1, 2]


def test_a_class_that_never_occurs_scores_zero_and_is_averaged_in() -> None:
    mask = np.array([[3]], np.uint8)
    counts = count_task((3, 5), (3,), [True], np.array([[1]]), mask)
    assert counts.unions.tolist() == [1, 0]
    assert compute(counts).miou == 0.5


def test_a_false_mask_on_an_empty_query_counts_as_union() -> None:
    mask = np.zeros((2, 2), np.uint8)
    right = count_task((3,), (3,), [False], np.zeros((2, 2), np.int64), mask)
    alarm = count_task((3,), (3,), [True], np.array([[1, 0], [0, 0]]), mask)
    assert right.unions.tolist() == [0]
    assert alarm.unions.tolist() == [1]
    assert compute(right).foreground_background_iou == 0.5  # background 1, foreground of empty union 0


def test_segmentation_alone_has_no_accuracy() -> None:
    mask = np.array([[3]], np.uint8)
    scores = compute(count_task((3,), (3,), None, np.array([[1]]), mask))
    assert np.isnan(scores.accuracy)
    assert scores.miou == 1


def test_nothing_to_score_is_an_error() -> None:
    with raises_code("nothing-evaluated"):
        compute(ScoreCounts.none((3,)))
    with raises_code("no-classes"):
        compute(count_task((), (3,), [True], np.array([[1]]), np.array([[3]], np.uint8)))


def test_maps_that_do_not_fit_are_refused() -> None:
    mask = np.zeros((2, 3), np.uint8)
    with raises_code("mask-size", "(3, 2)", "(2, 3)"):
        count_task((3,), (3,), [True], np.zeros((3, 2), np.int64), mask)
    with raises_code("mask-values"):
        count_task((3,), (3,), [True], np.array([[0, 1, 2], [0, 0, 0]]), mask)
    with raises_code("class-lists-differ"):
        ScoreCounts.none((3,)) + ScoreCounts.none((4,))


@given(TASKS)
def test_miou_agrees_with_torchmetrics_when_every_class_is_a_way(tasks: list[Outcome]) -> None:
    # torchmetrics knows one set of labels: give every task the same ways, and predictions as class labels.
    ways = CLASS_IDS
    lookup = np.zeros(256, np.int64)
    lookup[list(ways)] = [1, 2, 3]
    pairs = [(np.minimum(label_map, 3), mask) for _, _, label_map, mask in tasks]
    counts = merge([count_task(CLASS_IDS, ways, None, p, m) for p, m in pairs], CLASS_IDS)
    scores = compute(counts)
    predicted = torch.from_numpy(np.concatenate([p.ravel() for p, _ in pairs]))
    truth = torch.from_numpy(np.concatenate([lookup[m].ravel() for _, m in pairs]))
    per_class = multiclass_jaccard_index(predicted, truth, num_classes=4, average="none")[1:]
    assert class_ious(counts) == pytest.approx(per_class.tolist())
    assert scores.miou == pytest.approx(per_class.mean().item())
    binary = multiclass_jaccard_index((predicted > 0).long(), (truth > 0).long(), num_classes=2, average="none")
    assert scores.foreground_background_iou == pytest.approx(binary.mean().item())


@given(TASKS)
def test_accuracy_agrees_with_torchmetrics_exact_match(tasks: list[Outcome]) -> None:
    ways = CLASS_IDS
    present = np.array([np.resize(p, 3) for _, p, _, _ in tasks])
    truth = np.array([[(mask == way).any() for way in ways] for _, _, _, mask in tasks])
    counts = [
        count_task(CLASS_IDS, ways, p, np.zeros(mask.shape, np.int64), mask)
        for p, (_, _, _, mask) in zip(present, tasks, strict=True)
    ]
    expected = multilabel_exact_match(torch.tensor(present).float(), torch.tensor(truth).long(), num_labels=3)
    assert compute(merge(counts, CLASS_IDS)).accuracy == pytest.approx(expected.item())


@given(TASKS, st.randoms(use_true_random=False))
def test_order_and_grouping_do_not_matter(tasks: list[Outcome], random: Random) -> None:
    counts = [count(task) for task in tasks]
    whole = merge(counts, CLASS_IDS)
    shuffled = list(counts)
    random.shuffle(shuffled)
    cut = len(counts) // 2
    assert same(whole, merge(shuffled, CLASS_IDS))
    assert same(whole, merge(counts[cut:], CLASS_IDS) + merge(counts[:cut], CLASS_IDS))
    assert same(whole, whole + ScoreCounts.none(CLASS_IDS))


@given(outcomes(), outcomes(), outcomes())
def test_adding_is_associative_and_commutative(a: Outcome, b: Outcome, c: Outcome) -> None:
    x, y, z = count(a), count(b), count(c)
    assert same((x + y) + z, x + (y + z))
    assert same(x + y, y + x)


@given(TASKS, st.permutations(CLASS_IDS))
def test_the_order_of_classes_does_not_matter(tasks: list[Outcome], class_ids: list[int]) -> None:
    scores = compute(merge([count(task) for task in tasks], CLASS_IDS))
    order = tuple(class_ids)
    permuted = compute(merge([count(task, order) for task in tasks], order))
    assert permuted == pytest.approx(scores, nan_ok=True)


@given(outcomes(), st.randoms(use_true_random=False))
def test_the_order_of_ways_does_not_matter(task: Outcome, random: Random) -> None:
    ways, present, label_map, mask = task
    order = list(range(len(ways)))
    random.shuffle(order)
    relabel = np.zeros(len(ways) + 1, np.int64)
    relabel[np.array(order) + 1] = np.arange(1, len(ways) + 1)
    turned = (tuple(ways[i] for i in order), present[order], relabel[label_map], mask)
    assert same(count(task), count(turned))


@given(TASKS)
def test_scores_lie_between_0_and_1(tasks: list[Outcome]) -> None:
    scores = compute(merge([count(task) for task in tasks], CLASS_IDS))
    assert all(0 <= value <= 1 or np.isnan(value) for value in scores)


@given(TASKS)
def test_a_perfect_prediction_scores_1_for_every_class_that_occurs(tasks: list[Outcome]) -> None:
    counts = merge([count(perfect(task)) for task in tasks], CLASS_IDS)
    assert compute(counts).accuracy == 1
    assert class_ious(counts) == [float(union > 0) for union in counts.unions]


MASK = np.array([[3, 3, 0, 255], [5, 0, 8, 8]], np.uint8)
LABELS = np.array([[1, 0, 1, 1], [2, 2, 0, 2]])


@pytest.mark.parametrize("present", [None, (True, False)])
@pytest.mark.parametrize("scores", [None, (0.93, 0.21)])
def test_an_outcome_is_unchanged_after_writing_and_reading(
    present: tuple[bool, ...] | None, scores: tuple[float, ...] | None
) -> None:
    outcome = judge_task((3, 5), present, LABELS, MASK, scores)
    assert TaskOutcome.from_row(json.loads(json.dumps(outcome.row()))) == outcome


def test_every_pixel_is_background_or_foreground_once() -> None:
    assert judge_task((3, 5), None, LABELS, MASK).pixels == MASK.size


def test_a_row_whose_lengths_differ_is_refused() -> None:
    row = judge_task((3, 5), (True, True), LABELS, MASK).row()
    row[3] = (1,)
    with pytest.raises(ValueError, match="2 ways"):
        TaskOutcome.from_row(row)
