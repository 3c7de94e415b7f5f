"""A session in values that JSON can hold: as the page shows it, and as it is saved on disk.

A saved session is a folder with `session.json`, the examples as a fitted file, and the photos, paint and probability
maps that the session wrote there itself. A reload, a restart or a closed browser loses nothing.
"""

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.inference.forecast import POOR, WELL, Forecast
from emat.inference.segmenter import Segmenter
from emat.outputs import write_text
from emat.studio.examples import edited_index
from emat.studio.export import nothing_to_export, nothing_to_save
from emat.studio.history import changes, forecast_change, is_worse
from emat.studio.masks import is_present
from emat.studio.photos import Frame, StudioPhoto
from emat.studio.session import Draft, Session, StudioClass, StudioQuery
from emat.studio.stacks import FOLDER as STACKS
from emat.studio.stacks import waiting_stacks

FILE = "session.json"
EXAMPLES = "examples.emat"
FORMAT = 1
MOST_CHANGES = 8  # photos that a change is shown on


def state(session: Session, since: int = -1) -> dict[str, Any]:
    """Return everything that the page shows, except pictures and measurements of single photos.

    Args:
        session: Whose state it is.
        since: The revision that the page knows. Photos that did not change after it are left out.
    """
    with session.lock:
        all_changed = session.all_revision > since
        learnt = session.segmenter.classes_
        return {
            "session": session.id,
            "revision": session.revision,
            "empty": session.is_empty(),
            "classes": [
                {
                    "name": shown.name,
                    "number": shown.number,
                    "colour": "rgb({}, {}, {})".format(*shown.colour),
                    "known": shown.name in learnt,
                    "threshold": session.thresholds_of(shown.name).mask,
                    "presence": session.thresholds_of(shown.name).presence,
                    "liesOn": _below(session, shown.name),
                }
                for shown in session.classes
            ],
            "stacks": waiting_stacks(session),
            "drafts": [_draft(session, draft) for draft in session.drafts.values()],
            "examples": _examples(session),
            "forecast": [_expectation(name, forecast) for name, forecast in session.forecast.items() if name in learnt],
            "forecastIsCurrent": session.forecast_version == session.version,
            "learns": session.segmenter.learner is not None,
            "crisp": session.crisp,
            "keys": list(session.queries),
            "photos": [
                _query(session, query) for query in session.queries.values() if all_changed or query.revision > since
            ],
            "search": asdict(session.search),
            "earlier": _earlier(session),
            "cannotExport": nothing_to_export(session),
            "cannotSave": nothing_to_save(session),
        }


def _below(session: Session, name: str) -> list[int]:
    """The numbers of the classes that a class lies on: both may be where it is."""
    order = session.segmenter.overlap
    below = order[order.index(name) + 1 :] if name in order else ()
    return [session.numbers[lower] for lower in below if lower in session.numbers]


def _draft(session: Session, draft: Draft) -> dict[str, Any]:
    height, width = draft.photo.working
    return {
        "key": draft.key,
        "name": draft.photo.name,
        "width": width,
        "height": height,
        "notice": draft.photo.notice,
        "sparse": draft.sparse,
        "edits": edited_index(session, draft),
    }


def _earlier(session: Session) -> dict[str, Any] | None:
    """What the last change of the examples did, and whether it can be taken back."""
    earlier = session.earlier
    if earlier is None:
        return None
    change = forecast_change(session)
    return {
        "what": earlier.what,
        "corrected": earlier.corrected is not None,
        "kept": earlier.kept,
        "worse": is_worse(change),
        "iou": change,
        "changes": [asdict(one) for one in changes(session)[:MOST_CHANGES]],
    }


def _examples(session: Session) -> list[dict[str, Any]]:
    """The examples, each with what was reached when it was left out; one that stands out below the others is marked."""
    reached: dict[int, list[float]] = {}
    if session.forecast_version == session.version:
        for forecast in session.forecast.values():
            for index, value in forecast.left_out.items():
                reached.setdefault(index, []).append(value)
    mean = {index: sum(values) / len(values) for index, values in reached.items()}
    # The forecast names an example only where the others hardly explain it: some example is always the worst.
    doubtful = {
        index
        for forecast in session.forecast.values()
        for index, value in forecast.left_out.items()
        if forecast.least_agreeing is not None and value == forecast.least_iou
    }
    return [
        {
            "index": index,
            "name": example.name,
            "classes": [session.numbers[name] for name in example.classes if name in session.numbers],
            "sparse": example.working is not None and example.working.sparse,
            "iou": mean.get(index),
            "word": word_for(mean.get(index)),
            "doubtful": index in mean and index in doubtful,
            "stamp": f"{session.opened}-{session.version}-{index}",
        }
        for index, example in enumerate(session.segmenter.examples_)
    ]


