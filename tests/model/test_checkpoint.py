"""Heads in published and own files."""

from pathlib import Path

import pytest
import torch

from emat.errors import EmatError
from emat.model import FORMS, build, load_public
from emat.model.checkpoint import identify, load_head, save_head


@pytest.mark.parametrize("method", ["emat", "emat-s", "cst", "emat-me-ld"])
def test_a_head_is_recognised_by_its_tensors_and_comes_back_from_its_file(method: str, tmp_path: Path) -> None:
    net = build(method, 42)
    published = {f"learner.{name}": value for name, value in net.state_dict().items()}
    assert identify({**published, "backbone.cls_token": torch.zeros(1)}) == method
    save_head(tmp_path / "head.safetensors", published, {"source": "test"})
    back = load_head(tmp_path / "head.safetensors")
    assert (back.method, back.channels, back.training) == (method, 42, False)
    for name, value in net.state_dict().items():
        torch.testing.assert_close(back.state_dict()[name], value)


@pytest.mark.parametrize("method", [method for method in FORMS if method in ("cst-large", "emat-me")])
def test_forms_with_the_same_tensors_are_told_apart_by_the_files_metadata(method: str, tmp_path: Path) -> None:
    net = build(method, 6)
    assert identify(net.state_dict()) == "cst"
    save_head(tmp_path / "head.safetensors", net.state_dict(), {"method": method})
    assert load_head(tmp_path / "head.safetensors").method == method


def test_missing_unknown_and_misshapen_tensors_are_named_and_nothing_is_loaded() -> None:
    net = build("emat", 6)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    tensors = {name: value + 1 for name, value in net.state_dict().items()}
    del tensors["linear.0.bias"]
    tensors["surprise"] = torch.zeros(2)
    tensors["linear.1.bias"] = torch.zeros(3)
    with pytest.raises(EmatError) as error:
        load_public(net, tensors)
    for part in ("missing: linear.0.bias", "unknown: surprise", "linear.1.bias (3,) instead of (32,)"):
        assert part in str(error.value)
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, before[name])


def test_tensors_that_are_no_head_are_refused() -> None:
    with pytest.raises(EmatError, match="no EMAT or CST head"):
        identify({"fc.weight": torch.zeros(2, 2)})
    almost = build("cst", 6).state_dict()
    del almost["linear.0.bias"]
    with pytest.raises(EmatError, match=r"not a cst head with 6 channels: missing: linear.0.bias"):
        identify(almost)
