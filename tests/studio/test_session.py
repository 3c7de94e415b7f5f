"""Tabs find their own session again, and nobody else's."""

import pytest

from emat.errors import EmatError
from emat.inference.segmenter import Segmenter
from emat.studio.session import IDLE_HOURS, MOST_SESSIONS, Sessions
from tests.inference.colour_method import ColourMethod


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
