"""What the page is sent: only what changed, in words, at addresses that no earlier picture had."""

import pytest

from emat.inference.forecast import Forecast
from emat.studio import examples
from emat.studio.session import Session
from emat.studio.session_json import advice_for, load_session, save_examples, save_session, state
from tests.studio.conftest import GREY, RED, look, png, show


def test_photos_that_did_not_change_are_not_sent_again(answered: Session) -> None:
    whole = state(answered)
    assert [photo["key"] for photo in whole["photos"]] == whole["keys"] == list(answered.queries)
    assert state(answered, whole["revision"])["photos"] == []
    examples.add_photo(answered, png(RED, GREY), "d.png")
    look(answered)
    later = state(answered, whole["revision"])
    assert [photo["name"] for photo in later["photos"]] == ["d.png"]
    assert later["keys"] == list(answered.queries)
    examples.remove_photo(answered, later["keys"][0])
    last = state(answered, later["revision"])
    assert (last["photos"], last["keys"]) == ([], later["keys"][1:])


@pytest.mark.parametrize("act", ["threshold", "crisp", "example"])
def test_what_changes_every_photo_sends_every_photo(answered: Session, act: str) -> None:
    before = state(answered)
    if act == "threshold":
        examples.set_threshold(answered, 1, 0.2)
    elif act == "crisp":
        examples.set_crisp(answered, False)
    else:
        show(answered, "e.png", RED, GREY)
    after = state(answered, before["revision"])
    assert len(after["photos"]) == 2
    if act == "threshold":
        assert [one["stamp"] != two["stamp"] for one, two in zip(before["photos"], after["photos"], strict=True)] == [
            True,
            True,
        ], "browsers fetch the pictures anew"


def test_a_browser_that_keeps_pictures_is_not_fooled_by_a_restart(tiny_session: Session) -> None:
    """Changes are counted from 0 again, but pictures have other addresses."""
    session = tiny_session
    before = state(session)
    save_session(session)
    save_examples(session)
    again = load_session(session.folder, session.segmenter.copy, lambda _: session.segmenter)
    after = state(again)
    assert after["photos"][0]["stamp"] != before["photos"][0]["stamp"]
    assert after["photos"][0]["scores"] == before["photos"][0]["scores"]


@pytest.fixture
def tiny_session(session_with_classes: Session) -> Session:
    examples.add_photo(session_with_classes, png(RED, GREY), "b.png")
    return session_with_classes


def test_the_page_says_what_to_do_about_a_class() -> None:
    assert "second one" in advice_for("cat", Forecast(1, None, None))
    assert "look like your photos" in advice_for("cat", Forecast(3, 0.2, 0.9))
    assert "none of your classes" in advice_for("cat", Forecast(3, 0.7, None))
    assert "Add photos without cat" in advice_for("cat", Forecast(3, 0.7, 0.4))
    assert advice_for("cat", Forecast(3, 0.7, 0.9)) == ""
