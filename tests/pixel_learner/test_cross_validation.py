"""The learner and what is chosen by leaving photos out, on maps made by a rule."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from emat.images import VOID as UNKNOWN
from emat.pixel_learner.competition import Rivals, all_rivals, calibrate, margins
from emat.pixel_learner.cross_validation import Learnt, cross_validate
from emat.pixel_learner.features import PixelFeatures
from emat.pixel_learner.mixture import (
    LEARNER_LEAST,
    LEARNER_MOST,
    LEAST_SHARE,
    MASK_DECIDES,
    SURE,
    WEIGHTS,
    LeftOut,
    Mixture,
    PresenceRule,
    best_mixture,
    best_presence,
    mixture_of_one,
    presence_rule,
    rule_from_backgrounds,
    rule_of_one,
)
from emat.pixel_learner.regression import (
    BIAS_PENALTY,
    LOGIT_SCALE,
    PENALTY,
    LabelledPhoto,
    PixelSamples,
    content_order,
    photo_sums,
    solve,
    train,
)

SIZE = (20, 30)
FEATURES, PIXELS = 5, 40


def _photo(seed: int, shown: bool = True, classes: int = 1) -> LabelledPhoto:
    """The first map's feature 0 is high inside the mask; the rest is noise."""
    generator = torch.Generator().manual_seed(seed)
    masks = torch.zeros(classes, *SIZE, dtype=torch.uint8)
    if shown:
        left = 2 + seed % 10
        masks[0, 5:15, left : left + 10] = 1
    fine = torch.randn(4, *SIZE, generator=generator)
    fine[0] += 6 * masks[0]
    return LabelledPhoto(PixelFeatures((fine, torch.randn(3, 5, 8, generator=generator))), masks)


def _no_head(photo: int, c: int, others: Sequence[int]) -> torch.Tensor:
    return torch.full(SIZE, -1.0)


def _learnt(photos: Sequence[LabelledPhoto]) -> Learnt:
    return cross_validate(photos, _no_head, max(SIZE)).learnt


def _logits(learnt: Learnt, photo: LabelledPhoto) -> torch.Tensor:
    """The classifier's logits (N, h, w) on a photo."""
    return learnt.classifier.logits(photo.features.batch)[0]


def test_it_finds_what_the_examples_show() -> None:
    trained = train([_photo(1), _photo(2)])
    new = _photo(3)
    found = trained.classifier.logits(new.features.batch)[0, 0] >= 0
    assert (found == (new.masks[0] == 1)).float().mean() > 0.97


def test_the_order_of_photos_changes_nothing() -> None:
    photos = [_photo(seed) for seed in range(4)]
    one, other = _learnt(photos), _learnt(photos[::-1])
    for name in ("mean", "spread", "weights", "bias", "mixtures", "presence", "presence_right"):
        assert torch.equal(torch.nan_to_num(getattr(one, name)), torch.nan_to_num(getattr(other, name))), name
    assert torch.equal(one.left_out_iou, other.left_out_iou.flip(0))


def test_undecided_pixels_change_nothing_whatever_lies_below() -> None:
    photos = [_photo(1), _photo(2)]
    hidden = []
    for value in (0, 1):
        masks = photos[0].masks.clone()
        masks[:, :, 15:] = value
        masks[:, :, 15:] = UNKNOWN
        hidden.append(train([LabelledPhoto(photos[0].features, masks), photos[1]]))
    assert torch.equal(hidden[0].classifier.weights, hidden[1].classifier.weights)
    assert not (hidden[0].samples.labels[hidden[0].samples.photo == 0] == UNKNOWN).any()


def test_a_left_out_photo_does_not_train_its_own_judge() -> None:
    photos = [_photo(seed) for seed in range(3)]
    whole = train(photos, [0, 1, 2])
    alone = train(photos[1:])
    inside = whole.samples.photo == 0
    # Features are standardised over all photos, so the two agree in their verdicts and not in every digit.
    other = alone.classifier.logits(photos[0].features.batch)[0, 0]
    rows = (whole.samples.points[inside][:, 1] * SIZE[0]).long()
    columns = (whole.samples.points[inside][:, 0] * SIZE[1]).long()
    same = (whole.left_out[inside, 0] >= 0) == (other[rows, columns] >= 0)
    assert same.float().mean() > 0.97


