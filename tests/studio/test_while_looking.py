"""What a page asks for while its photos are looked at again is as it was before: never half of it, never an error."""

import threading
from typing import Any

import pytest

pytest.importorskip("starlette")

from starlette.requests import Request

from emat.studio.routes import ANSWERS
from emat.studio.search import Search
from emat.studio.session import Session

ROUNDS = 30
ADDRESSES = ("small.jpg", "large.jpg", "result", "measure", "measured.jpg", "found")


@pytest.mark.parametrize("address", ADDRESSES)
def test_what_is_asked_for_while_photos_are_looked_at_again_is_whole(answered: Session, address: str) -> None:
    session, key = answered, min(answered.queries)
    answer = next(answer for _, path, answer in ANSWERS if path == f"photos/{{key:int}}/{address}")
    request = Request({"type": "http", "query_string": b"objects=1&unsure=1", "path_params": {"key": key}})
    no_studio: Any = None  # these answers are about the session alone
    before = answer(no_studio, session, request, b"").body
    done = threading.Event()
    others: list[object] = []
    count = 0

    def ask() -> None:
        nonlocal count
        while not done.is_set():
            try:
                asked: object = answer(no_studio, session, request, b"").body
            except Exception as error:
                asked = error
            count += 1
            if asked != before:
                others.append(asked)

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(ROUNDS):
        with session.lock:
            session.version += 1
        search = Search(session)
        search.start()
        search.wait()
    done.set()
    asking.join()
    assert count
    assert others == []


def test_the_picture_of_what_has_just_left_the_page_is_empty_and_no_error(answered: Session) -> None:
    no_studio: Any = None
    pictures = [answer for _, path, answer in ANSWERS if path.endswith((".jpg", ".png"))]
    assert len(pictures) == 7
    for kind in ("drafts", "photos"):
        request = Request({"type": "http", "query_string": b"", "path_params": {"key": 99, "kind": kind}})
        for answer in pictures:
            assert answer(no_studio, answered, request, b"").status_code == 204
