import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emat import Example, Segmenter
from emat.methods.base import Features, LossWeights, TaskEvidence, TrainingBatch
from emat.methods.correlation import CorrelationMethod, NetworkMethod, ShotEvidence
from emat.methods.prior import (
    ABSENCE_SHARE,
    LARGEST_LOGIT,
    MASK_MARGIN,
    PRESENCE_SHARE,
    PRIOR_RULES,
    RIVALRY,
    PriorMethod,
    cut_out,
    scores_by_masks,
)
from emat.methods.prototype import Prototype, patch_evidence
from emat.methods.registry import build_method
from emat.methods.trained_head import load_head, save_head, starting_head
from emat.model import Shape
from tests.raises import raises_code

SIZE = 64


@pytest.fixture(scope="module")
def prior() -> PriorMethod:
    torch.manual_seed(0)
    method = build_method("emat-prior", image_size=SIZE, device="cpu", shape=Shape(support_grid=4))
    assert isinstance(method, PriorMethod)
    return method


def features(method: CorrelationMethod | Prototype, seed: int) -> Features:
    pixels = torch.randn(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))
    return method.features(pixels)[0]


def corner_mask() -> torch.Tensor:
    mask = torch.zeros(SIZE, SIZE)
    mask[:40, :30] = 1
    return mask


def test_the_evidence_of_a_shot_is_the_mean_of_both_logits(prior: PriorMethod) -> None:
    pure = NetworkMethod(prior.backbone, prior.network, SIZE)
    free = Prototype(prior.backbone, SIZE)
    (joint,) = prior.compare(
        prior.encode_query(features(prior, 1)), [prior.encode_support(features(prior, 2), corner_mask())]
    )
    (trained,) = pure.compare(
        pure.encode_query(features(pure, 1)), [pure.encode_support(features(pure, 2), corner_mask())]
    )
    untrained = patch_evidence(
        free.encode_query(features(free, 1)),
        free.encode_support(features(free, 2), corner_mask()),
        PRIOR_RULES["efficientnet-lite2"].presence,
    )
    assert trained.presence is not None
    assert joint.presence is not None

    def logit(p: torch.Tensor) -> float:
        return max(-LARGEST_LOGIT, min(LARGEST_LOGIT, math.log(float(p) / (1 - float(p)))))

    presence = (logit(trained.presence) + logit(untrained.presence)) / 2
    assert logit(joint.presence) == pytest.approx(presence, abs=1e-4)
    small = torch.nn.functional.interpolate(
        untrained.logits[:, None], trained.masks.shape[2:], mode="bilinear", align_corners=True
    )[:, 0]
    share = prior.rule.mask_share
    mask = (1 - share) * trained.foreground + share * small
    torch.testing.assert_close(joint.foreground, mask)


def test_a_close_up_judges_presence_and_leaves_the_mask(prior: PriorMethod) -> None:
    photo = np.random.default_rng(2).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    support = prior.encode_example(corner_mask(), lambda: photo, lambda: prior.photo_features(photo))
    assert support.close_up is not None
    assert support.close_up.norm(dim=1).tolist() == pytest.approx([1] * 6)
    other = replace(support, close_up=-support.close_up)
    seen, opposite = prior.compare(prior.encode_query(prior.photo_features(photo)), [support, other])
    assert seen.presence is not None
    assert opposite.presence is not None
    assert float(seen.presence) > float(opposite.presence)
    torch.testing.assert_close(seen.masks, opposite.masks)


def test_an_example_is_encoded_as_if_its_object_were_the_photo(prior: PriorMethod) -> None:
    photo = np.random.default_rng(2).integers(0, 256, (2 * SIZE, SIZE, 3), dtype=np.uint8)
    mask = torch.zeros(2 * SIZE, SIZE)
    mask[:30, :30] = 1
    cut, shown = cut_out(photo, mask, 0.25)
    assert cut.shape[:2] == (38, 38)
    encoded = prior.encode_example(mask, lambda: photo, lambda: prior.photo_features(photo))
    of_cut = prior.encode_support(prior.photo_features(cut), shown)
    torch.testing.assert_close(encoded.foreground, of_cut.foreground)
    torch.testing.assert_close(encoded.cells, of_cut.cells)


def test_a_class_without_a_pixel_has_no_close_up(prior: PriorMethod) -> None:
    photo = np.zeros((SIZE, SIZE, 3), np.uint8)
    empty = prior.encode_example(torch.zeros(SIZE, SIZE), lambda: photo, lambda: prior.photo_features(photo))
    assert empty.close_up is None


