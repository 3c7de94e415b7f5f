"""What is evaluated is found by file, name or method, and refused in a sentence where it cannot be."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from emat.backbone.home import head_file
from emat.errors import EmatError
from emat.evaluation.contender import load_contender
from emat.method import Thresholds
from emat.tensor_files import file_sha256, write_tensors


def test_a_file_tells_its_method_backbone_and_size(head: Path) -> None:
    said = load_contender(head, device="cpu").description()
    assert (said["name"], said["backbone"], said["image_size"]) == ("emat", "efficientnet-lite2", 64)
    assert said["head_sha256"] == file_sha256(head)


def test_a_name_means_a_head_kept_here(head: Path) -> None:
    kept = head_file("mine")
    kept.parent.mkdir(parents=True)
    kept.write_bytes(head.read_bytes())
    own, named = (load_contender(each, image_size=96, device="cpu") for each in (head, "mine"))
    assert named.method.preparation.image_size == 96
    assert own.weights_sha256 == named.weights_sha256


def test_the_content_of_a_file_decides_not_its_suffix(head: Path, tmp_path: Path) -> None:
    path = tmp_path / "head.weights"
    metadata = {"method": "emat", "backbone": "efficientnet-lite2", "image_size": "64"}
    write_tensors(path, load_file(head), {**metadata, "presence_threshold": "0.4", "mask_threshold": "0.3"})
    found = load_contender(path, device="cpu")
    assert found.method.preparation.image_size == 64
    assert found.thresholds == Thresholds(presence=0.4, mask=0.3)


def test_a_training_free_method_goes_by_its_name() -> None:
    named = load_contender("prototype", image_size=64, device="cpu")
    assert named.description() == load_contender(None, "prototype", image_size=64, device="cpu").description()
    assert (named.head, named.trained_parameters) == (None, 0)


def test_heads_for_one_backbone_share_it(head: Path) -> None:
    first = load_contender(head, device="cpu")
    second = load_contender(head, device="cpu", beside=first)
    assert second.method.backbone is first.method.backbone
    assert second.weights_sha256 == first.weights_sha256
    other = load_contender("prototype", device="cpu", beside=first)
    assert other.method.backbone is not first.method.backbone


def test_metadata_that_are_no_numbers_are_refused(head: Path, tmp_path: Path) -> None:
    path = tmp_path / "odd.safetensors"
    write_tensors(path, load_file(head), {"backbone": "efficientnet-lite2", "image_size": "large"})
    with pytest.raises(EmatError, match=r"odd.safetensors has metadata that cannot be read \(.*'large'\)"):
        load_contender(path)


def test_a_head_without_backbone_asks_for_one(head: Path, tmp_path: Path) -> None:
    path = tmp_path / "silent.safetensors"
    write_tensors(path, load_file(head), {})
    with pytest.raises(EmatError, match="name it by --backbone"):
        load_contender(path)


@pytest.mark.parametrize(
    ("model", "method", "words"),
    [
        (None, None, "--method prototype"),
        (None, "emat", "must be trained"),
        (None, "nothing", "no method 'nothing'"),
        ("absent", None, "neither a file nor a head"),
        ("HEAD", "cst", "not cst"),
        ("prototype", "emat", "not emat"),
    ],
)
def test_what_cannot_be_evaluated_is_said(model: str | None, method: str | None, words: str, head: Path) -> None:
    with pytest.raises(EmatError, match=words):
        load_contender(str(head) if model == "HEAD" else model, method)
