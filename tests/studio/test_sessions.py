"""Sessions of tabs: kept apart, kept on disk, never dropped for another's sake."""

import gc
import json
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from emat.inference.example import Example
from emat.inference.segmenter import Segmenter
from emat.studio import examples
from emat.studio.actions import Clicks, Studio
from emat.studio.examples import correct
from emat.studio.session import Session
from emat.studio.session_json import save_session
from emat.studio.sessions import EMPTY_MINUTES, MOST_TABS, NoSession, Sessions, SharedMethods, TooManyTabs, owner_of
from tests.inference.colour_method import ColourMethod
from tests.raises import raises_code
from tests.studio.conftest import BLUE, GREY, RED, left_half, png, show, stripes

ME, OTHER = owner_of("me"), owner_of("another")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def methods(tiny_head: Path) -> SharedMethods:
    return SharedMethods(Segmenter.load(tiny_head, learn=False))


@pytest.fixture
def sessions(methods: SharedMethods, tmp_path: Path, clock: Clock) -> Sessions:
    return Sessions(methods, tmp_path / "studio", False, clock)


def work(sessions: Sessions, session: Session) -> None:
    """Two classes, an example, a photo being painted, and two photos, one of them corrected."""
    examples.add_classes(session, "red, blue")
    show(session, "a.png", RED, GREY)
    draft = examples.add_draft(session, png(BLUE, GREY), "waiting.png")
    session.keep_paint(draft.key, left_half(2))
    examples.set_sparse(session, draft.key, True)
    examples.add_photo(session, png(RED, BLUE), "b.png")
    examples.add_photo(session, png(BLUE, RED), "c.png")
    correct(session, next(iter(session.queries)), left_half())
    session.thresholds["red"] = 0.3
    sessions.search(session).start()
    sessions.search(session).wait()


def test_a_session_is_found_by_its_own_browser_alone(sessions: Sessions) -> None:
    session = sessions.open(None, ME)
    assert sessions.open(session.id, ME) is session
    assert sessions.open(session.id, OTHER) is not session
    with raises_code("session-gone", kind=NoSession):
        sessions.find(session.id, OTHER)


def test_a_restart_loses_nothing(sessions: Sessions, methods: SharedMethods, tmp_path: Path) -> None:
    before = sessions.open(None, ME)
    work(sessions, before)
    sessions.close()
    (saved,) = sessions.saved(ME)
    assert (saved.classes, saved.examples, saved.photos) == (("red", "blue"), 2, 2)
    assert sessions.saved(OTHER) == []

    later = Sessions(methods, tmp_path / "studio", False)
    after = later.open(before.id, ME)
    assert after is not before
    assert after.id == before.id
    assert after.classes == before.classes
    assert after.thresholds == {"red": 0.3}
    assert [example.name for example in after.segmenter.examples_] == ["a.png", "b.png"]
    (draft,) = after.drafts.values()
    assert draft.sparse
    assert (after.paint(draft.key, draft.photo) == left_half(2)).all()
    for query, old in zip(after.queries.values(), before.queries.values(), strict=True):
        assert (query.scores, query.corrected, query.photo) == (old.scores, old.corrected, old.photo)
        assert query.version == after.version, "nothing has to be looked at again"
    assert later.open(before.id, OTHER).is_empty(), "another browser gets a session of its own"