@given(
    size=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    of_mask=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    seed=st.integers(0, 1000),
)
def test_a_cut_out_shows_the_whole_class(size: tuple[int, int], of_mask: tuple[int, int], seed: int) -> None:
    draw = np.random.default_rng(seed)
    mask = torch.zeros(of_mask)
    (top, bottom), (left, right) = (sorted(draw.integers(0, side, 2)) for side in of_mask)
    mask[top : bottom + 1, left : right + 1] = 1
    cut, shown = cut_out(np.zeros((*size, 3), np.uint8), mask, 0.25)
    assert min(cut.shape) > 0
    assert shown.sum() == mask.sum()


def test_a_small_thing_is_cut_out_of_its_surroundings() -> None:
    photo = np.zeros((200, 300, 3), np.uint8)
    mask = torch.zeros(100, 150)
    mask[40:60, 70:100] = 1  # 40 x 60 pixels of the photo, from (80, 140)
    cut, shown = cut_out(photo, mask, 0.25)
    assert cut.shape == (90, 90, 3)
    assert shown.shape == (46, 46)
    corner, of_corner = cut_out(photo, (torch.arange(150) < 3) * torch.ones(100, 1), 0.25)
    assert corner.shape == (200, 153, 3), "the photo ends where it ends"
    assert of_corner.shape == (100, 77)


def shot(presence: float, mask: float = 0.3) -> ShotEvidence:
    return evidence_of(presence, torch.full((4, 4), mask))


def evidence_of(presence: float, mask: torch.Tensor) -> ShotEvidence:
    masks = torch.stack([torch.zeros_like(mask), mask])[None]
    return ShotEvidence(torch.tensor([presence], dtype=torch.float64), masks)


def test_a_way_alone_keeps_its_presence_and_an_absent_one_loses_its_mask(prior: PriorMethod) -> None:
    there = prior.decide(TaskEvidence([[shot(0.9)]], (4, 4)))
    absent = prior.decide(TaskEvidence([[shot(0.1)]], (4, 4)))
    assert there.scores == pytest.approx((0.9,))
    assert absent.scores == pytest.approx((0.1,))
    logit = math.log(9)
    assert there.probabilities[0, 0, 0] == pytest.approx(expit(0.3 + PRESENCE_SHARE * logit - MASK_MARGIN))
    lowered = 0.3 - (PRESENCE_SHARE + ABSENCE_SHARE) * logit - MASK_MARGIN
    assert absent.probabilities[0, 0, 0] == pytest.approx(expit(lowered))


