import numpy as np
import pytest
import torch
from scipy import ndimage

from emat.images import Pixels
from emat.refine.candidates import Judge, best_candidates, drawing_iou, gradient_of, sheet_size
from emat.refine.mobilesam import EncodedPhoto, MobileSAM
from emat.refine.refiner import can_draw, check_refinement, examples_suit, guided, refine_maps
from emat.refine.regions import Map, Mask, belief, certainty, find_regions
from tests.raises import raises_code

THRESHOLD = 0.35


def scene() -> tuple[Pixels, Mask]:
    """A disc on a slope of grey."""
    y, x = np.mgrid[:150, :200]
    photo = np.stack([60 + 0.3 * x + 0.2 * y] * 3, axis=2).astype(np.uint8)
    disc = (y - 80) ** 2 + (x - 90) ** 2 <= 40**2
    photo[disc] = (200, 120, 60)
    return photo, disc


def blurred(mask: Mask, shift: int = 6) -> Map:
    """A coarse probability map of the mask, off its place."""
    moved = np.roll(mask, shift, axis=1).astype(np.float32)
    return np.clip(2 * THRESHOLD * ndimage.gaussian_filter(moved, 6), 0, 1).astype(np.float32)


def iou(one: Mask, other: Mask) -> float:
    return float((one & other).sum() / (one | other).sum())


def test_mobilesam_draws_the_disc_that_the_map_only_hints_at(mobilesam: MobileSAM) -> None:
    photo, disc = scene()
    map_ = blurred(disc)
    refined = refine_maps(photo, {"disc": map_}, THRESHOLD, "auto", mobilesam)
    assert refined.ways == {"disc": "mobilesam"}
    assert iou(map_ >= THRESHOLD, disc) < 0.9
    assert iou(refined.maps["disc"] >= THRESHOLD, disc) > 0.95
    assert np.array_equal(refined.objects["disc"] > 0, refined.maps["disc"] >= THRESHOLD)


def test_without_weights_the_mask_follows_the_photos_edges() -> None:
    photo, disc = scene()
    map_ = blurred(disc, shift=2)
    refined = refine_maps(photo, {"disc": map_}, THRESHOLD, "auto", sam=None)
    assert refined.ways == {"disc": "guided"}
    assert iou(refined.maps["disc"] >= THRESHOLD, disc) > iou(map_ >= THRESHOLD, disc)


def test_mobilesam_is_not_asked_about_many_small_things() -> None:
    photo, _ = scene()
    map_ = np.zeros((150, 200), np.float32)
    map_[10:140:12, 10:190:12] = 0.9
    map_ = ndimage.maximum_filter(map_, 4)
    refined = refine_maps(photo, {"cell": map_}, THRESHOLD, "auto", MobileSAM())
    assert refined.ways == {"cell": "guided"}
    assert np.array_equal(refined.maps["cell"], map_), "a map with sharp borders stays as it is"


def test_a_map_without_the_class_stays_empty() -> None:
    photo, _ = scene()
    empty = np.full((150, 200), 0.1, np.float32)
    assert not (refine_maps(photo, {"it": empty}, THRESHOLD, "mobilesam", MobileSAM()).maps["it"] >= THRESHOLD).any()


def test_the_chosen_candidate_never_scores_less_than_the_unrefined_region() -> None:
    torch.manual_seed(0)
    photo, disc = scene()
    encoded = EncodedPhoto(torch.randn(1, 256, 64, 64), (150, 200))
    size = sheet_size(encoded.size)
    map_ = ndimage.zoom(blurred(disc), (size[0] / 150, size[1] / 200), order=1).astype(np.float32)
    believed = belief(map_, THRESHOLD)
    regions = find_regions(certainty(map_, THRESHOLD))
    best = best_candidates(MobileSAM(), encoded, photo, regions, believed)  # untrained: its answers are noise
    gradient = gradient_of(ndimage.zoom(photo, (size[0] / 150, size[1] / 200, 1), order=0))
    for region, candidate in zip(regions, best, strict=True):
        assert candidate.score() >= Judge(region, believed, gradient).unrefined().score() - 0.02


