"""A session as HTML. Names come from the user and are always escaped."""

import base64
import html
import io

import numpy as np
from PIL import Image

from emat.images import Pixels, resize_photo
from emat.inference.fitted_file import FittedExample
from emat.pictures.overlay import draw_overlay
from emat.studio.masks import is_present, label_map, thresholds_of
from emat.studio.session import Session, StudioClass, StudioQuery

CARD_SIDE = 560  # pixels of a picture's longer side
CARDS_A_PAGE = 12
QUALITY = 86


def class_chips(session: Session) -> str:
    """Return the classes with their colours and buttons to remove them."""
    if not session.classes:
        return _empty("No class yet. Name what you want to find, such as <em>cat</em> or <em>rust</em>.")
    chips = "".join(
        f'<span class="chip" style="{_colour(shown)}"><i></i>{html.escape(shown.name)}'
        f"{_cross('remove-class', shown.number, shown.name)}</span>"
        for shown in session.classes
    )
    return f'<div class="chips">{chips}</div>'


def brush_chips(session: Session) -> str:
    """Return the classes that the brush can paint; one of them is marked as chosen."""
    chips = "".join(
        f'<button type="button" class="chip" style="{_colour(shown)}" data-act="brush" data-value="{shown.number}" '
        f'aria-pressed="{"true" if shown.name == session.brush else "false"}"><i></i>{html.escape(shown.name)}</button>'
        for shown in session.classes
    )
    return f'<div class="chips"><span class="quiet">Paint</span>{chips}</div>'


def example_cards(session: Session) -> str:
    """Return the examples with their masks and buttons to remove them."""
    examples = session.segmenter.examples_
    if not examples:
        return _empty("No example yet. Two or three photos of each class are a good beginning.")
    cards = "".join(_example_card(session, index, example) for index, example in enumerate(examples))
    return f'<div class="cards small">{cards}</div>'


def threshold_sliders(session: Session) -> str:
    """Return a slider for each class that the examples show."""
    known = [shown for shown in session.classes if shown.name in session.segmenter.classes_]
    if not known or not session.queries:
        return ""
    rows = "".join(_slider(session, shown) for shown in known)
    return f'<div class="sliders"><p class="quiet">How sure must it be? Lower shows more, higher less.</p>{rows}</div>'


def progress_line(done: int, count: int) -> str:
    """Return a progress bar, or nothing when all photos are done."""
    if done >= count:
        return ""
    return (
        f'<div class="progress" role="status"><span class="bar"><i style="width: {done / count:.0%}"></i></span>'
        f"Looking at photo {done + 1} of {count}</div>"
    )


def photo_cards(session: Session) -> str:
    """Return the photos of the current page of cards with what was found in them."""
    queries = list(session.queries.values())
    if not queries:
        return _empty("No photo yet. Drop as many as you like: each comes back with its masks.")
    first = shown_from(session)
    cards = "".join(_photo_card(session, query) for query in queries[first : first + CARDS_A_PAGE])
    return f'<div class="cards">{cards}</div>{_pager(first, len(queries))}'


def is_shown(session: Session, query: StudioQuery) -> bool:
    """Say whether the query is on the current page of cards."""
    first = shown_from(session)
    return query.key in list(session.queries)[first : first + CARDS_A_PAGE]


def shown_from(session: Session) -> int:
    """Return the index of the first card that is shown; it begins a page of cards that exists."""
    last = max(0, len(session.queries) - 1)
    return min(max(0, session.first_shown), last) // CARDS_A_PAGE * CARDS_A_PAGE


def _example_card(session: Session, index: int, example: FittedExample) -> str:
    shown = [known for known in session.classes if known.name in example.classes]
    picture = '<div class="picture none">no picture kept</div>'
    if example.thumbnail is not None:
        labels = np.zeros(example.thumbnail.photo.shape[:2], np.uint8)
        for known in shown:
            labels[example.thumbnail.masks[known.name]] = known.number
        picture = _picture(draw_overlay(example.thumbnail.photo, labels, {}, legend=False), example.name)
    names = "".join(f'<span style="{_colour(known)}"><i></i>{html.escape(known.name)}</span>' for known in shown)
    cross = _cross("remove-example", index, f"the example {example.name}")
    return f'<figure>{cross}{picture}<figcaption class="names">{names}</figcaption></figure>'


