"""Connects the components of the page with actions, and says what the page shows afterwards."""

import html
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from emat.errors import EmatError
from emat.studio import actions, cards
from emat.studio.editors import Editors, Updates, draft_title
from emat.studio.masks import export_masks
from emat.studio.page import Page
from emat.studio.session import Session, Sessions, SharedMethods

# sessionStorage belongs to one tab and outlives a reload; a BrowserState would be shared by all tabs.
RECALL = "() => [sessionStorage.getItem('emat-studio') || '']"
REMEMBER = "token => { sessionStorage.setItem('emat-studio', token); }"
FETCH = "() => setTimeout(() => document.querySelector('#download')?.click(), 100)"
TO_ANSWERS = "() => document.querySelector('#answers')?.scrollIntoView({behavior: 'smooth'})"
SURE = "token => [token, confirm('Forget all classes, examples and photos of this tab?')]"


class Studio:
    """Has a handler for every event of the page. Downloads are written to `folder`."""

    def __init__(self, page: Page, methods: SharedMethods, folder: Path) -> None:
        self.page, self.methods, self.folder = page, methods, folder
        self.sessions = Sessions(methods.begin)
        self.editors = Editors(page, folder / "pictures")

    def connect(self) -> None:
        """Attach the handlers; called once, inside the page's blocks."""
        page, on = self.page, self._on
        opened = page.blocks.load(
            self.open_tab, page.kept, page.outputs(), js=RECALL, show_progress="hidden", api_visibility="private"
        )
        opened.then(None, page.kept, None, js=REMEMBER).then(**self._searching())
        self._filling(opened)
        for start in (page.add_class.click, page.name.submit):
            on(start, self.name_classes, [page.name])
        on(page.chips.click, self.press)
        on(page.demo.click, self.try_example, shows=[page.examples]).then(**self._searching())
        on(page.open_file.upload, self.open_fitted, [page.open_file], shows=[page.examples]).then(**self._searching())
        self._filling(on(page.draft_files.upload, self.drop_drafts, [page.draft_files], shows=[page.draft_files]))
        on(page.draft.brushes.click, self.press)
        on(page.mask_file.upload, self.drop_mask, [page.mask_file, page.draft.editor])
        for painter in (page.draft, page.correction):  # the editor's bin empties it, the photo included
            on(painter.editor.clear, self.editors.wipe_draft if painter is page.draft else self.editors.wipe_correction)
        added = on(page.draft.done.click, self.add_example, [page.draft.editor], shows=[page.examples])
        added.then(**self._searching())
        self._filling(added)
        self._filling(on(page.draft.leave.click, self.skip_draft))
        on(page.examples.click, self.press).then(**self._searching())
        on(page.photo_files.upload, self.drop_photos, [page.photo_files], shows=[page.photo_files]).then(
            **self._searching()
        )
        on(page.sliders.input, self.slide, trigger_mode="always_last")
        self._filling(on(page.photos.click, self.press))
        on(page.correction.brushes.click, self.press)
        on(page.correction.done.click, self.finish_correction, [page.correction.editor], shows=[page.examples]).then(
            None, None, None, js=TO_ANSWERS
        ).then(**self._searching())
        on(page.correction.leave.click, self.cancel_correction)
        on(page.export.click, self.download_masks, [page.format], shows=[page.export]).success(js=FETCH)
        on(page.save.click, self.save_fitted, shows=[page.save]).success(js=FETCH)
        on(page.start_over.click, self.start_over, [page.sure], js=SURE)

    def open_tab(self, kept: str) -> Updates:
        """Show the session of a tab that was opened or reloaded, or a new session."""
        session = self.sessions.open(kept)
        actions.cancel_correction(session)
        everything = {**self._whole(session), **self.editors.draft(session), **self.editors.correction(session)}
        return {self.page.token: session.token, self.page.kept: session.token, **everything}

    def press(self, session: Session, event: dict[str, Any]) -> Updates:
        """Handle a button inside our own HTML, whose `data-act` says what it does."""
        act, value = str(event.get("act")), _whole_number(event.get("value"))
        if act == "remove-class":
            actions.remove_class(session, value)
            return {**self._whole(session), **self.editors.brushes(session)}
        if act == "brush":
            actions.choose_brush(session, value)
            return self.editors.brushes(session)
        if act == "remove-example":
            actions.remove_example(session, value)
            return self._whole(session)
        if act == "remove-photo":
            actions.remove_photo(session, value)
            return {**self._whole(session), **self.editors.correction(session, keep=True)}
        if act == "page":
            session.first_shown = value
            return {self.page.photos: cards.photo_cards(session)}
        if act == "correct":
            actions.begin_correction(session, value)
            return self.editors.correction(session)
        raise EmatError("this button is not known; reload the page")

    def name_classes(self, session: Session, text: str) -> Updates:
        """Add the classes that were typed."""
        actions.add_classes(session, text or "")
        return {**self._whole(session), **self.editors.brushes(session), self.page.name: ""}

    def try_example(self, session: Session) -> Updates:
        """Load the photos of `emat demo`."""
        actions.start_demo(session)
        return {**self._whole(session), **self.editors.brushes(session)}

    def open_fitted(self, session: Session, file: str) -> Updates:
        """Load the classes and examples of a .emat file."""
        actions.take_over(session, self.methods.open_file(Path(file)))
        return {**self._whole(session), **self.editors.brushes(session), **self.editors.correction(session)}

    def drop_drafts(self, session: Session, files: Sequence[str] | None) -> Updates:
        """Queue photos to paint on; a photo that is in the editor stays there."""
        empty = not session.drafts
        _warn(actions.add_drafts(session, [Path(file) for file in files or ()]))
        shown = self.editors.draft(session) if empty else {self.page.draft.title: draft_title(session)}
        return {self.page.draft_files: None, **shown}

    def drop_mask(self, session: Session, file: str, painted: dict[str, Any] | None) -> Updates:
        """Use a mask file instead of paint."""
        masks = actions.add_mask_file(session, Path(file), _layers(painted))
        return self.editors.put_masks(session, masks)

    def add_example(self, session: Session, painted: dict[str, Any] | None) -> Updates:
        """Make an example of what was painted."""
        actions.add_example(session, _layers(painted))
        return {**self._whole(session), **self.editors.draft(session)}

    def skip_draft(self, session: Session) -> Updates:
        """Go on to the next photo."""
        actions.skip_draft(session)
        return self.editors.draft(session)

    def drop_photos(self, session: Session, files: Sequence[str] | None) -> Updates:
        """Add photos in which the classes are to be found."""
        _warn(actions.add_photos(session, [Path(file) for file in files or ()]))
        return {**self._whole(session), self.page.photo_files: None}

    def slide(self, session: Session, event: dict[str, Any]) -> Updates:
        """Set a threshold and colour the cards again, from the probabilities that are there already."""
        actions.set_threshold(session, _whole_number(event.get("number")), _number(event.get("value")))
        return {self.page.photos: cards.photo_cards(session)}

    def finish_correction(self, session: Session, painted: dict[str, Any] | None) -> Updates:
        """Keep what was painted as the photo's masks, and make it an example."""
        if not actions.finish_correction(session, _layers(painted)):
            gr.Info("Nothing is painted, so the photo counts as empty. It teaches nothing and is not an example.")
        return {**self._whole(session), **self.editors.correction(session)}

    def cancel_correction(self, session: Session) -> Updates:
        """Close the editor and keep the prediction."""
        actions.cancel_correction(session)
        return self.editors.correction(session)

    def download_masks(self, session: Session, format: str) -> Updates:
        """Offer a zip file with all masks."""
        return {self.page.download: str(export_masks(session, format, self.folder / session.token))}

    def save_fitted(self, session: Session) -> Updates:
        """Offer the fitted segmenter as a .emat file."""
        return {self.page.download: str(actions.save_fitted(session, self.folder / session.token))}

    def start_over(self, session: Session, sure: bool) -> Updates:
        """Empty the page, if the user is sure."""
        if not sure:
            return {}
        actions.start_over(session, self.methods.begin())
        return {**self._whole(session), **self.editors.draft(session), **self.editors.correction(session)}

    def search(self, token: str) -> Iterator[Updates]:
        """Predict the photos that have no prediction yet, and show each as soon as it is done."""
        page = self.page
        try:
            session = self.sessions.find(token)
            for progress in actions.search(session):
                updates = {page.progress: cards.progress_line(progress.done, progress.count)}
                if progress.query is not None and cards.is_shown(session, progress.query):
                    updates[page.photos] = cards.photo_cards(session)
                yield updates
            yield {page.progress: ""}
        except EmatError as error:
            raise _sentence(error) from None

    def _on(
        self,
        start: Callable[..., Any],
        handler: Callable[..., Updates],
        inputs: Sequence[Any] = (),
        shows: Sequence[Any] = (),
        **options: Any,
    ) -> Any:
        """Run `handler` with the tab's session when `start` happens; `shows` are the components that show a wait."""
        waiting = (
            {"show_progress": "minimal", "show_progress_on": list(shows)} if shows else {"show_progress": "hidden"}
        )
        arguments = {"api_visibility": "private", "concurrency_limit": 4, **waiting, **options}
        return start(self._with_session(handler), [self.page.token, *inputs], self.page.outputs(), **arguments)

    def _with_session(self, handler: Callable[..., Updates]) -> Callable[..., Updates]:
        """Give `handler` the session instead of its token, and show its errors in the page."""

        def run(token: str, *inputs: Any) -> Updates:
            try:
                return handler(self.sessions.find(token), *inputs) or gr.skip()
            except EmatError as error:
                raise _sentence(error) from None

        def run_with_event(token: str, event: gr.EventData) -> Updates:
            return run(token, event._data if isinstance(event._data, dict) else {})

        # Gradio hands over the event where a signature asks for it.
        return run_with_event if handler in (self.press, self.slide) else run

    def _filling(self, event: Any) -> None:
        """Fill the editors that `event` has emptied, in steps: first the photo, then its paint.

        The editor places paint by the largest of what it holds, so the photo before must be gone and this one there.
        """
        editors = [self.page.draft.editor, self.page.correction.editor]
        arguments = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": 4}
        for step in (self.editors.put_photos, self.editors.put_paint):
            event = event.success(self._with_session(step), self.page.token, editors, **arguments)

    def _searching(self) -> dict[str, Any]:
        return {
            "fn": self.search,
            "inputs": self.page.token,
            "outputs": [self.page.progress, self.page.photos],
            "show_progress": "hidden",
            "api_visibility": "private",
            "concurrency_limit": 4,
        }

    def _whole(self, session: Session) -> Updates:
        """Return the contents of everything but the editors."""
        page = self.page
        return {
            page.demo: gr.update(visible=session.is_empty()),
            page.chips: cards.class_chips(session),
            page.examples: cards.example_cards(session),
            page.sliders: cards.threshold_sliders(session),
            page.photos: cards.photo_cards(session),
        }


def _layers(painted: dict[str, Any] | None) -> list[Any]:
    return list(painted["layers"]) if painted else []


def _sentence(error: EmatError) -> Exception:
    """Return the error as the page shows it."""
    text = str(error)
    return gr.Error(html.escape(text[:1].upper() + text[1:]), duration=12, title="One moment", print_exception=False)


def _warn(problems: Sequence[EmatError]) -> None:
    for problem in problems:
        gr.Warning(html.escape(str(problem)), duration=12, title="Left out")


def _whole_number(value: Any) -> int:
    return int(_number(value))


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or not -1e9 < value < 1e9:
        raise EmatError("the page sent a value that is not a number; reload it")
    return float(value)