def _expectation(name: str, forecast: Forecast) -> dict[str, Any]:
    return {
        "name": name,
        "examples": forecast.examples,
        "iou": forecast.iou,
        "presence": forecast.presence,
        "word": word_for(forecast.iou),
        "presenceWord": word_for(forecast.presence),
        "advice": advice_for(name, forecast),
    }


def advice_for(name: str, forecast: Forecast) -> str:
    """What the user can do about a class; empty if it is fine as it is."""
    if forecast.iou is None:
        return "One example does not tell how well it will work. Add a second one."
    if forecast.iou < POOR:
        return "It is hardly found with these examples. Add some that look like your photos."
    if forecast.presence is None:
        return "Add a photo that shows none of your classes, and it learns when to find nothing."
    if forecast.presence < WELL:
        return f"Photos with and without {name} look alike to it. Add photos without {name}."
    return ""


def word_for(value: float | None) -> str:
    """What an expected value means for the user.

    >>> word_for(0.8), word_for(0.5), word_for(0.1), word_for(None)
    ('good', 'usable', 'add examples', 'not known yet')
    """
    if value is None:
        return "not known yet"
    return "good" if value >= WELL else "usable" if value >= POOR else "add examples"


def _query(session: Session, query: StudioQuery) -> dict[str, Any]:
    height, width = query.photo.working
    return {
        "key": query.key,
        "name": query.photo.name,
        "width": width,
        "height": height,
        "fullWidth": query.photo.size[1],
        "fullHeight": query.photo.size[0],
        "notice": query.photo.notice,
        "frame": None if query.photo.frame is None else asdict(query.photo.frame),
        "done": query.scores is not None,
        "waiting": session.is_waiting(query),
        "corrected": query.corrected is not None,
        "whole": query.is_painted,
        "scores": {
            name: {"score": score, "present": is_present(session, query, name)}
            for name, score in (query.scores or {}).items()
            if name in session.numbers
        },
        "painted": list(query.corrected or ()),
        "uncertainty": round(query.uncertainty, 3),
        "unsureAt": query.unsure_at,
        "stamp": f"{session.opened}-{query.changes}-{session.look_of(query)}",
    }


@dataclass(frozen=True)
class SavedSession:
    """A session on disk, as the list of them shows it."""

    id: str
    classes: tuple[str, ...]
    examples: int
    photos: int
    changed: float  # seconds since 1970


def save_session(session: Session) -> None:
    """Write a session to its folder. Examples are written by `save_examples`, which may take longer."""
    with session.lock:
        if session.is_empty():
            return
        content = {
            "format": FORMAT,
            "owner": session.owner,
            "changed": time.time(),
            "classes": [[shown.name, shown.number] for shown in session.classes],
            "thresholds": session.thresholds,
            "crisp": session.crisp,
            "examples": len(session.segmenter.examples_),
            "next_key": session.next_key,
            "drafts": [
                {**_photo(draft.key, draft.photo), "sparse": draft.sparse, "edits": edited_index(session, draft)}
                for draft in session.drafts.values()
            ],
            "queries": [
                {
                    **_photo(query.key, query.photo),
                    "scores": query.scores,
                    "peaks": query.peaks,
                    "crisp_peaks": query.crisp_peaks,
                    "shares": query.shares,
                    "uncertainty": query.uncertainty,
                    "unsure_at": query.unsure_at,
                    "current": query.version == session.version,
                    "corrected": query.corrected,
                    "whole": query.whole,
                }
                for query in session.queries.values()
            ],
        }
    write_text(session.folder / FILE, json.dumps(content))


def save_examples(session: Session) -> None:
    """Write the examples of a session and what was learnt from them."""
    file = session.folder / EXAMPLES
    segmenter = session.segmenter
    if segmenter.classes_:
        segmenter.save(file)
    else:
        file.unlink(missing_ok=True)


