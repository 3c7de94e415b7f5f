"""A tab finds its own session again and no other; tabs share a method, and a file brings another only if it must."""

from pathlib import Path

import pytest

from emat import Example, Segmenter
from emat.errors import EmatError
from emat.studio.session import IDLE_HOURS, MOST_SESSIONS, Sessions, SharedMethods
from emat.tensor_files import read_metadata, read_tensors, write_tensors
from tests.inference.colour_method import ColourMethod
from tests.studio.conftest import GREY, RED, stripes


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions(Segmenter(ColourMethod()).copy, clock)


def test_a_reloaded_tab_finds_its_session(sessions: Sessions) -> None:
    session = sessions.open(None)
    assert sessions.open(session.token) is session
    assert sessions.find(session.token) is session


def test_tabs_have_sessions_and_segmenters_of_their_own(sessions: Sessions) -> None:
    one, other = sessions.open(""), sessions.open("")
    assert one.token != other.token
    assert one.segmenter is not other.segmenter
    assert one.segmenter.method is other.segmenter.method, "the network is there once"


def test_a_name_that_a_browser_makes_up_is_not_taken(sessions: Sessions) -> None:
    assert sessions.open("mine").token != "mine"
    with pytest.raises(EmatError, match="reload it"):
        sessions.find("mine")


def test_a_session_that_nobody_uses_goes(sessions: Sessions, clock: Clock) -> None:
    idle, busy = sessions.open(None), sessions.open(None)
    clock.now += IDLE_HOURS * 3600 - 1
    sessions.find(busy.token)
    clock.now += 2
    assert sessions.open(busy.token) is busy
    with pytest.raises(EmatError, match="left for too long"):
        sessions.find(idle.token)


def test_when_there_are_too_many_the_idlest_goes(sessions: Sessions) -> None:
    first, second = sessions.open(None), sessions.open(None)
    sessions.find(first.token)
    for _ in range(MOST_SESSIONS - 1):
        sessions.open(None)
    assert sessions.find(first.token) is first
    with pytest.raises(EmatError):
        sessions.find(second.token)


@pytest.fixture
def fitted_file(tiny_head: Path, tmp_path: Path) -> Path:
    Segmenter.load(tiny_head).fit([Example(stripes(RED, GREY), {"red": (0, 0, 30, 40)})]).save(tmp_path / "red.emat")
    return tmp_path / "red.emat"


def test_a_file_of_the_same_network_shares_it_and_what_it_has_encoded(tiny_head: Path, fitted_file: Path) -> None:
    methods = SharedMethods(Segmenter.load(tiny_head))
    tab = methods.begin()
    opened = methods.open_file(fitted_file)
    assert opened.classes_ == ("red",)
    assert opened.method is tab.method
    assert opened.cache is tab.cache is not None


def test_a_file_of_another_network_brings_its_own(fitted_file: Path) -> None:
    methods = SharedMethods(Segmenter.load("default"))
    assert methods.open_file(fitted_file).method is not methods.begin().method


def test_every_tab_begins_with_the_file_that_was_loaded(fitted_file: Path) -> None:
    methods = SharedMethods(Segmenter.load(fitted_file))
    tab = methods.begin()
    tab.remove(0)
    assert methods.begin().classes_ == ("red",)


def test_a_file_whose_backbone_is_not_here_is_refused_and_nothing_is_fetched(
    tiny_head: Path, fitted_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    methods = SharedMethods(Segmenter.load(tiny_head))
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "empty"))
    other = {**read_metadata(fitted_file), "backbone": "dinov2-s"}
    write_tensors(tmp_path / "other.emat", read_tensors(fitted_file), other)
    with pytest.raises(EmatError, match=r"^other\.emat was made with the backbone dinov2-s, which is not on this"):
        methods.open_file(tmp_path / "other.emat")


def test_what_is_no_fitted_file_is_named_without_its_path(tiny_head: Path, tmp_path: Path) -> None:
    methods = SharedMethods(Segmenter.load(tiny_head))
    (tmp_path / "pets.emat").write_bytes(b"not a file of ours")
    for path in (tmp_path / "pets.emat", tiny_head):
        with pytest.raises(EmatError) as caught:
            methods.open_file(path)
        assert str(path.parent) not in str(caught.value)
        assert path.name in str(caught.value)
