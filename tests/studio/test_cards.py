"""What the page says, and that it says it safely."""

import re

from emat.studio import actions, cards
from emat.studio.session import Session
from tests.studio.conftest import BLUE, GREY, RED, Files, left_half, paint

NASTY = "<img src=x>"


def test_an_empty_page_says_what_to_do(session: Session) -> None:
    assert "No class yet" in cards.class_chips(session)
    assert "No example yet" in cards.example_cards(session)
    assert "No photo yet" in cards.photo_cards(session)
    assert cards.threshold_sliders(session) == ""


def test_names_are_text_wherever_they_stand(session: Session, photo_file: Files) -> None:
    actions.add_classes(session, f'{NASTY}, "onload="x')
    actions.add_drafts(session, [photo_file("a.png", RED, GREY)])
    actions.add_example(session, [paint(session.colours[NASTY], left_half())])
    actions.add_photos(session, [photo_file("b.png", RED, GREY)])
    list(actions.search(session))
    makers = (
        cards.class_chips, cards.brush_chips, cards.example_cards, cards.threshold_sliders, cards.photo_cards,
    )  # fmt: skip
    for make in makers:
        page = make(session)
        assert NASTY not in page
        assert '"onload="' not in page
    assert "&lt;img src=x&gt;" in cards.photo_cards(session)


def test_a_card_shows_bars_for_what_is_there_and_a_line_for_what_is_not(
    session_with_classes: Session, photo_file: Files
) -> None:
    session = session_with_classes
    actions.add_drafts(session, [photo_file("a.png", RED, BLUE)])
    layers = [paint(session.colours["red"], left_half()), paint(session.colours["blue"], ~left_half())]
    actions.add_example(session, layers)
    actions.add_photos(session, [photo_file("b.png", RED, GREY)])
    assert "waiting" in cards.photo_cards(session)
    list(actions.search(session))
    page = cards.photo_cards(session)
    assert re.search(r'class="score".*?red.*?9\d%', page)
    assert "not here: blue" in page
    assert cards.threshold_sliders(session).count('type="range"') == 2


def test_many_photos_are_shown_page_by_page(session: Session, photo_file: Files) -> None:
    actions.add_photos(session, [photo_file("a.png", RED)] * (cards.CARDS_A_PAGE + 3))
    assert cards.photo_cards(session).count("<figure") == cards.CARDS_A_PAGE
    session.first_shown = cards.CARDS_A_PAGE
    assert cards.photo_cards(session).count("<figure") == 3
    assert "13 to 15 of 15" in cards.photo_cards(session)
    session.first_shown = 10**6
    assert cards.shown_from(session) == cards.CARDS_A_PAGE
    session.first_shown = -5
    assert cards.shown_from(session) == 0
