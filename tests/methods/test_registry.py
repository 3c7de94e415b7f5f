"""The registry of methods, and methods of other packages."""

from pathlib import Path

import pytest

from emat.methods.base import Method
from emat.methods.registry import build_method, find_method, is_training_free, method_names, training_free_methods
from tests.plugin_package import install_package
from tests.raises import raises_code

MODULE = """
from emat.methods.prototype import Prototype
from emat.methods.registry import MethodEntry

class Mine(Prototype):
    name = "mine"

entry = MethodEntry(Mine, needs_training=False)
nonsense = 7
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"mine": "Mine", "mine-entry": "entry", "odd": "nonsense", "gone": "nothing", "emat": "nonsense"}
    install_package(tmp_path, monkeypatch, "emat-mine", "emat_mine_methods", MODULE, {"emat.methods": points})


@pytest.mark.usefixtures("package")
def test_a_package_adds_a_method_by_an_entry_point() -> None:
    assert method_names()[-4:] == ["gone", "mine", "mine-entry", "odd"]
    method = build_method("mine", image_size=32, device="cpu")
    assert isinstance(method, Method)
    assert method.name == "mine"
    assert find_method("mine").needs_training
    assert is_training_free("mine-entry")


@pytest.mark.usefixtures("package")
def test_a_broken_package_is_reported_in_one_sentence_and_only_when_it_is_asked_for() -> None:
    with raises_code("broken-plugin"):
        find_method("odd")
    with raises_code("broken-plugin", "emat-mine", "'gone'", "emat_mine_methods:nothing"):
        find_method("gone")
    peers = ["promi", "whitened", "frost", "insid3", "persam", "matcher", "gf-sam"]
    assert training_free_methods() == ["panet", "prototype", *peers, "mine-entry"]


@pytest.mark.usefixtures("package")
def test_a_package_cannot_replace_a_method_of_emat() -> None:
    assert find_method("emat").make is not None
    assert method_names().count("emat") == 1


def test_an_unknown_method_lists_those_that_exist() -> None:
    with raises_code("unknown-method", "'nonsense'"):
        find_method("nonsense")