def load_session(folder: Path, begin: Callable[[], Segmenter], open_file: Callable[[Path], Segmenter]) -> Session:
    """Read a session from its folder.

    Args:
        folder: The session's folder; its name is the session's id.
        begin: Makes the segmenter of a session that has no examples.
        open_file: Loads a fitted file.

    Raises:
        EmatError: The folder does not hold a session, or it is damaged.
    """
    content = _content(folder)
    shutil.rmtree(folder / STACKS, ignore_errors=True)  # nobody knows any more what was asked about them
    examples = folder / EXAMPLES
    try:
        session = Session(
            folder.name, str(content["owner"]), folder, open_file(examples) if examples.is_file() else begin()
        )
        session.classes = [StudioClass(str(name), int(number)) for name, number in content["classes"]]
        session.thresholds = _numbers(content["thresholds"])
        session.crisp = content.get("crisp") is not False
        session.saved_version = session.version
        session.next_key = int(content["next_key"])
        for entry in content["drafts"]:
            draft = Draft(int(entry["key"]), _photo_of(session, entry), bool(entry["sparse"]))
            if (edits := entry.get("edits")) is not None:
                draft.edits = session.segmenter.examples_[int(edits)].thumbnail
            session.drafts[draft.key] = draft
        for entry in content["queries"]:
            scores = None if entry["scores"] is None else _numbers(entry["scores"])
            query = StudioQuery(int(entry["key"]), _photo_of(session, entry), scores, _numbers(entry["peaks"]))
            query.uncertainty = _number(entry["uncertainty"])
            if entry.get("crisp_peaks") is not None:
                query.crisp_peaks = _numbers(entry["crisp_peaks"])
            query.shares = {str(look): _numbers(shares) for look, shares in entry.get("shares", {}).items()}
            if entry.get("unsure_at") is not None:
                x, y = entry["unsure_at"]
                query.unsure_at = _number(x), _number(y)
            query.version = session.version if entry["current"] else -1
            query.corrected = None if entry["corrected"] is None else tuple(map(str, entry["corrected"]))
            query.whole = entry.get("whole") is not False  # earlier versions took every correction for a whole photo
            session.queries[query.key] = query
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        raise _damaged(folder) from None
    return session


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): _number(value) for name, value in values.items()}


def _number(value: Any) -> float:
    """Return a number of a session's file; ValueError if it is not finite, which no JSON for a browser may be."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def saved_sessions(folder: Path, owner: str) -> list[SavedSession]:
    """List the sessions of one owner in a folder of sessions, the last changed first."""
    sessions = []
    for file in folder.glob(f"*/{FILE}"):
        with suppress(
            EmatError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError
        ):  # a damaged one cannot be opened anyway
            content = _content(file.parent)
            if content["owner"] == owner:
                classes = tuple(str(name) for name, _ in content["classes"])
                photos = len(content["queries"])
                changed = float(content["changed"])
                sessions.append(SavedSession(file.parent.name, classes, int(content["examples"]), photos, changed))
    return sorted(sessions, key=lambda saved: -saved.changed)


def _content(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        raise _damaged(folder) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _damaged(folder)
    return content


def _damaged(folder: Path) -> EmatError:
    return EmatError("damaged-file", f"the saved session in {folder} cannot be read; delete that folder and begin anew")


def _photo(key: int, photo: StudioPhoto) -> dict[str, Any]:
    frame = None if photo.frame is None else asdict(photo.frame)
    return {"key": key, "name": photo.name, "size": photo.size, "working": photo.working, "frame": frame}


def _photo_of(session: Session, content: dict[str, Any]) -> StudioPhoto:
    height, width = (int(side) for side in content["size"])
    rows, columns = (int(side) for side in content["working"])
    file = session.photo_file(int(content["key"]))
    if not file.is_file():
        raise ValueError(file)
    frame = content.get("frame")
    if frame is not None:
        z, t = (None if frame[axis] is None else int(frame[axis]) for axis in ("z", "t"))
        frame = Frame(int(frame["stack"]), str(frame["file"]), z, t)
    return StudioPhoto(str(content["name"]), (height, width), (rows, columns), file, frame)
