"""The two editors: which photo and which paint are in them."""

import hashlib
import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
from PIL import Image

from emat.formats.whole_files import whole_file
from emat.inference.example import Mask
from emat.studio import actions, cards
from emat.studio.page import Page, Painter, brush
from emat.studio.painting import paint_of
from emat.studio.photos import StudioPhoto
from emat.studio.session import Session

Updates = dict[Any, Any]


class Editors:
    """What a session shows in the editors of `page`. Pictures for them are written into `folder`."""

    def __init__(self, page: Page, folder: Path) -> None:
        self.page, self.folder = page, folder

    def brushes(self, session: Session) -> Updates:
        """The classes to choose from, and the chosen one's colour on the brush; paint and photo stay."""
        updates: Updates = {}
        for painter in (self.page.draft, self.page.correction):
            updates[painter.brushes] = cards.brush_chips(session)
            updates[painter.editor] = gr.update(brush=brush(session.colours.get(session.brush or "")))
        return updates

    def draft(self, session: Session) -> Updates:
        """The editor of step 2: emptied for the next photo, or hidden when there is none."""
        if not session.drafts:
            return self._closed(self.page.draft)
        return self._opened("draft", session, draft_title(session))

    def correction(self, session: Session, keep: bool = False) -> Updates:
        """The editor of step 4, emptied or hidden likewise; with `keep` a correction that goes on is left alone."""
        if session.correcting is None:
            return self._closed(self.page.correction)
        if keep:
            return {}
        name = html.escape(actions.corrected_question(session).photo.name)
        return self._opened("correction", session, f'<p class="quiet">Correcting <b>{name}</b></p>')

    def put_photos(self, session: Session) -> Updates:
        """Photos into the editors that were emptied for them."""
        values = {}
        if "draft" in session.unfilled and session.drafts:
            values[self.page.draft.editor] = self._value(session, session.drafts[0], {})
        if "correction" in session.unfilled and session.correcting is not None:
            values[self.page.correction.editor] = self._value(session, actions.corrected_question(session).photo, {})
        return values

    def put_masks(self, session: Session, masks: Mapping[str, Mask]) -> Updates:
        """Masks as paint on the photo that is to be an example."""
        return {self.page.draft.editor: self._value(session, session.drafts[0], masks)}

    def put_paint(self, session: Session) -> Updates:
        """The prediction as paint on the photo that is corrected."""
        filled, session.unfilled = session.unfilled, set()
        if "correction" not in filled or session.correcting is None:
            return {}
        question = actions.corrected_question(session)
        masks = actions.shown_masks(session, question)
        return {self.page.correction.editor: self._value(session, question.photo, masks)}

    def wipe_draft(self, session: Session) -> Updates:
        """The photo again, without paint."""
        return {self.page.draft.editor: self._value(session, session.drafts[0], {})} if session.drafts else {}

    def wipe_correction(self, session: Session) -> Updates:
        """The photo again, without paint."""
        if session.correcting is None:
            return {}
        photo = actions.corrected_question(session).photo
        return {self.page.correction.editor: self._value(session, photo, {})}

    def _opened(self, which: str, session: Session, title: str) -> Updates:
        """An empty editor, which waits for `put_photos` and `put_paint`."""
        session.unfilled.add(which)
        painter: Painter = getattr(self.page, which)
        return {
            painter.panel: gr.update(visible=True),
            painter.title: title,
            painter.brushes: cards.brush_chips(session),
            painter.editor: gr.update(value=None, brush=brush(session.colours.get(session.brush or ""))),
        }

    def _closed(self, painter: Painter) -> Updates:
        return {painter.panel: gr.update(visible="hidden"), painter.editor: None}

    def _value(self, session: Session, photo: StudioPhoto, masks: Mapping[str, Mask]) -> dict[str, Any]:
        size = (photo.pixels.shape[0], photo.pixels.shape[1])
        layers = [self._file(paint_of(masks, session.colours, size))] if masks else []
        return {"background": self._file(Image.fromarray(photo.pixels)), "layers": layers, "composite": None}

    def _file(self, picture: Image.Image) -> str:
        """The picture as a file that is written once: Gradio would write it anew while a browser reads it."""
        content = hashlib.sha256(f"{picture.mode} {picture.size}".encode())
        content.update(np.asarray(picture).tobytes())
        place = self.folder / f"{content.hexdigest()[:32]}.png"
        if not place.is_file():
            with whole_file(place) as unfinished:
                picture.save(unfinished, "PNG")
        return str(place)


def draft_title(session: Session) -> str:
    """Which photo is painted, and how many wait."""
    left = len(session.drafts) - 1
    more = f", {left} more waiting" if left else ""
    return f'<p class="quiet">Painting <b>{html.escape(session.drafts[0].name)}</b>{more}</p>'