def test_photos_that_are_dropped_together_are_saved_together(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = sessions.open(None, ME)
    sessions.search(session).stop()  # so that nothing else saves
    sessions.search(session).wait()
    written: list[int] = []

    def counted(session: Session) -> None:
        written.append(len(session.queries))
        save_session(session)

    monkeypatch.setattr("emat.studio.sessions.save_session", counted)
    monkeypatch.setattr("emat.studio.sessions.SAVE_SECONDS", 1.0)
    examples.add_photo(session, png(RED, BLUE), "a.png")
    for _ in range(50):
        sessions.save_soon(session)
    deadline = time.monotonic() + 60
    while not sessions.saved(ME) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [saved.photos for saved in sessions.saved(ME)] == [1]
    assert len(written) < 50


def test_what_was_saved_can_be_deleted_by_its_own_browser(sessions: Sessions, tmp_path: Path) -> None:
    session = sessions.open(None, ME)
    work(sessions, session)
    with pytest.raises(NoSession):
        sessions.delete(session.id, OTHER)
    with pytest.raises(NoSession):
        sessions.delete("../../etc", ME)
    sessions.delete(session.id, ME)
    assert sessions.saved(ME) == []
    assert not (tmp_path / "studio" / session.id).exists()


def test_a_private_studio_saves_nothing(methods: SharedMethods, tmp_path: Path) -> None:
    sessions = Sessions(methods, tmp_path, True)
    session = sessions.open(None, ME)
    work(sessions, session)
    sessions.close()
    assert sessions.saved(ME) == []
    assert not (session.folder / "session.json").exists()
    assert Sessions(methods, tmp_path, True).open(session.id, ME).is_empty()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": 1}', b'{"format": 1, "owner": 5, "classes": 3}'])
def test_a_damaged_session_is_not_listed_and_a_new_one_begins(
    sessions: Sessions, methods: SharedMethods, tmp_path: Path, content: bytes
) -> None:
    session = sessions.open(None, ME)
    work(sessions, session)
    (session.folder / "session.json").write_bytes(content)
    later = Sessions(methods, tmp_path / "studio", False)
    assert later.saved(ME) == []
    assert later.open(session.id, ME).is_empty()


def test_a_session_whose_photo_is_gone_is_refused_with_a_sentence(
    sessions: Sessions, methods: SharedMethods, tmp_path: Path
) -> None:
    session = sessions.open(None, ME)
    work(sessions, session)
    next(iter(session.queries.values())).photo.remove()
    with raises_code("damaged-file"):
        Sessions(methods, tmp_path / "studio", False).open(session.id, ME)


def test_one_tab_too_many_is_refused_and_none_loses_its_work(sessions: Sessions, clock: Clock) -> None:
    first = sessions.open(None, ME)
    examples.add_classes(first, "red")
    others = [sessions.open(None, ME) for _ in range(MOST_TABS - 1)]
    with raises_code("too-many-tabs", str(MOST_TABS), kind=TooManyTabs):
        sessions.open(None, ME)
    assert sessions.open(first.id, ME) is first
    clock.now += EMPTY_MINUTES * 60 + 1
    assert sessions.open(None, ME).is_empty(), "tabs in which nothing was done make room"
    assert sessions.find(first.id, ME) is first
    with pytest.raises(NoSession):
        sessions.find(others[0].id, ME)


def test_start_over_frees_memory_and_disk(sessions: Sessions, tmp_path: Path) -> None:
    session = sessions.open(None, ME)
    work(sessions, session)
    cache = session.segmenter.cache
    assert cache is not None
    assert cache.counts.memory_bytes > 0
    held: list[weakref.ref[Any]] = [weakref.ref(session.segmenter), *map(weakref.ref, session.queries.values())]
    Studio(sessions, Clicks()).act(session, "start-over", {})
    sessions.search(session).wait()
    assert session.search.phase == "idle", "photos that are dropped next are not told that the search was stopped"
    gc.collect()
    assert session.is_empty()
    assert [reference() for reference in held] == [None] * len(held)
    assert cache.counts.memory_bytes == 0
    assert not session.folder.exists()
    assert sessions.saved(ME) == []


def test_tabs_share_the_features_of_photos() -> None:
    method = ColourMethod()
    methods = SharedMethods(Segmenter(method))
    one, two = methods.begin(), methods.begin()
    assert one is not two
    assert one.cache is two.cache is not None


def test_a_fitted_file_with_the_same_method_shares_it(tiny_head: Path, methods: SharedMethods, tmp_path: Path) -> None:
    segmenter = Segmenter.load(tiny_head, learn=False)

    segmenter.fit([Example(stripes(RED, GREY), {"red": (0, 0, 30, 40)})]).save(tmp_path / "red.emat")
    opened = methods.open_file(tmp_path / "red.emat")
    assert opened.method is methods.begin().method
    (tmp_path / "bad.emat").write_bytes(b"no")
    with raises_code("damaged-file") as caught:
        methods.open_file(tmp_path / "bad.emat")
    assert str(tmp_path) not in str(caught.value)


def test_what_is_saved_says_nothing_of_the_cookie(sessions: Sessions) -> None:
    session = sessions.open(None, ME)
    work(sessions, session)
    content = json.loads((session.folder / "session.json").read_text())
    assert content["owner"] == ME != "me"
