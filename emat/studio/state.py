"""A session as the page shows it, in values that JSON can hold."""

from dataclasses import asdict
from typing import Any

from emat.inference.forecast import POOR, WELL, Forecast
from emat.studio.export import nothing_to_export, nothing_to_save
from emat.studio.masks import is_present, thresholds_of
from emat.studio.session import Draft, Session, StudioQuery


def state(session: Session) -> dict[str, Any]:
    """Return everything that the page shows, except pictures and measurements of single photos."""
    with session.lock:
        known = session.segmenter.classes_
        return {
            "session": session.id,
            "revision": session.revision,
            "empty": session.is_empty(),
            "classes": [
                {
                    "name": shown.name,
                    "number": shown.number,
                    "colour": "rgb({}, {}, {})".format(*shown.colour),
                    "known": shown.name in known,
                    "threshold": thresholds_of(session, shown.name).mask,
                    "presence": thresholds_of(session, shown.name).presence,
                }
                for shown in session.classes
            ],
            "drafts": [_draft(draft) for draft in session.drafts.values()],
            "examples": _examples(session),
            "forecast": [_expectation(name, forecast) for name, forecast in session.forecast.items() if name in known],
            "forecastIsCurrent": session.forecast_version == session.version,
            "learns": session.segmenter.method.learns,
            "photos": [_query(session, query) for query in session.queries.values()],
            "search": asdict(session.search),
            "cannotExport": nothing_to_export(session),
            "cannotSave": nothing_to_save(session),
        }


def _draft(draft: Draft) -> dict[str, Any]:
    height, width = draft.photo.working
    return {"key": draft.key, "name": draft.photo.name, "width": width, "height": height, "sparse": draft.sparse}


def _examples(session: Session) -> list[dict[str, Any]]:
    """The examples, each with what was reached when it was left out; the worst one is marked."""
    reached: dict[int, list[float]] = {}
    if session.forecast_version == session.version:
        for forecast in session.forecast.values():
            for index, value in forecast.left_out.items():
                reached.setdefault(index, []).append(value)
    mean = {index: sum(values) / len(values) for index, values in reached.items()}
    worst = min(mean, key=lambda index: mean[index]) if len(mean) > 1 else None
    return [
        {
            "index": index,
            "name": example.name,
            "classes": [session.numbers[name] for name in example.classes if name in session.numbers],
            "sparse": example.working is not None and example.working.sparse,
            "iou": mean.get(index),
            "worst": index == worst,
            "stamp": f"{session.version}-{index}",
        }
        for index, example in enumerate(session.segmenter.examples_)
    ]


def _expectation(name: str, forecast: Forecast) -> dict[str, Any]:
    sentence = forecast.sentence(name)
    return {
        "name": name,
        "examples": forecast.examples,
        "iou": forecast.iou,
        "presence": forecast.presence,
        "word": word_for(forecast.iou),
        "presenceWord": word_for(forecast.presence),
        "sentence": sentence[:1].upper() + sentence[1:] + "." if sentence else "",
    }


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
        "done": query.scores is not None,
        "current": query.version == session.version,
        "corrected": query.corrected is not None,
        "scores": {
            name: {"score": score, "present": is_present(session, query, name)}
            for name, score in (query.scores or {}).items()
            if name in session.numbers
        },
        "painted": list(query.corrected or ()),
        "uncertainty": round(query.uncertainty, 3),
        "stamp": f"{query.changes}-{_thresholds_stamp(session)}",
    }


def _thresholds_stamp(session: Session) -> str:
    return "-".join(
        f"{session.numbers.get(name, 0)}.{round(value * 100)}" for name, value in session.thresholds.items()
    )
