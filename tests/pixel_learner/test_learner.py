"""The pixel learner with the features of MobileSAM's encoder, whose weights follow a rule here."""

from pathlib import Path

import numpy as np
import pytest
import torch

from emat import Example, Segmenter
from emat.backbone import build_backbone
from emat.backbone.base import Stack
from emat.backbone.mobilesam import MobileSAMEncoder
from emat.backbone.registry import BACKBONES, find_backbone
from emat.methods.base import Thresholds
from emat.methods.registry import build_method
from emat.pixel_learner.cross_validation import ClassChoice
from emat.pixel_learner.features import PixelFeatures, pixel_features
from emat.pixel_learner.learner import LEAST_DRAWN, PixelLearner
from emat.pixel_learner.mixture import HEAD_ALONE, PresenceRule
from emat.pixel_learner.regression import REDUCED, LabelledPhoto, Training
from emat.tensor_files import read_metadata
from tests.raises import raises_code


@pytest.fixture(scope="module")
def encoder() -> MobileSAMEncoder:
    torch.manual_seed(0)
    made = MobileSAMEncoder()
    made.spec = BACKBONES["mobilesam"]
    return made


def test_the_encoder_adds_the_maps_of_its_first_stage_and_neck(encoder: MobileSAMEncoder) -> None:
    photo = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
    backbone = build_backbone("efficientnet-lite2", device="cpu")
    plain, more = pixel_features(photo, backbone), pixel_features(photo, backbone, encoder=encoder)
    assert [tuple(one.shape) for one in more.maps[len(plain.maps) :]] == [(128, 48, 64), (256, 24, 32)]
    assert (plain.encoder_features, more.encoder_features) == (0, 384)
    for one in more.maps[2:]:
        assert float(one.square().mean()) == pytest.approx(1, rel=1e-3)


def test_a_classifier_of_main_directions_is_one_of_all_features() -> None:
    """What is solved for a few directions gives the same logits on whole maps of all features."""
    generator = torch.Generator().manual_seed(0)
    photos = []
    for _ in range(2):
        fine, coarse = (
            torch.randn(3, 12, 16, generator=generator),
            torch.randn(REDUCED + 40, 12, 16, generator=generator),
        )
        mask = torch.zeros(1, 12, 16, dtype=torch.uint8)
        mask[0, 3:8, 4:10] = 1
        photos.append(LabelledPhoto(PixelFeatures((fine + 3 * mask, coarse), encoded=1), mask))
    training = Training(photos, [0, 1])
    trained = training.trained([1.0])
    assert trained.samples.values.shape[1] == 3 + REDUCED
    assert trained.classifier.weights.shape == (1, 3 + REDUCED + 40)
    own = trained.samples.photo == 1
    rows = (trained.samples.points[own][:, 1] * 12).long()
    columns = (trained.samples.points[own][:, 0] * 16).long()
    whole = trained.by_fold[1].logits(photos[1].features.batch)[0, 0]
    torch.testing.assert_close(whole[rows, columns], trained.left_out[own, 0], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("was_left_out", "is_present"), [(False, True), (True, False)])
def test_a_class_of_a_single_example_has_the_benefit_of_the_doubt(was_left_out: bool, is_present: bool) -> None:
    """Head and rule are just below the threshold."""
    learner = PixelLearner.of(build_method("emat", find_backbone("efficientnet-lite2").build()), Thresholds())
    choice = ClassChoice(HEAD_ALONE, PresenceRule(1.0, 0.0, 1.0), False, was_left_out)
    drawn = torch.full((1, 1, 4, 4), 0.4)
    drawn[..., 0] = 0.7
    scores, _ = learner.mix([torch.tensor([0.47])], drawn, torch.zeros(1, 1, 4, 4), [choice], Thresholds(), [[]])
    assert bool(scores[0, 0] >= 0.5) == is_present


@pytest.mark.parametrize(
    ("score", "was_left_out", "whole", "drawn"),
    [(0.7, False, True, 2), (0.3, False, True, 0), (0.7, True, True, 0), (0.7, False, False, 0)],
)
def test_what_is_probably_there_after_a_single_example_is_drawn_somewhere_on_the_whole_photo(
    score: float, was_left_out: bool, whole: bool, drawn: int
) -> None:
    learner = PixelLearner.of(build_method("emat", find_backbone("efficientnet-lite2").build()), Thresholds())
    choice = ClassChoice(HEAD_ALONE, None, False, was_left_out)
    nowhere = torch.linspace(0.1, 0.45, 64).view(1, 1, 8, 8)
    head, logits = [torch.tensor([score])], torch.zeros(1, 1, 8, 8)
    scores, maps = learner.mix(head, nowhere, logits, [choice], Thresholds(), [[]], whole)
    assert round(LEAST_DRAWN * 64) == 2
    assert int((maps >= 0.5).sum()) == drawn, "where it is likeliest"
    assert bool((maps[..., -1, -2:] >= 0.5).all()) == bool(drawn)
    assert bool(scores[0, 0] >= 0.5) == bool(drawn), "what is not drawn is not there"


def test_the_parts_of_a_stack_are_learnt_from_as_if_they_were_alone() -> None:
    method = build_method("emat", find_backbone("efficientnet-lite2+mobilesam").build())
    stack = method.backbone
    assert isinstance(stack, Stack)
    learner = PixelLearner.of(method, Thresholds())
    assert learner.backbone is stack.parts[0]
    assert learner.encoder is stack.parts[1]
    assert PixelLearner.of(method, Thresholds(), encoder=False).encoder is None


def test_a_file_says_which_features_it_needs(
    encoder: MobileSAMEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(0)
    mask = np.zeros((48, 64), bool)
    mask[10:30, 20:40] = True
    photo = draw.integers(0, 120, (48, 64, 3)).astype(np.uint8)
    photo[mask] += 100
    segmenter = Segmenter.load("prototype", device="cpu", learn=True, size=96)
    assert segmenter.learner is not None
    segmenter.learner = PixelLearner(segmenter.learner.backbone, segmenter.thresholds, encoder)
    segmenter.fit([Example(photo, {"it": mask})]).save(tmp_path / "it.emat")
    assert read_metadata(tmp_path / "it.emat")["features"] == "mobilesam"
    monkeypatch.setattr("emat.pixel_learner.learner.find_mobilesam", lambda: None)
    with raises_code("weights-missing"):
        Segmenter.load(tmp_path / "it.emat", device="cpu")
    assert Segmenter.load(tmp_path / "it.emat", device="cpu", learn=False).classes_ == ("it",)
    monkeypatch.setattr("emat.pixel_learner.learner.find_mobilesam", lambda: tmp_path)
    monkeypatch.setattr("emat.pixel_learner.learner._shared_encoder", lambda device: encoder)
    loaded = Segmenter.load(tmp_path / "it.emat", device="cpu")
    np.testing.assert_array_equal(loaded.predict(photo).label_map, segmenter.predict(photo).label_map)
