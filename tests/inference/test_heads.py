"""Heads by name and file."""

from pathlib import Path

import pytest

from emat import Segmenter
from emat.backbone.home import head_file
from emat.errors import EmatError
from emat.inference.heads import DEFAULT_HEAD, PUBLISHED, find_head, known_heads, load_head
from emat.model import build
from emat.model.checkpoint import save_head


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_default_head_comes_with_the_package_and_says_what_it_needs() -> None:
    head = load_head(DEFAULT_HEAD)
    assert head.backbone == "efficientnet-lite2"
    assert head.image_size >= 64
    assert Segmenter.load().thresholds == head.thresholds
    assert find_head(DEFAULT_HEAD).with_suffix(".md").is_file()


def test_a_published_head_that_is_absent_says_how_to_get_it() -> None:
    for name in PUBLISHED:
        with pytest.raises(EmatError, match=f"emat weights import FILE.ckpt --as {name}"):
            load_head(name)


def test_an_imported_published_head_goes_with_its_backbone() -> None:
    save_head(head_file("emat-coco-fold2"), build("emat", channels=72).state_dict(), {"source": "x.ckpt"})
    head = load_head("emat-coco-fold2")
    assert (head.backbone, head.image_size, head.method) == ("dinov2-s", 700, "emat")
    assert known_heads() == ["default", "emat-coco-fold2", "prototype"]


def test_a_head_that_does_not_say_its_backbone_asks_for_it(tmp_path: Path) -> None:
    save_head(tmp_path / "mine.safetensors", build("emat", channels=42).state_dict(), {})
    with pytest.raises(EmatError, match="does not say which backbone"):
        load_head(tmp_path / "mine.safetensors")
    assert load_head(tmp_path / "mine.safetensors", backbone="efficientnet-lite2").image_size == 400


def test_a_head_for_another_backbone_is_refused(tiny_head: Path, tmp_path: Path) -> None:
    save_head(tmp_path / "mine.safetensors", build("emat", channels=7).state_dict(), {"backbone": "efficientnet-lite2"})
    with pytest.raises(EmatError, match="42 channels"):
        Segmenter.load(tmp_path / "mine.safetensors")


def test_unknown_names_and_metadata_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EmatError, match="nonesuch is neither a file nor a head here; heads are default"):
        load_head("nonesuch")
    save_head(
        tmp_path / "odd.safetensors",
        build("emat", 42).state_dict(),
        {"backbone": "efficientnet-lite2", "threshold": "high"},
    )
    with pytest.raises(EmatError, match="metadata that cannot be read"):
        load_head(tmp_path / "odd.safetensors")