def test_a_class_of_another_photo_is_told_apart() -> None:
    first, second = _photo(1, classes=2), _photo(2, classes=2)
    swapped = LabelledPhoto(PixelFeatures((-second.features.maps[0], second.features.maps[1])), second.masks.flip(0))
    trained = train([first, swapped])
    found = trained.classifier.logits(first.features.batch)[0]
    inside = first.masks[0] == 1
    assert float(found[0][inside].mean()) > 1 + float(found[1][inside].mean())


def test_a_head_that_finds_nothing_is_left_out_of_the_mixture_and_expectation_is_high() -> None:
    learnt = _learnt([_photo(seed) for seed in range(4)])
    assert learnt.mixture(0).learner > 0
    assert float(learnt.left_out_iou.mean()) > 0.9


def test_negatives_calibrate_presence() -> None:
    photos = [_photo(seed) for seed in range(3)] + [_photo(seed, shown=False) for seed in range(3, 6)]
    learnt = _learnt(photos)
    rule = learnt.presence_rule(0)
    assert rule is not None
    assert float(learnt.presence_right[0]) == 1
    assert torch.isnan(learnt.left_out_iou[3:]).all()
    for seed, shown in ((10, True), (11, False)):
        logits = learnt.mixture(0).logits(torch.full(SIZE, -1.0), _logits(learnt, _photo(seed, shown))[0])
        assert bool(rule.logit(logits[None]) > 0) is shown


@pytest.mark.parametrize("certainty", [-2.0, 4.0])
def test_one_photo_follows_how_sure_the_head_is_of_it(certainty: float) -> None:
    def head(photo: int, c: int, others: Sequence[int]) -> torch.Tensor:
        assert others == [photo]
        return torch.where(_photo(1).masks[0] == 1, certainty, -9.0)

    learnt = cross_validate([_photo(1)], head, max(SIZE)).learnt
    assert tuple(learnt.mixture(0)) == pytest.approx(tuple(mixture_of_one(certainty)))
    sure = certainty > SURE
    assert learnt.mixture(0).learner == pytest.approx(LEARNER_LEAST if sure else LEARNER_MOST)
    assert (learnt.presence_rule(0) is None) is sure


def test_the_surer_the_head_the_less_the_learner_counts() -> None:
    weights = [mixture_of_one(quarter / 4).learner for quarter in range(-8, 24)]
    assert weights == sorted(weights, reverse=True)
    assert len(set(weights)) > 3


def test_beside_one_photo_those_without_the_class_set_the_level() -> None:
    learnt = _learnt([_photo(0), _photo(1, shown=False), _photo(2, shown=False)])
    rule = learnt.presence_rule(0)
    assert rule is not None
    for seed, shown in ((10, True), (11, False)):
        found = learnt.mixture(0).logits(torch.full(SIZE, -1.0), _logits(learnt, _photo(seed, shown))[0])
        assert bool(rule.logit(found[None]) > 0) is shown
    assert rule_of_one([-3.0, -1.0], 0.1).level == 0
    assert rule_of_one([2.0], 0.1).level > 2


def test_the_better_part_is_chosen() -> None:
    inside = torch.tensor([True, True, False, False])
    right = torch.where(inside, 3.0, -3.0)
    shares = torch.full((4,), 0.25)
    for head, learner, check in ((right, -right, "head"), (-right, right, "learner")):
        chosen = best_mixture([LeftOut(head, learner, inside, shares)] * 3)
        assert chosen.iou == 1
        assert getattr(chosen.mixture, check) > 0


def test_the_shift_is_the_mean_of_what_suits_each_photo() -> None:
    inside, shares, head = torch.tensor([True, False]), torch.full((2,), 0.5), torch.full((2,), -0.01)
    photos = [LeftOut(head, torch.tensor([-level + 0.1, -level - 0.4]), inside, shares) for level in (0.25, 2.25)]
    chosen = best_mixture(photos)
    mixture = chosen.mixture
    assert (mixture.head, mixture.learner) == WEIGHTS[0], "weights that do equally well leave the usual ones"
    assert mixture.shift == pytest.approx((0.375 + 2.375) / 2)
    assert [each.shift for each in chosen.by_others] == pytest.approx([2.375, 0.375]), "each is judged by the others"
    assert chosen.iou < 1


