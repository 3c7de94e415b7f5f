"""Dense features: classical filters give the values that calculus says, and maps are read where they lie."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from emat.backbone import ViT, build_backbone
from emat.pixel_learner.features import (
    WORKING_SIDE,
    PixelFeatures,
    classical_features,
    pixel_features,
    side_for,
    working_size,
)
from emat.pixel_learner.regression import PixelClassifier

COLOUR = 3
PER_SCALE = 7  # smoothed colour, gradient, Laplacian, two eigenvalues


def _scale(features: torch.Tensor, number: int) -> torch.Tensor:
    start = COLOUR + PER_SCALE * number
    return features[start : start + PER_SCALE]


def test_a_flat_photo_has_its_colour_and_no_edges() -> None:
    features = classical_features(torch.full((3, 40, 60), 0.5))
    assert features.shape == (31, 20, 30)
    for number in range(4):
        torch.testing.assert_close(_scale(features, number)[:3], torch.full((3, 20, 30), 0.5))
        torch.testing.assert_close(_scale(features, number)[3:], torch.zeros(4, 20, 30), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("number", "scale"), [(0, 1.0), (1, 2.0), (2, 4.0), (3, 8.0)])
def test_a_ramp_has_its_slope_and_a_parabola_its_curvature(number: int, scale: float) -> None:
    x = torch.arange(200.0) / 200
    ramp = _scale(classical_features((0.5 * x).expand(3, 100, 200).contiguous()), number)[:, 25, 50]
    assert float(ramp[3]) == pytest.approx(0.5 / 200 * scale, rel=1e-3)
    bowl = _scale(classical_features((x.square() / 2).expand(3, 100, 200).contiguous()), number)[:, 25, 50]
    assert float(bowl[5]) == pytest.approx(scale**2 / 200**2, rel=1e-2)
    assert float(bowl[6]) == pytest.approx(0, abs=1e-7 * scale**2 + 1e-7)


def test_turning_the_photo_turns_the_features() -> None:
    photo = torch.rand(3, 48, 64, generator=torch.Generator().manual_seed(0))
    turned = classical_features(photo.transpose(1, 2).contiguous())
    torch.testing.assert_close(turned.transpose(1, 2), classical_features(photo), atol=1e-5, rtol=1e-4)


def test_a_linear_classifier_gives_the_same_on_maps_and_on_points() -> None:
    generator = torch.Generator().manual_seed(0)
    features = PixelFeatures(tuple(torch.rand(c, h, w, generator=generator) for c, h, w in ((3, 8, 12), (5, 4, 6))))
    classifier = PixelClassifier(torch.zeros(8), torch.ones(8), torch.rand(2, 8, generator=generator), torch.ones(2))
    rows, columns = torch.meshgrid(torch.arange(8), torch.arange(12), indexing="ij")
    points = torch.stack([(columns + 0.5) / 12, (rows + 0.5) / 8], dim=-1).reshape(-1, 2)
    logits = classifier.logits(features.batch)[0].flatten(1).T
    torch.testing.assert_close(features.at(points) @ classifier.weights.T + 1, logits)


def test_working_size_keeps_the_aspect() -> None:
    assert working_size((300, 600)) == (200, 400)
    assert working_size((1, 1000)) == (4, 400)


def test_the_default_backbone_gives_a_map_of_every_stage() -> None:
    photo = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
    features = pixel_features(photo, build_backbone("efficientnet-lite2", device="cpu"))
    assert [len(one) for one in features.maps] == [31, 31, 16, 24, 48, 88, 120, 208, 352]
    assert features.grid == (150, 200)
    for one in features.maps[2:]:
        assert float(one.square().mean()) == pytest.approx(1, rel=1e-3)


def test_a_vit_gives_the_outputs_of_a_few_blocks() -> None:
    vit = ViT(width=96, depth=6, heads=6, patch=14, pos_grid=37)
    pixels = torch.rand(1, 3, 28, 42)
    maps = vit.dense_maps(pixels)
    assert [tuple(one.shape) for one in maps] == [(1, 96, 2, 3)] * 4
    tokens = vit(pixels)[0, :, 1:].unflatten(0, (6, 6))  # (heads, depth, T, d)
    torch.testing.assert_close(maps[-1][0, :16, 1, 2], tokens[0, 5, 5])


def test_the_side_grows_for_thin_masks_within_limits() -> None:
    def strips(width: int, side: int) -> list[NDArray[np.bool_]]:
        mask = np.zeros((side, side), bool)
        mask[side // 2 : side // 2 + width] = True
        return [mask]

    assert side_for([strips(20, 400)]) == WORKING_SIDE
    assert side_for([strips(2, 400)]) == 2 * WORKING_SIDE, "at most twice the usual side"
    assert WORKING_SIDE < side_for([strips(4, 400)]) < 2 * WORKING_SIDE
    assert side_for([strips(20, 400), strips(2, 400)]) == 2 * WORKING_SIDE, "the thinnest class decides"
    assert side_for([strips(1, 220)]) == 2 * 220, "a small photo is enlarged no further than twice"
    assert side_for([[np.zeros((9, 9), bool)]]) == side_for([]) == WORKING_SIDE
