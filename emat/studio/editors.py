"""The photos and the paint in the two editors, for new examples and for corrections."""

import hashlib
import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
from PIL import Image

from emat.files import whole_file
from emat.inference.example import Mask
from emat.studio import actions, cards
from emat.studio.page import Page, Painter, brush
from emat.studio.photos import StudioPhoto, paint_of
from emat.studio.session import Session

Updates = dict[Any, Any]


class Editors:
    """Fills the editors of `page` from a session. Pictures for them are written to `folder`."""

    def __init__(self, page: Page, folder: Path) -> None:
        self.page, self.folder = page, folder

    def brushes(self, session: Session) -> Updates:
        """Show the classes to choose from and give the brush the chosen one's colour; paint and photo stay."""
        updates: Updates = {}
        for painter in (self.page.draft, self.page.correction):
            updates[painter.brushes] = cards.brush_chips(session)
            updates[painter.editor] = gr.update(brush=brush(session.colours.get(session.brush or "")))
        return updates

    def draft(self, session: Session) -> Updates:
        """Empty the editor of step 2 for the next photo, or hide it when there is none."""
        if not session.drafts:
            return self._closed(self.page.draft)
        return self._opened("draft", session, draft_title(session))

    def correction(self, session: Session, keep: bool = False) -> Updates:
        """Empty or hide the editor of step 4; with `keep`, a correction that is not finished stays as it is."""
        if session.correcting is None:
            return self._closed(self.page.correction)
        if keep:
            return {}
        name = html.escape(actions.corrected_query(session).photo.name)
        return self._opened("correction", session, f'<p class="quiet">Correcting <b>{name}</b></p>')

    def put_photos(self, session: Session) -> Updates:
        """Put photos into the editors that were emptied for them."""
        values = {}
        if "draft" in session.unfilled and session.drafts:
            values[self.page.draft.editor] = self._value(session, session.drafts[0], {})
        if "correction" in session.unfilled and session.correcting is not None:
            values[self.page.correction.editor] = self._value(session, actions.corrected_query(session).photo, {})
        return values

    def put_masks(self, session: Session, masks: Mapping[str, Mask]) -> Updates:
        """Put masks as paint on the photo that is to become an example."""
        return {self.page.draft.editor: self._value(session, session.drafts[0], masks)}

    def put_paint(self, session: Session) -> Updates:
        """Put the prediction as paint on the photo that is being corrected."""
        filled, session.unfilled = session.unfilled, set()
        if "correction" not in filled or session.correcting is None:
            return {}
        query = actions.corrected_query(session)
        masks = actions.shown_masks(session, query)
        return {self.page.correction.editor: self._value(session, query.photo, masks)}

    def wipe_draft(self, session: Session) -> Updates:
        """Show the photo again, without paint."""
        return {self.page.draft.editor: self._value(session, session.drafts[0], {})} if session.drafts else {}

    def wipe_correction(self, session: Session) -> Updates:
        """Show the photo again, without paint."""
        if session.correcting is None:
            return {}
        photo = actions.corrected_query(session).photo
        return {self.page.correction.editor: self._value(session, photo, {})}

    def _opened(self, which: str, session: Session, title: str) -> Updates:
        """Return an empty editor; `put_photos` and `put_paint` fill it later."""
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
        """Write the picture to a file once. Gradio would write it again while a browser reads it."""
        content = hashlib.sha256(f"{picture.mode} {picture.size}".encode())
        content.update(np.asarray(picture).tobytes())
        path = self.folder / f"{content.hexdigest()[:32]}.png"
        if not path.is_file():
            with whole_file(path) as unfinished:
                picture.save(unfinished, "PNG")
        return str(path)


def draft_title(session: Session) -> str:
    """Say which photo is being painted and how many are waiting."""
    left = len(session.drafts) - 1
    more = f", {left} more waiting" if left else ""
    return f'<p class="quiet">Painting <b>{html.escape(session.drafts[0].name)}</b>{more}</p>'
