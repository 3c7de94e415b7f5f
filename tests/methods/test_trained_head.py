"""Head files: found by name or path, read, identified and evaluated."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from emat import Segmenter
from emat.evaluation.run import load_evaluated
from emat.files import file_sha256
from emat.methods.base import Thresholds
from emat.methods.registry import training_free_methods
from emat.methods.trained_head import (
    DEFAULT_HEAD,
    LIGHT_HEAD,
    PUBLISHED,
    find_head,
    head_file,
    identify,
    known_heads,
    load_head,
    save_head,
)
from emat.model import FORMS, build
from emat.tensor_files import write_tensors
from emat.weights import MOBILESAM
from tests.raises import raises_code


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


def test_the_default_head_looks_through_mobilesam_where_its_weights_are_here() -> None:
    light = find_head(DEFAULT_HEAD)
    MOBILESAM.path.parent.mkdir(parents=True)
    MOBILESAM.path.write_bytes(b"weights that nobody reads")
    assert load_head(DEFAULT_HEAD).backbone == "efficientnet-lite2+mobilesam"
    assert find_head(LIGHT_HEAD) == light
    assert load_head(LIGHT_HEAD).backbone == "efficientnet-lite2"
    asked_for = load_head(DEFAULT_HEAD, backbone="efficientnet-lite2")
    assert asked_for.tensors.keys() == load_head(LIGHT_HEAD).tensors.keys()
    assert all(torch.equal(asked_for.tensors[key], value) for key, value in load_head(LIGHT_HEAD).tensors.items())


def test_a_published_head_that_is_absent_says_how_to_get_it() -> None:
    for name in PUBLISHED:
        with raises_code("weights-missing", f"emat weights fetch {name[:-6]}"):
            load_head(name)


def test_an_imported_published_head_goes_with_its_backbone() -> None:
    save_head(head_file("emat-coco-fold2"), build("emat", channels=72).state_dict(), {"source": "x.ckpt"})
    head = load_head("emat-coco-fold2")
    assert (head.backbone, head.image_size, head.method) == ("dinov2-s", 700, "emat")
    assert known_heads() == ["default", "default-light", "emat-coco-fold2", *training_free_methods()]


def test_a_head_that_does_not_say_its_backbone_asks_for_it(tmp_path: Path) -> None:
    save_head(tmp_path / "mine.safetensors", build("emat", channels=42).state_dict(), {})
    with raises_code("missing-option"):
        load_head(tmp_path / "mine.safetensors")
    assert load_head(tmp_path / "mine.safetensors", backbone="efficientnet-lite2").image_size == 400


def test_a_head_for_another_backbone_is_refused(head: Path, tmp_path: Path) -> None:
    save_head(tmp_path / "mine.safetensors", build("emat", channels=7).state_dict(), {"backbone": "efficientnet-lite2"})
    with raises_code("weights-do-not-fit", "42"):
        Segmenter.load(tmp_path / "mine.safetensors")


def test_unknown_names_and_metadata_are_refused(tmp_path: Path) -> None:
    with raises_code("unknown-head", "nonesuch", "default"):
        load_head("nonesuch")
    with raises_code("unknown-head", "dinov2-s is a backbone"):
        load_head("dinov2-s")
    save_head(
        tmp_path / "odd.safetensors",
        build("emat", 42).state_dict(),
        {"backbone": "efficientnet-lite2", "threshold": "high"},
    )
    with raises_code("damaged-file"):
        load_head(tmp_path / "odd.safetensors")


@pytest.mark.parametrize("method", ["emat", "emat-s", "cst", "emat-me-ld"])
def test_a_head_is_recognised_by_its_tensors_and_comes_back_from_its_file(method: str, tmp_path: Path) -> None:
    net = build(method, 42)
    published = {f"learner.{name}": value for name, value in net.state_dict().items()}
    assert identify({**published, "backbone.cls_token": torch.zeros(1)}) == method
    save_head(tmp_path / "head.safetensors", published, {"source": "test"})
    back = load_head(tmp_path / "head.safetensors", backbone="efficientnet-lite2")
    assert back.method == method
    for name, value in net.state_dict().items():
        torch.testing.assert_close(back.tensors[name], value)


@pytest.mark.parametrize("method", [method for method in FORMS if method in ("cst-large", "emat-me")])
def test_forms_with_the_same_tensors_are_told_apart_by_the_files_metadata(method: str, tmp_path: Path) -> None:
    net = build(method, 6)
    assert identify(net.state_dict()) == "cst"
    save_head(tmp_path / "head.safetensors", net.state_dict(), {"method": method})
    assert load_head(tmp_path / "head.safetensors", backbone="efficientnet-lite2").method == method


def test_tensors_that_are_not_a_head_are_refused() -> None:
    with raises_code("weights-do-not-fit"):
        identify({"fc.weight": torch.zeros(2, 2)})
    almost = build("cst", 6).state_dict()
    del almost["linear.0.bias"]
    with raises_code("weights-do-not-fit", "cst", "missing linear.0.bias"):
        identify(almost)


def test_a_file_tells_its_method_backbone_and_size(head: Path) -> None:
    said = load_evaluated(head, device="cpu").description()
    assert (said["name"], said["backbone"], said["image_size"]) == ("emat", "efficientnet-lite2", 64)
    assert said["head_sha256"] == file_sha256(head)


def test_a_name_means_a_head_kept_here(head: Path) -> None:
    kept = head_file("mine")
    kept.parent.mkdir(parents=True)
    kept.write_bytes(head.read_bytes())
    own, named = (load_evaluated(each, image_size=96, device="cpu") for each in (head, "mine"))
    assert named.method.preparation.image_size == 96
    assert own.weights_sha256 == named.weights_sha256


def test_the_content_of_a_file_decides_not_its_suffix(head: Path, tmp_path: Path) -> None:
    path = tmp_path / "head.weights"
    metadata = {"method": "emat", "backbone": "efficientnet-lite2", "image_size": "64"}
    write_tensors(path, load_file(head), {**metadata, "presence_threshold": "0.4", "mask_threshold": "0.3"})
    found = load_evaluated(path, device="cpu")
    assert found.method.preparation.image_size == 64
    assert found.thresholds == Thresholds(presence=0.4, mask=0.3)


def test_a_training_free_method_goes_by_its_name() -> None:
    named = load_evaluated("prototype", image_size=64, device="cpu")
    assert named.description() == load_evaluated(None, "prototype", image_size=64, device="cpu").description()
    assert (named.head, named.trained_parameters) == (None, 0)


def test_heads_for_one_backbone_share_it(head: Path) -> None:
    first = load_evaluated(head, device="cpu")
    second = load_evaluated(head, device="cpu", beside=first)
    assert second.method.backbone is first.method.backbone
    assert second.weights_sha256 == first.weights_sha256
    other = load_evaluated("prototype", device="cpu", beside=first)
    assert other.method.backbone is not first.method.backbone


def test_metadata_that_are_no_numbers_are_refused(head: Path, tmp_path: Path) -> None:
    path = tmp_path / "odd.safetensors"
    write_tensors(path, load_file(head), {"backbone": "efficientnet-lite2", "image_size": "large"})
    with raises_code("damaged-file", "odd.safetensors"):
        load_evaluated(path)


def test_a_head_without_backbone_asks_for_one(head: Path, tmp_path: Path) -> None:
    path = tmp_path / "silent.safetensors"
    write_tensors(path, load_file(head), {})
    with raises_code("missing-option"):
        load_evaluated(path)


@pytest.mark.parametrize(
    ("model", "method", "code"),
    [
        (None, None, "missing-option"),
        (None, "emat", "not-trained"),
        (None, "nothing", "unknown-method"),
        ("absent", None, "unknown-head"),
        ("HEAD", "cst", "wrong-head"),
        ("prototype", "emat", "wrong-head"),
    ],
)
def test_what_cannot_be_evaluated_is_said(model: str | None, method: str | None, code: str, head: Path) -> None:
    with raises_code(code):
        load_evaluated(str(head) if model == "HEAD" else model, method)