def _photo_card(session: Session, query: StudioQuery) -> str:
    small = _small(query.photo.pixels)
    labels = label_map(
        session, query, {shown.name: shown.number for shown in session.classes}, (small.shape[0], small.shape[1])
    )
    picture = _picture(draw_overlay(small, labels, {}, legend=False), query.photo.name)
    key = query.key
    return (
        f'<figure data-photo="{key}">{_cross("remove-photo", key, query.photo.name)}{picture}'
        f"<figcaption><b>{html.escape(query.photo.name)}</b>{_verdict(session, query)}</figcaption>"
        f'<button type="button" class="plain" data-act="correct" data-value="{key}">Correct</button></figure>'
    )


def _verdict(session: Session, query: StudioQuery) -> str:
    """Return score bars of the classes that are present and one line for those that are not."""
    if query.corrected is not None:
        names = ", ".join(html.escape(name) for name in query.corrected) or "nothing here"
        return f'<p class="quiet">painted by you: {names}</p>'
    if query.prediction is None:
        waiting = "waiting" if session.segmenter.examples_ else "waiting for your first example"
        return f'<p class="quiet">{waiting}</p>'
    known = [shown for shown in session.classes if shown.name in query.prediction.scores]
    here = [shown for shown in known if is_present(session, query, shown.name)]
    absent = [shown for shown in known if shown not in here]
    bars = "".join(_bar(session, shown, query.prediction.scores[shown.name]) for shown in here)
    if absent:
        scores = ", ".join(f"{html.escape(a.name)} ({query.prediction.scores[a.name]:.0%})" for a in absent)
        bars += f'<p class="quiet absent">not here: {scores}</p>'
    return bars


def _bar(session: Session, shown: StudioClass, score: float) -> str:
    tick = thresholds_of(session, shown.name).presence
    return (
        f'<div class="score" style="{_colour(shown)}"><span>{html.escape(shown.name)}</span>'
        f'<span class="bar"><i style="width: {score:.0%}"></i><u style="left: {tick:.0%}"></u></span>'
        f"<b>{score:.0%}</b></div>"
    )


def _slider(session: Session, shown: StudioClass) -> str:
    value = thresholds_of(session, shown.name).mask
    return (
        f'<label class="score" style="{_colour(shown)}; --share: {value:.0%}"><span>{html.escape(shown.name)}</span>'
        f'<input type="range" min="0.02" max="0.98" step="0.02" value="{value:.2f}" data-number="{shown.number}" '
        f'aria-label="Threshold of {html.escape(shown.name)}"><b>{value:.0%}</b></label>'
    )


def _pager(first: int, count: int) -> str:
    if count <= CARDS_A_PAGE:
        return ""
    last = min(first + CARDS_A_PAGE, count)
    earlier = f'data-act="page" data-value="{first - CARDS_A_PAGE}"{"" if first else " disabled"}'
    later = f'data-act="page" data-value="{last}"{"" if last < count else " disabled"}'
    return (
        f'<div class="pager"><button type="button" class="plain" {earlier}>Earlier</button>'
        f'<span class="quiet">{first + 1} to {last} of {count}</span>'
        f'<button type="button" class="plain" {later}>Later</button></div>'
    )


def _small(photo: Pixels) -> Pixels:
    height, width = photo.shape[:2]
    scale = min(1.0, CARD_SIDE / max(height, width))
    return photo if scale == 1 else resize_photo(photo, (max(1, round(height * scale)), max(1, round(width * scale))))


def _picture(image: Image.Image, name: str) -> str:
    data = io.BytesIO()
    image.save(data, "JPEG", quality=QUALITY)
    source = "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()
    return f'<div class="picture"><img alt="{html.escape(name)}" src="{source}"></div>'


def _cross(act: str, value: int, what: str) -> str:
    label = html.escape(f"Remove {what}")
    return (
        f'<button type="button" class="cross" data-act="{act}" data-value="{value}" '
        f'aria-label="{label}" title="{label}">×</button>'
    )


def _colour(shown: StudioClass) -> str:
    return "--colour: rgb({}, {}, {})".format(*shown.colour)


def _empty(text: str) -> str:
    return f'<p class="empty">{text}</p>'