def test_a_bias_raises_scores_and_leaves_masks_and_what_a_learner_is_told(
    prior: PriorMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = TaskEvidence([[shot(0.9)], [shot(0.45)]], (4, 4))
    plain, told = prior.decide(evidence), prior.decide_independently(evidence)
    monkeypatch.setattr(prior, "rule", replace(prior.rule, score_bias=0.5))
    biased = prior.decide(evidence)
    assert plain.scores is not None
    assert biased.scores == pytest.approx([expit(math.log(score / (1 - score)) + 0.5) for score in plain.scores])
    assert biased.present == tuple(score >= 0.5 for score in biased.scores or ())
    assert np.array_equal(biased.probabilities, plain.probabilities)
    assert prior.decide_independently(evidence).scores == told.scores
    assert PRIOR_RULES["efficientnet-lite2+mobilesam"].score_bias > 0


def test_ways_are_judged_against_the_likeliest_other_way(prior: PriorMethod) -> None:
    decision = prior.decide(TaskEvidence([[shot(0.9)], [shot(0.6)], [shot(0.2)]], (4, 4)))
    assert decision.scores is not None
    strong, middle = math.log(9), math.log(1.5)
    assert decision.scores[0] == pytest.approx(0.9), "it is no likelier for the others being absent"
    assert decision.scores[1] == pytest.approx(expit(middle - RIVALRY * (strong - middle)))
    assert decision.scores[1] < 0.5


def test_a_way_whose_mask_another_one_explains_has_the_score_of_what_is_left(prior: PriorMethod) -> None:
    sure, unsure, nowhere = (torch.full((8, 8), -9.0) for _ in range(3))
    sure[:, :4] = 9.0
    unsure[:, :6] = 5.0  # the surer way takes two thirds of this mask

    def scores(*ways: tuple[float, torch.Tensor]) -> tuple[float, ...]:
        shots = [[evidence_of(presence, one)] for presence, one in ways]
        found = prior.decide(TaskEvidence(shots, (8, 8)))
        assert found.scores is not None
        assert found.present == tuple(score >= 0.5 for score in found.scores)
        return found.scores

    assert scores((0.9, sure), (0.9, unsure)) == pytest.approx((0.9, 0.3))
    assert scores((0.9, sure), (0.9, nowhere)) == pytest.approx((0.9, 0.9)), "there is no mask to take"
    assert scores((0.9, unsure)) == pytest.approx((0.9,))
    _, rival = scores((0.3, sure), (0.6, unsure))
    assert rival == pytest.approx(0.6), "a way that is probably absent explains nothing"


def test_one_object_that_three_ways_share_is_not_lost_to_all_of_them() -> None:
    maps = torch.full((1, 3, 9, 9), 0.6)
    for way in range(3):
        maps[0, way, :, 3 * way : 3 * way + 3] = 0.9
    assert scores_by_masks(torch.full((1, 3), 0.9), maps)[0].tolist() == pytest.approx([0.6, 0.6, 0.6])


def test_shots_share_the_presence_of_their_way(prior: PriorMethod) -> None:
    decision = prior.decide(TaskEvidence([[shot(0.9, 2.0), shot(0.5, -2.0)]], (4, 4)))
    assert decision.scores == pytest.approx((0.7,))
    change = PRESENCE_SHARE * math.log(0.7 / 0.3) - MASK_MARGIN
    assert decision.probabilities[0, 0, 0] == pytest.approx((expit(2 + change) + expit(-2 + change)) / 2)


def test_training_uses_the_loss_of_emat_alone(prior: PriorMethod) -> None:
    batch = TrainingBatch(
        [features(prior, 1)], [features(prior, 2)], [corner_mask()], torch.ones(1, 8, 8, dtype=torch.uint8)
    )
    pure = NetworkMethod(prior.backbone, prior.network, SIZE)
    with torch.no_grad():
        torch.testing.assert_close(prior.loss(batch, LossWeights()).total, pure.loss(batch, LossWeights()).total)


def expit(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def test_an_empty_mask_is_found_nowhere(prior: PriorMethod) -> None:
    empty = prior.encode_support(features(prior, 2), torch.zeros(SIZE, SIZE))
    decision = prior.decide(TaskEvidence([prior.compare(prior.encode_query(features(prior, 1)), [empty])], (20, 30)))
    assert not decision.label_map.any()


def test_a_head_of_emat_is_a_head_of_emat_prior_and_of_no_other(prior: PriorMethod, tmp_path: Path) -> None:
    file = tmp_path / "head.safetensors"
    save_head(file, prior.trained_weights(), {"method": "emat", "backbone": "efficientnet-lite2"})
    assert load_head(file).method == "emat"
    assert load_head(file, method="emat-prior").method == "emat-prior"
    with raises_code("wrong-head", "cst"):
        load_head(file, method="cst")


def test_training_emat_may_start_from_a_head_of_emat_prior(prior: PriorMethod, tmp_path: Path) -> None:
    file = tmp_path / "head.safetensors"
    save_head(file, prior.trained_weights(), {"method": "emat-prior", "backbone": "efficientnet-lite2"})
    assert starting_head(str(file), "emat", "efficientnet-lite2") is not None
    with raises_code("wrong-head", "cst"):
        starting_head(str(file), "cst", "efficientnet-lite2")


def test_a_fitted_segmenter_with_a_prior_is_one_file(prior: PriorMethod, tmp_path: Path) -> None:
    photo = np.random.default_rng(0).integers(0, 256, (50, 60, 3), dtype=np.uint8)
    mask = np.zeros((50, 60), bool)
    mask[10:30, 10:30] = True
    segmenter = Segmenter(prior).fit([Example(photo, {"thing": mask})])
    segmenter.save(tmp_path / "thing.emat")
    again = Segmenter.load(tmp_path / "thing.emat")
    kept, close_up = (one.examples_[0].encodings["thing"].close_up for one in (segmenter, again))
    torch.testing.assert_close(kept, close_up)
    assert again.method.shape == Shape(support_grid=4)
    assert again.predict(photo).scores == pytest.approx(segmenter.predict(photo).scores)