def test_classes_compete_for_pixels_after_refinement(mobilesam: MobileSAM) -> None:
    photo, disc = scene()
    sure, unsure = blurred(disc), 0.8 * blurred(disc)
    refined = refine_maps(photo, {"unsure": unsure, "sure": sure}, THRESHOLD, "mobilesam", mobilesam)
    both = (refined.maps["sure"] >= THRESHOLD) & (refined.maps["unsure"] >= THRESHOLD)
    assert both.any()
    assert (refined.maps["sure"][both] >= refined.maps["unsure"][both]).mean() > 0.9


def test_other_ways_are_refused() -> None:
    with raises_code("unknown-choice", "'sharp'"):
        check_refinement("sharp")


def test_thin_and_scattered_examples_do_not_suit() -> None:
    _, disc = scene()
    crack, dots = np.zeros_like(disc), np.zeros_like(disc)
    crack[70:74, 5:195] = True
    dots[5:145:15, 5:195:15] = True
    assert examples_suit([disc])
    assert not examples_suit([crack])
    assert not examples_suit([ndimage.binary_dilation(dots, iterations=3)])


def test_a_blurred_edge_moves_to_the_photos_edge() -> None:
    photo = np.full((80, 120, 3), 40, np.uint8)
    photo[:, 62:] = (200, 180, 90)
    soft = (1 / (1 + np.exp(-(np.arange(120, dtype=np.float32) - 58) / 4)))[None].repeat(80, axis=0)
    blurred = np.asarray(soft, np.float32)
    before, after = blurred >= 0.5, guided(blurred, photo, radius=0.06) >= 0.5
    truth = np.zeros((80, 120), bool)
    truth[:, 62:] = True
    assert (after != truth).sum() < 0.3 * (before != truth).sum()


def test_a_photo_without_edges_changes_little() -> None:
    random = np.random.default_rng(0)
    map_ = np.clip(np.linspace(0, 1, 60, dtype=np.float32)[None].repeat(50, axis=0), 0, 1)
    photo = np.full((50, 60, 3), 128, np.uint8) + random.integers(0, 2, (50, 60, 3)).astype(np.uint8)
    assert np.abs(guided(map_, photo) - map_)[:, 3:-3].max() < 0.05


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (40, 900)])
def test_any_size_gives_its_own_size_and_probabilities(size: tuple[int, int]) -> None:
    random = np.random.default_rng(1)
    photo = random.integers(0, 255, (2 * size[0], 2 * size[1], 3)).astype(np.uint8)
    out = guided(random.random(size, np.float32), photo)
    assert out.shape == size
    assert out.dtype == np.float32
    assert 0 <= out.min() <= out.max() <= 1


def test_mobilesam_draws_a_disc_but_not_a_ring_that_the_photo_does_not_show(mobilesam: MobileSAM) -> None:
    photo, disc = scene()
    encoded = mobilesam.encode(photo)
    ring = disc & ~ndimage.binary_erosion(disc, iterations=10)
    assert drawing_iou(mobilesam, encoded, photo, disc) > 0.9
    assert drawing_iou(mobilesam, encoded, photo, ring) < 0.6
    assert drawing_iou(mobilesam, encoded, photo, np.zeros_like(disc)) == 0
    assert can_draw(mobilesam, photo, disc, encoded)
    assert not can_draw(mobilesam, photo, ring, encoded)


def test_a_coarse_map_follows_the_photo_and_a_sharp_one_stays() -> None:
    photo, disc = scene()
    sharp = np.where(np.roll(disc, 3, axis=1), 0.9, 0.1).astype(np.float32)
    coarse = np.asarray(ndimage.gaussian_filter(sharp, 5), np.float32)
    changed = [int(((guided(map_, photo) >= 0.5) != (map_ >= 0.5)).sum()) for map_ in (sharp, coarse)]
    assert changed[0] < changed[1] / 4
    assert iou(guided(coarse, photo) >= 0.5, disc) > iou(coarse >= 0.5, disc)
