import copy
import hashlib
import json
import os
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from emat.backbone.mobilesam import find_mobilesam
from emat.backbone.tiny_vit import WindowAttention
from emat.cli import main
from emat.files import file_sha256
from emat.images import Pixels
from emat.refine import mobilesam as mobilesam_module
from emat.refine.mobilesam import (
    EncodedPhoto,
    MobileSAM,
    Prompt,
    at_photo_size,
    available_mobilesam,
    load_mobilesam,
)
from emat.weights import MOBILESAM, say_once
from tests.file_server import Server
from tests.raises import raises_code

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


def test_a_photo_is_encoded_once_until_its_pixels_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emat.refine.mobilesam.KEPT_ENCODINGS", 1)
    sam, photo = MobileSAM(), np.zeros((30, 40, 3), np.uint8)
    first = sam.encode(photo)
    assert sam.encode(photo.copy()) is first
    photo[0, 0] = 255  # as a buffer that a camera fills again
    assert sam.encode(photo) is not first
    photo[0, 0] = 0
    assert sam.encode(photo) is not first, "only the last one is kept"


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
    with raises_code("weights-do-not-fit"):
        MobileSAM().load_public({"image_encoder.patch_embed.seq.0.c.weight": torch.zeros(32, 3, 3, 3)})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without weights, in a process that has not asked for them yet."""
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(mobilesam_module, "_loaded", [])
    monkeypatch.setattr(mobilesam_module, "_unavailable", [])
    say_once.cache_clear()
    return tmp_path / "home"


def test_without_a_network_the_message_says_what_to_do(home: Path) -> None:
    assert find_mobilesam() is None
    with raises_code("weights-missing"):
        load_mobilesam()


@pytest.fixture
def untrained(server: Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server that has weights of MobileSAM, though untrained ones."""
    file = BytesIO()
    torch.save(MobileSAM().state_dict(), file)
    server.content = file.getvalue()
    sha256 = hashlib.sha256(server.content).hexdigest()
    monkeypatch.setattr(
        mobilesam_module, "MOBILESAM", replace(MOBILESAM, urls=(server.url,), wheel=None, sha256=sha256)
    )
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("EMAT_OFFLINE")
    return server


def test_it_is_fetched_at_first_use_if_that_is_allowed(
    untrained: Server, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert available_mobilesam() is None
    assert not untrained.ranges
    sam = available_mobilesam(fetch=True)
    assert sam is not None
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "emat: fetching MobileSAM (41 MB) for better masks; this happens once"
    assert lines[-1].endswith("(100 %)")
    assert available_mobilesam(fetch=True) is available_mobilesam() is sam
    assert untrained.ranges == [None]
    assert capsys.readouterr().err == ""


def test_offline_nothing_is_asked_for_and_it_is_said_once(
    untrained: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMAT_OFFLINE", "1")
    assert [available_mobilesam(fetch=True) for _ in range(3)] == [None] * 3
    assert not untrained.ranges
    said = capsys.readouterr().err
    assert said.startswith("emat: masks are made without MobileSAM and are less crisp: ")
    assert said.count("\n") == 1


def test_a_server_out_of_reach_is_asked_once_and_it_is_said_once(
    untrained: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    untrained.content = b"something else"
    assert [available_mobilesam(fetch=True) for _ in range(3)] == [None] * 3
    assert len(untrained.ranges) == 1
    fetching, *progress, without = capsys.readouterr().err.splitlines()
    assert fetching.startswith("emat: fetching MobileSAM")
    assert "instead of" in without
    assert not [line for line in progress if "without" in line]
    mobilesam_module._unavailable.clear()  # as in another process of the same day
    assert available_mobilesam(fetch=True) is None
    assert len(untrained.ranges) == 1
    assert "less than a day ago" in capsys.readouterr().err


def test_a_file_that_is_not_mobilesam_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mobile_sam.pt").write_bytes(b"something else")
    with raises_code("wrong-checksum", "mobile_sam.pt"):
        load_mobilesam(tmp_path / "mobile_sam.pt")
    with raises_code("no-such-file"):
        load_mobilesam(tmp_path / "nowhere.pt")


def test_a_file_that_was_brought_here_is_imported(
    mobilesam: MobileSAM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought = Path(os.environ.get("EMAT_MOBILESAM") or MOBILESAM.path)
    monkeypatch.setenv("EMAT_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match="0"):
        main(["weights", "import", str(brought)])
    assert find_mobilesam() == tmp_path / "refine" / "mobile_sam.pt"
    assert file_sha256(MOBILESAM.path) == MOBILESAM.sha256


def test_other_weights_with_the_same_names_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path))
    save_file(
        {f"{part}.x": torch.zeros(1) for part in ("image_encoder", "prompt_encoder", "mask_decoder")},
        tmp_path / "retrained.safetensors",
    )
    with pytest.raises(SystemExit, match="2"):
        main(["weights", "import", str(tmp_path / "retrained.safetensors")])
    assert find_mobilesam() is None
