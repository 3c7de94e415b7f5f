"""Tabs share a network; files bring another only if they must."""

from pathlib import Path

import pytest

from emat import Example, Segmenter
from emat.errors import EmatError
from emat.studio.networks import Networks
from emat.tensor_files import read_metadata, read_tensors, write_tensors
from tests.studio.conftest import GREY, RED, stripes


@pytest.fixture
def fitted_file(tiny_head: Path, tmp_path: Path) -> Path:
    Segmenter.load(tiny_head).fit([Example(stripes(RED, GREY), {"red": (0, 0, 30, 40)})]).save(tmp_path / "red.emat")
    return tmp_path / "red.emat"


def test_a_file_of_the_same_network_shares_it_and_what_it_has_encoded(tiny_head: Path, fitted_file: Path) -> None:
    networks = Networks(Segmenter.load(tiny_head))
    tab = networks.begin()
    opened = networks.open_file(fitted_file)
    assert opened.classes_ == ("red",)
    assert opened.method is tab.method
    assert opened.cache is tab.cache is not None


def test_a_file_of_another_network_brings_its_own(fitted_file: Path) -> None:
    networks = Networks(Segmenter.load("default"))
    assert networks.open_file(fitted_file).method is not networks.begin().method


def test_every_tab_begins_with_the_file_that_was_loaded(fitted_file: Path) -> None:
    networks = Networks(Segmenter.load(fitted_file))
    tab = networks.begin()
    tab.remove(0)
    assert networks.begin().classes_ == ("red",)


def test_a_file_whose_backbone_is_not_here_is_refused_and_nothing_is_fetched(
    tiny_head: Path, fitted_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    networks = Networks(Segmenter.load(tiny_head))
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "empty"))
    other = {**read_metadata(fitted_file), "backbone": "dinov2-s"}
    write_tensors(tmp_path / "other.emat", read_tensors(fitted_file), other)
    with pytest.raises(EmatError, match=r"^other\.emat was made with the backbone dinov2-s, which is not on this"):
        networks.open_file(tmp_path / "other.emat")


def test_what_is_no_fitted_file_is_named_without_its_place(tiny_head: Path, tmp_path: Path) -> None:
    networks = Networks(Segmenter.load(tiny_head))
    (tmp_path / "pets.emat").write_bytes(b"not a file of ours")
    for path in (tmp_path / "pets.emat", tiny_head):
        with pytest.raises(EmatError) as caught:
            networks.open_file(path)
        assert str(path.parent) not in str(caught.value)
        assert path.name in str(caught.value)
