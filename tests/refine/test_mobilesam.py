import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from emat.errors import EmatError
from emat.images import Pixels
from emat.refine.mobilesam import EncodedPhoto, MobileSAM, Prompt, at_photo_size
from emat.refine.tiny_vit import WindowAttention

PARITY = Path(__file__).parents[1] / "parity" / "mobilesam.json"
TOLERANCE = 1e-3
CASES = json.loads(PARITY.read_text())["cases"]


def drawn_photo(height: int, width: int, disc_y: int, disc_x: int, radius: int) -> Pixels:
    """A disc on a slope of grey, as the parity file describes it."""
    y, x = np.mgrid[:height, :width]
    slope = [np.clip(40 + 0.3 * x + 0.2 * y + 20 * channel, 0, 255) for channel in range(3)]
    photo = np.stack(slope, axis=2).astype(np.uint8)
    photo[(y - disc_y) ** 2 + (x - disc_x) ** 2 <= radius**2] = (200, 120, 60)
    return photo


def prompt_of(case: dict[str, Any]) -> Prompt:
    points = list(zip(case.get("points", []), case.get("labels", []), strict=True))
    mask = None
    if "mask" in case:
        y, x = np.mgrid[:256, :256]
        distance = np.hypot(y - case["mask"]["y"], x - case["mask"]["x"])
        mask = torch.from_numpy(np.clip((case["mask"]["radius"] - distance) / 4, -6, 6)).float()
    return Prompt(
        inside=[(x, y) for (x, y), label in points if label == 1],
        outside=[(x, y) for (x, y), label in points if label == 0],
        box=tuple(case["box"]) if "box" in case else None,
        mask=mask,
    )


@pytest.fixture(scope="module")
def unbiased(mobilesam: MobileSAM) -> MobileSAM:
    """The network as it was when the parity file was written: its attention biases were still zero.

    The public code keeps a copy of the biases that follows the weights only when the network is switched to
    evaluation mode after loading. The file was written without that, so it pins down everything but the biases, whose
    layout `test_tiny_vit` checks.
    """
    network = copy.deepcopy(mobilesam)
    for module in network.modules():
        if isinstance(module, WindowAttention):
            module.bias = torch.zeros_like(module.bias)
    return network


@pytest.fixture(scope="module", params=range(len(CASES)))
def case(request: pytest.FixtureRequest) -> Any:
    return CASES[request.param]


@pytest.fixture(scope="module")
def encoded(unbiased: MobileSAM, case: Any) -> EncodedPhoto:
    return unbiased.encode(drawn_photo(**case["image"]))


def test_the_embedding_is_the_public_networks(encoded: EncodedPhoto, case: Any) -> None:
    expected = torch.tensor(case["embedding"]["sample[::32, ::8, ::8]"])
    torch.testing.assert_close(encoded.embedding[0, ::32, ::8, ::8], expected, atol=TOLERANCE, rtol=0)
    assert float(encoded.embedding.std()) == pytest.approx(case["embedding"]["std"], abs=TOLERANCE)


def test_answers_to_points_boxes_and_masks_are_the_public_networks(
    unbiased: MobileSAM, encoded: EncodedPhoto, case: Any
) -> None:
    for prompt in case["prompts"]:
        answers = unbiased.answer(encoded, [prompt_of(prompt)])[0]
        for expected in prompt["answers"]:
            chosen = slice(1, 4) if expected["several"] else slice(0, 1)
            logits = answers.logits[chosen]
            torch.testing.assert_close(
                logits[:, ::16, ::16], torch.tensor(expected["logits[:, ::16, ::16]"]), atol=TOLERANCE, rtol=1e-4
            )
            torch.testing.assert_close(answers.iou[chosen], torch.tensor(expected["iou"]), atol=TOLERANCE, rtol=0)
            areas = (at_photo_size(logits, encoded) > 0).sum(dim=(1, 2)).tolist()
            assert areas == pytest.approx(expected["positive pixels at photo size"], abs=2)


def test_a_click_on_a_disc_finds_the_disc(mobilesam: MobileSAM) -> None:
    photo = drawn_photo(200, 150, disc_y=120, disc_x=60, radius=30)
    encoded = mobilesam.encode(photo)
    answers = mobilesam.answer(encoded, [Prompt(inside=[(60, 120)])])[0]
    best = at_photo_size(answers.logits, encoded)[int(answers.iou.argmax())] > 0
    disc = torch.from_numpy((photo == (200, 120, 60)).all(axis=2))
    assert (best & disc).sum() / (best | disc).sum() > 0.95


def test_prompts_do_not_change_each_others_answers() -> None:
    torch.manual_seed(0)
    sam = MobileSAM()
    photo = EncodedPhoto(torch.randn(1, 256, 64, 64), (40, 30))
    one, other = Prompt(inside=[(3, 4)]), Prompt(box=(1, 2, 20, 30), mask=torch.randn(256, 256))
    together = sam.answer(photo, [one, other])
    torch.testing.assert_close(sam.answer(photo, [other])[0].logits, together[1].logits)
    assert not torch.allclose(together[0].logits, together[1].logits)


@pytest.mark.parametrize(
    ("size", "inner"), [((300, 400), (768, 1024)), ((400, 300), (1024, 768)), ((1, 3000), (1, 1024))]
)
def test_the_long_side_becomes_1024(size: tuple[int, int], inner: tuple[int, int]) -> None:
    photo = EncodedPhoto(torch.zeros(1), size)
    assert photo.inner == inner
    assert at_photo_size(torch.zeros(2, 256, 256), photo).shape == (2, *size)


def test_other_weights_are_refused() -> None:
    with pytest.raises(EmatError, match="not the weights of MobileSAM"):
        MobileSAM().load_public({"image_encoder.patch_embed.seq.0.c.weight": torch.zeros(32, 3, 3, 3)})
