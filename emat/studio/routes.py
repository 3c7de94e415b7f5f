"""The addresses of the studio and what each answers. Work is done in threads, so that the page never waits for it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from emat.errors import EmatError
from emat.scale.patience import SENTENCE, TooSlow
from emat.studio import masks, measuring
from emat.studio.actions import Studio, Values, choice_of, number, whole
from emat.studio.examples import add_example, correct, find_draft, find_query, found_masks, touched
from emat.studio.export import PARTS, answered, export
from emat.studio.masks import results
from emat.studio.photos import SMALL, StudioPhoto, beside, packed, read_paint
from emat.studio.security import BodyTooLarge
from emat.studio.session import Session, StudioQuery
from emat.studio.session_json import state
from emat.studio.sessions import NoSession, TooManyTabs, owner_of
from emat.studio.stacks import find_stack, preview
from emat.studio.tracks import has_tracks, tracks_of
from emat.studio.words import page_sentence, sentence

PAGE = Path(__file__).with_name("page")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
KEPT = {"Cache-Control": "private, max-age=86400, immutable"}  # a changed picture has another address
FRESH = {"Cache-Control": "no-store"}
MOST_POINTS = 200
GONE = ("no-such-photo", "unknown-example")  # codes of what is no longer on the page

Query = Mapping[str, str]
Answer = Callable[[Studio, Session, Request, bytes], Response]


def build_app(studio: Studio) -> Starlette:
    """Make the application. `security.Guard` stands before it."""
    return Starlette(
        routes=[
            Route("/", _page("index.html")),
            *(Route(f"/{file.name}", _page(file.name)) for file in sorted(PAGE.iterdir()) if file.suffix in TYPES),
            Route("/api/session", _open(studio), methods=["POST"]),
            Route("/api/saved", _saved(studio), methods=["GET"]),
            Route("/api/saved/{id}", _delete(studio), methods=["DELETE"]),
            *(
                Route(f"/api/{{id}}/{path}", _with_session(studio, answer), methods=[method])
                for method, path, answer in ANSWERS
            ),
        ],
        exception_handlers={
            NoSession: _problem(410),
            TooManyTabs: _problem(503),
            EmatError: _problem(422),
            BodyTooLarge: _problem(413, "file-too-large", "this is larger than the studio takes; make it smaller"),
            TooSlow: _problem(408, "request-too-slow", SENTENCE, {**FRESH, "Connection": "close"}),
            404: _problem(404, "unknown-address", "there is nothing at this address"),
            405: _problem(405, "unknown-address", "this address does not take such a request"),
            500: _problem(500, "internal-error", "something went wrong inside the studio; its terminal says more"),
        },
    )


def _problem(status: int, code: str = "", words: str = "", headers: Mapping[str, str] = FRESH) -> Any:
    """Return what answers an error: with its own code and sentence, or with these."""

    async def answer(_: Request, error: Exception) -> Response:
        text = sentence(words) if words or not isinstance(error, EmatError) else page_sentence(error)
        told = error.code if isinstance(error, EmatError) else code
        return JSONResponse({"problem": text, "code": told}, status, headers)

    return answer


def _page(name: str) -> Any:
    path = PAGE / name

    async def answer(_: Request) -> Response:
        return Response(path.read_bytes(), media_type=TYPES[path.suffix], headers={"Cache-Control": "no-cache"})

    return answer


def _open(studio: Studio) -> Any:
    async def answer(request: Request) -> Response:
        asked = _values(await request.body()).get("session")
        owner = owner_of(request.scope["owner"])
        session = await run_in_threadpool(studio.sessions.open, asked if isinstance(asked, str) else None, owner)
        more = {**studio.download.state(), "parts": PARTS, "private": studio.sessions.private}
        return _json({**more, **state(session)})

    return answer


def _saved(studio: Studio) -> Any:
    async def answer(request: Request) -> Response:
        sessions = await run_in_threadpool(studio.sessions.saved, owner_of(request.scope["owner"]))
        return _json([asdict(saved) for saved in sessions])

    return answer


def _delete(studio: Studio) -> Any:
    async def answer(request: Request) -> Response:
        owner = owner_of(request.scope["owner"])
        await run_in_threadpool(studio.sessions.delete, request.path_params["id"], owner)
        return _json({})

    return answer


def _with_session(studio: Studio, answer: Answer) -> Any:
    """Find the session of a request, read the request and answer it in a thread."""

    async def run(request: Request) -> Response:
        # In a thread as well: it waits while a saved session is loaded, and the other pages must not wait with it.
        owner = owner_of(request.scope["owner"])
        session = await run_in_threadpool(studio.sessions.find, request.path_params["id"], owner)
        try:
            body = await request.body()
        except ClientDisconnect:
            return Response(status_code=400)
        return await run_in_threadpool(answer, studio, session, request, body)

    return run


def _state(studio: Studio, session: Session, request: Request, _: bytes) -> Response:
    if _since(request) == session.revision:
        return _json({"unchanged": True})
    return _json(state(session, _since(request)))


def _act(studio: Studio, session: Session, request: Request, body: bytes) -> Response:
    answer = studio.act(session, request.path_params["act"], _values(body))
    return _json({"answer": answer, "state": state(session, _since(request))})


def _upload(studio: Studio, session: Session, request: Request, body: bytes) -> Response:
    studio.upload(session, body, request.query_params.get("name", "photo"), request.query_params.get("to", ""))
    return _json({"state": state(session, _since(request))})


def _paint(studio: Studio, session: Session, request: Request, body: bytes) -> Response:
    """Take the paint on a photo: to keep it, to make an example of it, or as a correction."""
    key, photo = _photo(session, request)
    paint = read_paint(body, photo)
    then = request.query_params.get("then")
    if then == "example":
        add_example(session, key, paint)
    elif then == "correct":
        correct(session, key, paint, request.query_params.get("whole") == "1")
    elif then == "keep" and request.path_params["kind"] == "drafts":
        session.keep_paint(key, paint)
        return _json({})
    else:
        raise EmatError("page-outdated", "paint is kept, or becomes an example or a correction; reload the page")
    studio.sessions.search(session).start()
    studio.sessions.save(session)
    return _json({"state": state(session, _since(request))})


def _labels(studio: Studio, session: Session, request: Request, body: bytes) -> Response:
    """Give the paint that the editor begins with."""
    key, photo = _photo(session, request)
    studio.clicks.prepare(photo)
    is_draft = request.path_params["kind"] == "drafts"
    return _bytes(packed(session.paint(key, photo) if is_draft else touched(session, find_query(session, key))))


def _found(studio: Studio, session: Session, request: Request, body: bytes) -> Response:
    """Give the masks that a correction begins with."""
    return _bytes(packed(found_masks(session, find_query(session, _key(request)))))


def _similar(studio: Studio, session: Session, request: Request, body: bytes) -> Response:
    """Give the objects that look like what is painted: how many (two bytes), the class of each, an image of them."""
    key, photo = _photo(session, request)
    is_draft = request.path_params["kind"] == "drafts"
    proposals = studio.similar(session, photo, read_paint(body, photo), None if is_draft else session.found(key, photo))
    values = [session.numbers[name] for name in proposals.names]
    head = np.array([len(values) % 256, len(values) // 256, *values], np.uint8)
    return _bytes(packed(np.concatenate([head, proposals.image.ravel()])))


def _ready(studio: Studio, session: Session, request: Request, body: bytes) -> Response:
    photo = _photo(session, request)[1]
    return _json({"ready": studio.clicks.is_ready(photo)})


def _click(studio: Studio, session: Session, request: Request, body: bytes) -> Response:
    photo = _photo(session, request)[1]
    values = _values(body)
    points = values.get("points", [])
    are_points = isinstance(points, list) and all(isinstance(point, dict) for point in points)
    if not are_points or len(points) > MOST_POINTS:
        raise EmatError("bad-click", f"clicks are a list of at most {MOST_POINTS} points; begin a new outline")
    where = [(number(point, "x"), number(point, "y")) for point in points]
    inside = [whole(point, "inside") for point in points]
    box = values.get("box")
    corners = None
    if box is not None:
        if not isinstance(box, dict):
            raise EmatError("bad-click", "a box has a left, top, right and bottom; draw it again")
        corners = (number(box, "left"), number(box, "top"), number(box, "right"), number(box, "bottom"))
    return _bytes(packed(studio.clicks.mask(photo, where, inside, corners)))


def _mobilesam(studio: Studio, session: Session, request: Request, body: bytes) -> Response:
    """Say whether clicks are answered, and how far the download of what they need is."""
    return _json(studio.download.state())


def _picture(draw: Callable[[Session, Request], bytes], kind: str = "image/jpeg", kept: bool = True) -> Answer:
    """Return what answers with a picture, or with nothing if what it shows has just left the page.

    A page asks for the picture of a draft at the moment at which it becomes an example: that is nobody's mistake.
    """

    def answer(_: Studio, session: Session, request: Request, __: bytes) -> Response:
        try:
            return Response(draw(session, request), media_type=kind, headers=KEPT if kept else FRESH)
        except FileNotFoundError:
            return Response(status_code=204, headers=FRESH)
        except EmatError as error:
            if error.code not in GONE:
                raise
            return Response(status_code=204, headers=FRESH)

    return answer


def _draft_small(session: Session, request: Request) -> bytes:
    return beside(find_draft(session, _key(request)).photo.file, SMALL).read_bytes()


def _photo_file(session: Session, request: Request) -> bytes:
    return _photo(session, request)[1].file.read_bytes()


def _small(session: Session, request: Request) -> bytes:
    return masks.small_picture(session, _snapshot(session, request))


def _large(session: Session, request: Request) -> bytes:
    shows = request.query_params
    query, objects = _snapshot(session, request), shows.get("objects") == "1"
    tracks = tracks_of(session, query, query.photo.working) if objects and has_tracks(query) else None
    return masks.large_picture(session, query, objects, shows.get("unsure") == "1", tracks)


def _example(session: Session, request: Request) -> bytes:
    return masks.example_picture(session, _key(request))


def _measured_picture(session: Session, request: Request) -> bytes:
    return measuring.picture(session, _snapshot(session, request))


def _preview(session: Session, request: Request) -> bytes:
    """Draw the first plane that is chosen in the dialog about a stack."""
    asked = request.query_params
    try:
        values: dict[str, Any] = {name: int(asked.get(name, "0")) for name in ("first", "last", "every")}
        values["depth"] = int(asked["depth"]) if "depth" in asked else None
    except ValueError:
        raise EmatError("page-outdated", "the page sent a value that is not a number; reload it") from None
    values |= {"project": asked.get("project", "none"), "channels": asked.getlist("channel")}
    return preview(session, find_stack(session, _key(request)), choice_of(values))


def _result(_: Studio, session: Session, request: Request, __: bytes) -> Response:
    query = _snapshot(session, request)
    return _json([asdict(row) for row in results(session, query, request.query_params.get("objects") == "1")])


def _measure(_: Studio, session: Session, request: Request, __: bytes) -> Response:
    return _json(measuring.answer(session, _snapshot(session, request)))


def _choices(_: Studio, session: Session, request: Request, __: bytes) -> Response:
    return _json(measuring.shown_choices(session))


def _choose(_: Studio, session: Session, request: Request, body: bytes) -> Response:
    measuring.choose(session, _values(body))
    return _json(measuring.shown_choices(session))


def _report(_: Studio, session: Session, request: Request, __: bytes) -> Response:
    return Response(measuring.report_page(session, answered(session)), media_type="text/html", headers=FRESH)


def _export(_: Studio, session: Session, request: Request, body: bytes) -> Response:
    values = _values(body)
    parts = values.get("parts")
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise EmatError("page-outdated", "the page did not say what to export; reload it")
    path = export(session, parts, session.folder / "downloads", objects=values.get("objects") is True)
    return _json({"url": f"/api/{session.id}/download", "name": path.name})


def _download(_: Studio, session: Session, request: Request, __: bytes) -> Response:
    path = session.folder / "downloads" / "emat-results.zip"
    if not path.is_file():
        raise EmatError("nothing-to-save", "there is nothing to download yet; choose Download results first")
    return FileResponse(path, filename=path.name, headers=FRESH)


# kind is "drafts" or "photos"
ANSWERS: tuple[tuple[str, str, Answer], ...] = (
    ("GET", "state", _state),
    ("POST", "act/{act}", _act),
    ("POST", "upload", _upload),
    ("POST", "export", _export),
    ("GET", "download", _download),
    ("GET", "mobilesam", _mobilesam),
    ("GET", "examples/{key:int}/small.jpg", _picture(_example)),
    ("GET", "stacks/{key:int}/preview.jpg", _picture(_preview)),
    ("GET", "drafts/{key:int}/small.jpg", _picture(_draft_small)),
    ("GET", "photos/{key:int}/small.jpg", _picture(_small)),
    ("GET", "photos/{key:int}/large.jpg", _picture(_large)),
    ("GET", "photos/{key:int}/result", _result),
    ("GET", "photos/{key:int}/measure", _measure),
    ("GET", "photos/{key:int}/measured.jpg", _picture(_measured_picture, kept=False)),
    ("GET", "measure", _choices),
    ("POST", "measure", _choose),
    ("GET", "report.html", _report),
    ("GET", "{kind}/{key:int}/photo.png", _picture(_photo_file, "image/png")),
    ("GET", "{kind}/{key:int}/labels", _labels),
    ("GET", "photos/{key:int}/found", _found),
    ("GET", "{kind}/{key:int}/ready", _ready),
    ("POST", "{kind}/{key:int}/click", _click),
    ("POST", "{kind}/{key:int}/similar", _similar),
    ("POST", "{kind}/{key:int}/paint", _paint),
)


def _photo(session: Session, request: Request) -> tuple[int, StudioPhoto]:
    """The photo that an address names: one that is painted, or one that was looked at."""
    key = _key(request)
    if request.path_params["kind"] == "drafts":
        return key, find_draft(session, key).photo
    return key, find_query(session, key).photo


def _snapshot(session: Session, request: Request) -> StudioQuery:
    """The photo that an address names as it is now, whatever the search finds while it is drawn or measured."""
    return session.snapshot(find_query(session, _key(request)))


def _since(request: Request) -> int:
    """The revision of the session that the page knows; -1 if it knows none."""
    since = request.query_params.get("since", "")
    return int(since) if since.isdecimal() and len(since) < 10 else -1


def _key(request: Request) -> int:
    return int(request.path_params["key"])


def _values(body: bytes) -> Values:
    try:
        content = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise EmatError("bad-syntax", "the page sent something that is not JSON; reload it") from None
    if not isinstance(content, dict):
        raise EmatError("page-outdated", "the page sent something else than named values; reload it")
    return content


def _json(content: Any) -> Response:
    return JSONResponse(content, headers=FRESH)


def _bytes(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream", headers=FRESH)
