"""The components of the page, one column of five steps. `events` connects them with actions."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import gradio as gr

from emat.images import MASK_SUFFIXES, PHOTO_SUFFIXES
from emat.studio.masks import FORMATS
from emat.studio.photos import OPACITY

STYLE = Path(__file__).with_name("style.css")
FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")  # of the machine: none is fetched
EDITOR_HEIGHT = "min(520px, 85vw)"
BRUSH_SIZE = 24
SMALLEST = (16, 16)  # of an empty editor: it places paint in the middle of this or the photo, whichever is larger

# Every button in our HTML says what it does in `data-act`; one listener serves all that are ever drawn.
CLICKS = """
element.addEventListener('click', event => {
  const button = event.target.closest('[data-act]');
  if (!button || button.disabled) return;
  trigger('click', {act: button.dataset.act, value: Number(button.dataset.value)});
  if (button.dataset.act === 'correct') document.querySelector('#correct').scrollIntoView({behavior: 'smooth'});
});
"""
SLIDES = """
element.addEventListener('input', event => {
  const slider = event.target;
  const share = Math.round(slider.value * 100) + '%';
  slider.parentElement.querySelector('b').textContent = share;
  slider.parentElement.style.setProperty('--share', share);
  trigger('input', {number: Number(slider.dataset.number), value: Number(slider.value)});
});
"""


@dataclass(frozen=True)
class Painter:
    """The components of an editor: the photo, the brushes, and the buttons for what was painted."""

    panel: Any
    title: Any
    brushes: Any
    editor: Any
    done: Any
    leave: Any


@dataclass(frozen=True)
class Page:
    """Holds every component that an event reads or writes."""

    blocks: Any
    token: Any  # of the tab's session: kept on the server, so a browser cannot claim another's
    kept: Any  # the same as the tab remembers it when it is reloaded
    demo: Any
    open_file: Any
    name: Any
    add_class: Any
    chips: Any
    draft_files: Any
    draft: Painter
    mask_file: Any
    examples: Any
    photo_files: Any
    sliders: Any
    progress: Any
    photos: Any
    correction: Painter
    format: Any
    export: Any
    save: Any
    start_over: Any
    sure: Any  # that all is to be forgotten
    download: Any

    def outputs(self) -> list[Any]:
        """Return every component that a handler may change."""
        own = [getattr(self, field.name) for field in fields(self)]
        flat = [part for item in own for part in (_parts(item) if isinstance(item, Painter) else [item])]
        return [part for part in flat if part is not self.blocks]


def theme() -> Any:
    """Return a theme with quiet colours and the fonts of the machine."""
    return gr.themes.Base(
        primary_hue="blue",
        neutral_hue="slate",
        radius_size="lg",
        font=list(FONTS),
        font_mono=["ui-monospace", "monospace"],
    )


def build_page() -> Page:
    """Build the components, without any events."""
    with gr.Blocks(title="emat studio", analytics_enabled=False, delete_cache=(3600, 86400)) as blocks:
        token, kept, sure = gr.State(), gr.Textbox(visible=False), gr.Checkbox(visible=False)
        with gr.Column(elem_id="studio"):
            gr.HTML(
                "<h1>emat studio</h1><p>Show a few photos, paint what matters, get masks on all the others. "
                "Everything stays on this machine.</p>",
                elem_id="head",
            )
            with gr.Row(elem_id="welcome"):
                demo = gr.Button("Try an example", variant="primary", elem_id="demo", min_width=160, scale=0)
                open_file = gr.UploadButton(
                    "Open a .emat file", file_types=[".emat"], elem_id="open-file", min_width=160, scale=0
                )
            name, add_class, chips = _classes_step()
            draft_files, draft, mask_file, examples = _examples_step()
            photo_files, sliders, progress, photos = _photos_step()
            correction = _correction_step()
            format, export, save, start_over, download = _export_step()
    return Page(
        blocks, token, kept, demo, open_file, name, add_class, chips, draft_files, draft, mask_file, examples,
        photo_files, sliders, progress, photos, correction, format, export, save, start_over, sure, download,
    )  # fmt: skip


def brush(colour: tuple[int, int, int] | None) -> Any:
    """Return a brush in the colour of one class; the classes are chosen above the editor, where they have names."""
    paint = ("rgb({}, {}, {})".format(*(colour or (128, 128, 128))), OPACITY)
    return gr.Brush(colors=[paint], default_color=paint, color_mode="fixed", default_size=BRUSH_SIZE)


def _classes_step() -> tuple[Any, Any, Any]:
    with gr.Column(elem_classes="step"):
        _title(1, "Name your classes", "What should be found? Each class gets its colour.")
        with gr.Row(equal_height=True):
            name = gr.Textbox(
                placeholder="cat, dog", show_label=False, container=False, max_lines=1, scale=4, elem_id="class-name"
            )
            add = gr.Button("Add", scale=1, min_width=90, elem_id="add-class")
        chips = gr.HTML(js_on_load=CLICKS, elem_id="classes")
    return name, add, chips


def _examples_step() -> tuple[Any, Painter, Any, Any]:
    with gr.Column(elem_classes="step"):
        _title(2, "Show examples", "Drop photos that show the classes, and paint over what belongs to each.")
        files = _drop("draft-files")
        draft, mask_file = _painter("draft", "Add example", "Skip this photo", mask=True)
        examples = gr.HTML(js_on_load=CLICKS, elem_id="examples")
    return files, draft, mask_file, examples


def _photos_step() -> tuple[Any, Any, Any, Any]:
    with gr.Column(elem_classes="step"):
        _title(
            3, "Find them in other photos", "Drop as many as you like. Moving a slider never asks the network again."
        )
        files = _drop("photo-files")
        sliders = gr.HTML(js_on_load=SLIDES, elem_id="sliders")
        progress = gr.HTML(elem_id="progress")
        photos = gr.HTML(js_on_load=CLICKS, elem_id="answers")
    return files, sliders, progress, photos


def _correction_step() -> Painter:
    with gr.Column(elem_classes="step", elem_id="correct"):
        _title(4, "Correct what is wrong", "Choose Correct under a photo: what you paint there becomes a new example.")
        painter, _ = _painter("correction", "Add as example", "Cancel", mask=False)
    return painter


def _export_step() -> tuple[Any, Any, Any, Any, Any]:
    with gr.Column(elem_classes="step"):
        _title(5, "Take it with you", "Masks for annotation tools, or what was learned as one file for later.")
        format = gr.Radio(
            [(label, value) for value, label in FORMATS.items()], value="png", show_label=False, container=False,
            elem_id="format",
        )  # fmt: skip
        with gr.Row():
            export = gr.Button("Download masks", variant="primary", elem_id="export", min_width=160)
            save = gr.Button("Save as .emat", elem_id="save", min_width=160)
        start_over = gr.Button("Start over", variant="secondary", size="sm", elem_id="start-over", scale=0)
        download = gr.DownloadButton("Download", elem_id="download", elem_classes="out-of-sight")
    return format, export, save, start_over, download


def _painter(name: str, done: str, leave: str, mask: bool) -> tuple[Painter, Any]:
    with gr.Column(visible="hidden", elem_classes="painter", elem_id=name) as panel:
        title = gr.HTML()
        brushes = gr.HTML(js_on_load=CLICKS, elem_classes="brushes")
        editor = gr.ImageEditor(
            sources=(), type="numpy", image_mode="RGBA", format="png", transforms=(), layers=False,
            canvas_size=SMALLEST, brush=brush(None), eraser=gr.Eraser(default_size=BRUSH_SIZE), buttons=["fullscreen"],
            height=EDITOR_HEIGHT, show_label=False, elem_id=f"{name}-editor",
        )  # fmt: skip
        with gr.Row():
            done_button = gr.Button(done, variant="primary", elem_id=f"{name}-done", min_width=140)
            leave_button = gr.Button(leave, elem_id=f"{name}-leave", min_width=140)
            file = (
                gr.UploadButton(
                    "Use a mask file", file_types=list(MASK_SUFFIXES), elem_id=f"{name}-mask", min_width=140
                )
                if mask
                else None
            )
    return Painter(panel, title, brushes, editor, done_button, leave_button), file


def _drop(elem_id: str) -> Any:
    return gr.File(
        file_count="multiple", file_types=list(PHOTO_SUFFIXES), height=120, show_label=False, elem_id=elem_id
    )


def _title(number: int, text: str, hint: str) -> None:
    gr.HTML(f"<h2><span>{number}</span>{text}</h2><p>{hint}</p>", elem_classes="title")


def _parts(painter: Painter) -> list[Any]:
    return [getattr(painter, field.name) for field in fields(painter)]