def test_a_class_that_a_stronger_one_covers_gets_its_pixels_back() -> None:
    """Both classes have higher logits on their own pixels, but the second always has the highest of all."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(3).repeat(100)  # the classes 0 and 1, and background
    logits = torch.randn(300, 2, generator=generator) / 10
    logits[truth == 0] += torch.tensor([1.0, 2.0])
    logits[truth == 1] += torch.tensor([0.2, 4.0])
    logits[truth == 2] -= 2
    inside = truth[:, None] == torch.arange(2)
    shares = torch.full((300,), 1 / 300)
    rivals = Rivals(logits, inside, torch.ones_like(inside), shares, torch.zeros(300, dtype=torch.long), all_rivals(2))
    assert float(rivals.iou(rivals.won())[0, 0]) == 0
    mixtures, better = calibrate(rivals, [Mixture(0.0, 1.0, 0.0)] * 2, [True, True])
    found = rivals.won(better)
    assert rivals.iou(found)[0].min() > 0.7
    confusion = rivals.confusion(found)
    assert confusion[0, 0] > 0.7
    again = torch.stack([mixture.logits(logits[:, 0], logits[:, c]) for c, mixture in enumerate(mixtures)], dim=1)
    torch.testing.assert_close(again, better, rtol=1e-4, atol=1e-4)


def test_a_lesion_that_is_called_leaf_too_is_not_confused_with_it() -> None:
    logits = torch.tensor([[2.0, 1.0, -1.0], [-2.0, 1.0, -1.0], [-1.0, -1.0, 3.0]])  # lesion on its leaf, leaf, stem
    inside = torch.tensor([[True, True, False], [False, True, False], [False, False, True]])
    shares, photo = torch.full((3,), 1 / 3), torch.zeros(3, dtype=torch.long)
    rivals = Rivals(logits, inside, torch.ones_like(inside), shares, photo, [[2], [2], [0, 1]])
    confusion = rivals.confusion(rivals.won())
    expected = [[1.0, torch.nan, 0.0], [torch.nan, 1.0, 0.0], [0.0, 0.0, 1.0]]
    torch.testing.assert_close(confusion, torch.tensor(expected), equal_nan=True)


def test_what_cannot_be_told_apart_is_in_the_confusion() -> None:
    photos = [_photo(seed, classes=2) for seed in range(6)]
    alike = [
        LabelledPhoto(one.features, one.masks.flip(0) if index % 2 else one.masks) for index, one in enumerate(photos)
    ]
    learnt = _learnt(alike)
    assert learnt.confusion is not None
    called_the_other = learnt.confusion[0, 1] + learnt.confusion[1, 0]
    assert called_the_other > 0.5
    assert _learnt([_photo(seed) for seed in range(3)]).confusion is None


def test_photos_without_a_class_that_do_harm_do_not_count() -> None:
    """They show the very thing without a mask, as a user forgets some: with their full weight the class is lost."""
    shown = [_photo(seed) for seed in range(3)]
    forgotten = [LabelledPhoto(_photo(seed).features, torch.zeros_like(shown[0].masks)) for seed in range(3, 9)]
    alone, beside = _learnt(shown), _learnt([*shown, *forgotten])
    assert float(beside.left_out_iou[:3].mean()) > float(alone.left_out_iou.mean()) - 0.05
    new = _photo(12)
    found = beside.mixture(0).logits(torch.full(SIZE, -1.0), _logits(beside, new)[0]) >= 0
    assert (found == (new.masks[0] == 1)).float().mean() > 0.9


def test_a_tiny_class_keeps_its_mass_beside_photos_without_it() -> None:
    def tiny(seed: int, shown: bool = True) -> LabelledPhoto:
        generator = torch.Generator().manual_seed(seed)
        masks = torch.zeros(1, 100, 150, dtype=torch.uint8)
        if shown:
            masks[0, 20 + seed : 22 + seed, 40:42] = 1
        fine = torch.randn(4, 100, 150, generator=generator)
        fine[0] += 8 * masks[0]
        return LabelledPhoto(PixelFeatures((fine,)), masks)

    def no_head(photo: int, c: int, others: Sequence[int]) -> torch.Tensor:
        return torch.full((100, 150), -1.0)

    photos = [tiny(seed) for seed in range(4)] + [tiny(seed, shown=False) for seed in range(4, 8)]
    learnt = cross_validate(photos, no_head, 150).learnt
    rule = learnt.presence_rule(0)
    assert rule is not None
    for seed, shown in ((10, True), (11, True), (12, False), (13, False)):
        new = tiny(seed, shown)
        mixed = learnt.mixture(0).logits(torch.full((100, 150), -1.0), _logits(learnt, new)[0])
        assert bool(rule.logit(mixed[None]) > 0) is shown
        if shown:
            found, inside = mixed >= 0, new.masks[0] == 1
            assert float((found & inside).sum() / (found | inside).sum()) > 0.5


def test_presence_looks_at_the_share_that_separates() -> None:
    """Photos with the class have a few sure pixels; over a larger share of the photo all look alike."""
    generator = torch.Generator().manual_seed(0)
    without = [torch.randn(50, 50, generator=generator) for _ in range(4)]
    shown = [torch.randn(50, 50, generator=generator) - 0.1 for _ in range(4)]
    for one in shown:
        one[:2, :5] = 6.0
    found = best_presence(shown, without, [0.5, 0.004])
    assert found.rule is not None
    assert found.rule.share == 0.004
    assert found.right == 1
    assert 0.9 < found.auroc < 1, "sixteen pairs do not prove that all are told apart"


def test_presence_is_judged_beside_rivals() -> None:
    """The class has the same logits everywhere; where it is absent, a rival has higher ones."""
    own = torch.full((2, 1, 10, 10), 3.0)
    rival = torch.stack([torch.full((1, 10, 10), -2.0), torch.full((1, 10, 10), 5.0)])
    shown, without = margins(torch.cat([own, rival], dim=1), all_rivals(2))[:, 0]
    found = best_presence([shown, shown], [without, without], [0.1])
    assert found.rule is not None
    assert [bool(found.rule.logit(each[None]) > 0) for each in (shown, without)] == [True, False]
    assert best_presence([own[0, 0]] * 2, [own[1, 0]] * 2, [0.1]).rule is None


def test_a_missed_class_costs_more_than_a_false_alarm() -> None:
    close = presence_rule([2.0, 3.0, 4.0], [0.0, 1.0, 2.5], 0.1)
    assert close is not None
    assert close.level < 2.0, "no photo that shows the class falls below"
    alike = presence_rule([1.0, 3.0, 2.1], [2.0, 2.05, 1.9], 0.1)
    assert alike is not None
    assert alike.level < 1.0, "where nothing separates the photos, no class is called absent"


def test_classes_that_may_overlap_do_not_compete() -> None:
    """The second class lies inside of the first, as a lesion on a leaf."""
    photos = []
    for seed in range(4):
        photo = _photo(seed, classes=2)
        left = 2 + seed % 10
        photo.masks[1, 8:12, left + 3 : left + 7] = 1
        photo.features.maps[0][1] += 6 * photo.masks[1]
        photos.append(photo)
    apart = cross_validate(photos, _no_head, max(SIZE), [[], []]).learnt.left_out_iou
    competing = cross_validate(photos, _no_head, max(SIZE)).learnt.left_out_iou
    assert float(apart.min()) > 0.85
    assert float(competing.min()) < 0.85


def test_presence_that_nothing_separates_is_not_invented() -> None:
    assert presence_rule([1.0, 2.0], [3.0], 0.1) is None
    rule = presence_rule([5.0, 6.0], [-5.0, -4.0], 0.1)
    assert isinstance(rule, PresenceRule)
    assert -4 < rule.level < 5


def test_scores_tell_photos_apart_even_where_presence_is_a_guess() -> None:
    rule = presence_rule([2.0, 6.0, 3.0, 5.0], [1.9, 5.9, 4.0, 3.5], 0.1)
    assert rule is not None
    scores = [float(torch.sigmoid(rule.logit(torch.full((1, 4, 4), value)))) for value in (2.0, 4.0, 6.0, 8.0)]
    assert min(scores) >= 0.5, "nothing is called absent"
    assert scores == sorted(scores)
    assert scores[-1] < 0.999, "a score of 1 tells nothing apart"


def test_without_negatives_the_backgrounds_set_presence_and_no_example_falls_below() -> None:
    rule = rule_from_backgrounds([4.0, 1.0], [-4.0, -2.0], 0.1)
    assert -3 < rule.level < 1
    assert rule_from_backgrounds([2.0, 1.0], [3.0], 0.1).level < 1
    learnt = _learnt([_photo(seed) for seed in range(3)])
    assert learnt.presence_rule(0) is not None
    assert not learnt.knows_absence(0)
    assert _learnt([_photo(0), _photo(1), _photo(2, shown=False)]).knows_absence(0)


def test_two_photos_of_a_class_are_never_left_out_together() -> None:
    """The second class is on two photos of the first that would fall into the same of the five groups."""
    photos = [_photo(seed, classes=2) for seed in range(6)]
    photos = [photos[index] for index in content_order(photos)]
    for index in (0, 5):
        masks = photos[index].masks.clone()
        masks[1, 16:] = 1
        photos[index] = LabelledPhoto(photos[index].features, masks)
    learnt = _learnt(photos)
    assert torch.isnan(learnt.left_out_iou[:, 1]).tolist() == [False, True, True, True, True, False]
    assert not torch.isnan(learnt.left_out_iou[:, 0]).any()


def _strokes(photo: LabelledPhoto) -> LabelledPhoto:
    """The photo with three known columns: all but those are unknown."""
    masks = torch.full_like(photo.masks, UNKNOWN)
    masks[:, :, 9:12] = photo.masks[:, :, 9:12]
    return LabelledPhoto(photo.features, masks)


def test_strokes_measure_neither_iou_nor_area() -> None:
    learnt = _learnt([_strokes(_photo(seed)) for seed in range(3)])
    assert torch.isnan(learnt.left_out_iou).all()
    rule = learnt.presence_rule(0)
    assert rule is not None
    assert tuple(rule) == pytest.approx(tuple(MASK_DECIDES))
    without = [_photo(seed, shown=False) for seed in range(3, 6)]
    rule = _learnt([*(_strokes(_photo(seed)) for seed in range(3)), *without]).presence_rule(0)
    assert rule is not None
    assert rule.share == pytest.approx(LEAST_SHARE)
    mixed = _learnt([_strokes(_photo(0)), _photo(1), _photo(2)])
    assert torch.isnan(mixed.left_out_iou[:, 0]).tolist() == [True, False, False]


def test_strokes_of_one_class_do_not_say_that_another_is_absent() -> None:
    first, second = ([_photo(seed, classes=2) for seed in seeds] for seeds in ((0, 1), (2, 3)))
    other = [LabelledPhoto(photo.features, photo.masks.flip(0)) for photo in second]
    assert _learnt([*first, *other]).knows_absence(0)
    assert not _learnt([*first, *(_strokes(photo) for photo in other)]).knows_absence(0)


@pytest.mark.parametrize("unknown_class", [0, 1])
def test_a_class_that_is_nowhere_known_gives_finite_weights(unknown_class: int) -> None:
    photo = _photo(1, classes=2)
    masks = photo.masks.clone()
    masks[unknown_class] = UNKNOWN
    trained = train([LabelledPhoto(photo.features, masks)])
    assert bool(torch.isfinite(trained.classifier.weights).all())


# The regression from sums is the same as from all pixels at once, whatever is left out.


def _samples(*photos: str, classes: int = 1, seed: int = 0) -> PixelSamples:
    """Photos of random pixels: "+" shows class 0, "-" does not, "?" is unknown in its second half."""
    generator = torch.Generator().manual_seed(seed)
    count = len(photos) * PIXELS
    labels = torch.zeros(count, classes, dtype=torch.uint8)
    for index, kind in enumerate(photos):
        first = index * PIXELS
        if kind != "-":
            labels[first : first + 10, 0] = 1
        if kind == "?":
            labels[first + PIXELS // 2 : first + PIXELS, 0] = UNKNOWN
    values = torch.randn(count, FEATURES, generator=generator)
    values[:, 0] += 2.0 * (labels[:, 0] == 1)
    photo = torch.arange(len(photos)).repeat_interleave(PIXELS)
    return PixelSamples(values, labels, torch.full((count,), 1 / PIXELS), torch.zeros(count, 2), photo)


def _plain(samples: PixelSamples, weights: torch.Tensor) -> torch.Tensor:
    """The textbook solution: weights (n,) of the pixels."""
    values = torch.cat([samples.values, torch.ones(len(samples.values), 1)], dim=1).double()
    target = torch.where(samples.labels[:, 0] == 1, 1.0, -1.0).double()
    share = (weights / weights.sum()).double()
    penalty = torch.full((FEATURES + 1,), PENALTY).double()
    penalty[-1] = BIAS_PENALTY
    products = values.T @ (share[:, None] * values) + penalty.diag()
    return LOGIT_SCALE * torch.linalg.solve(products, values.T @ (share * target)).float()


def _weights(samples: PixelSamples, photos: list[float]) -> torch.Tensor:
    known = samples.labels[:, 0] != UNKNOWN
    return torch.tensor(photos)[samples.photo] * samples.shares * known


def test_the_sums_give_the_textbook_solution() -> None:
    samples = _samples("+", "?", "+")
    found = solve(photo_sums(samples, [0, 1, 2]), 0)
    torch.testing.assert_close(found, _plain(samples, _weights(samples, [1, 1, 1])), rtol=1e-4, atol=1e-5)


def test_a_fold_that_is_left_out_was_never_there() -> None:
    samples = _samples("+", "?", "+", "-")
    found = solve(photo_sums(samples, [0, 1, 0, 1]), 0, without=0)
    torch.testing.assert_close(found, _plain(samples, _weights(samples, [0, 1, 0, 1])), rtol=1e-4, atol=1e-5)


def test_photos_without_the_class_weigh_no_more_than_those_with_it() -> None:
    samples = _samples("+", "-", "-", "-")
    found = solve(photo_sums(samples, [0, 1, 2, 3]), 0)
    third = 1 / 3
    torch.testing.assert_close(
        found, _plain(samples, _weights(samples, [1, third, third, third])), rtol=1e-4, atol=1e-5
    )


def test_photos_that_count_alike_share_their_sums_and_change_nothing() -> None:
    samples = _samples("+", "+", "-", "+")
    together, apart = photo_sums(samples, [0, 0, 0, 1]), photo_sums(samples, [0, 1, 2, 3])
    assert [unit.count for unit in together] == [2, 1, 1]
    torch.testing.assert_close(solve(together, 0), solve(apart, 0), rtol=1e-4, atol=1e-5)


def test_a_class_of_which_nothing_is_known_gives_zeros() -> None:
    samples = _samples("+", classes=2)
    samples.labels[:, 1] = UNKNOWN
    assert not solve(photo_sums(samples, [0]), 1).any()


def test_a_threshold_of_its_own_suits_a_photo_better_than_one_for_all() -> None:
    def lit(seed: int) -> LabelledPhoto:
        """A photo on which everything, inside and outside of the mask, looks more or less like the class."""
        photo = _photo(seed)
        fine = photo.features.maps[0].clone()
        fine[0] += 3 * float(torch.randn(1, generator=torch.Generator().manual_seed(100 + seed)))
        return replace(photo, features=PixelFeatures((fine, *photo.features.maps[1:])))

    learnt = _learnt([lit(seed) for seed in range(5)])
    threshold = learnt.threshold(0)
    assert threshold is not None
    by_photo: list[float] = []
    by_all: list[float] = []
    for seed in range(10, 30):
        new = lit(seed)
        logits = learnt.mixture(0).logits(torch.zeros(SIZE), _logits(learnt, new)[0])
        truth = new.masks[0] == 1
        for border, ious in ((threshold.on(logits[None]), by_photo), (0.0, by_all)):
            mask = logits >= border
            ious.append(float((mask & truth).sum() / (mask | truth).sum()))
    assert sum(by_photo) > sum(by_all)
    assert _learnt([lit(seed) for seed in range(2)]).threshold(0) is None, "two photos are too few"
