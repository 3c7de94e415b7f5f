"""Prompted methods on a drawn photo, with MobileSAM's real weights."""

import numpy as np
import pytest
import torch

from emat.images import Pixels
from emat.methods.base import TaskEvidence
from emat.methods.registry import build_method
from emat.refine.mask_decoder import Guidance
from emat.refine.mobilesam import MobileSAM, Prompt
from tests.refine.conftest import mobilesam

__all__ = ["mobilesam"]  # the fixture


def disc(x: int, y: int, radius: int = 45) -> tuple[Pixels, np.ndarray]:
    """An orange disc on a slope of green, and its mask."""
    rows, columns = np.mgrid[:192, :256]
    photo = np.stack([40 + 0.1 * columns, 90 + 0.2 * rows, 60 + 0 * rows], axis=2).astype(np.uint8)
    inside = (columns - x) ** 2 + (rows - y) ** 2 <= radius**2
    photo[inside] = (230, 120, 20)
    return photo, inside


@pytest.mark.parametrize("name", ["persam", "matcher", "gf-sam"])
def test_the_object_is_drawn_with_its_outline(name: str, mobilesam: MobileSAM, monkeypatch: pytest.MonkeyPatch) -> None:
    from emat.refine import mobilesam as module

    monkeypatch.setattr(module, "_loaded", [mobilesam])
    method = build_method(name, image_size=256, device="cpu")
    (shown, mask), (asked, wanted) = disc(80, 80), disc(170, 110)
    support = method.encode_support(method.photo_features(shown), torch.from_numpy(mask).float())
    evidence = method.compare(method.encode_query(method.photo_features(asked)), [support])
    found = method.decide(TaskEvidence([evidence], wanted.shape)).label_map > 0
    assert (found & wanted).sum() / (found | wanted).sum() > 0.85


def test_guidance_changes_what_mobilesam_draws(mobilesam: MobileSAM) -> None:
    photo = mobilesam.encode(disc(80, 80)[0])
    likely = torch.zeros(64, 64)
    likely[20:40, 20:40] = 3.0
    plain, guided, nothing = mobilesam.answer(
        photo,
        [
            Prompt(inside=[(80, 80)]),
            Prompt(inside=[(80, 80)], guidance=Guidance(torch.zeros(256), likely)),
            Prompt(inside=[(80, 80)], guidance=Guidance(torch.zeros(256), torch.zeros(64, 64))),
        ],
    )
    torch.testing.assert_close(plain.logits, nothing.logits)
    assert (plain.logits - guided.logits).abs().max() > 0.1
