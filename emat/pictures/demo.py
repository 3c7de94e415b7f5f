"""The demonstration: two examples with masks, predictions for three other photos, and a picture and a page of both.

The page is a single file that loads nothing else. The photos are part of the package `gradio`. The masks of the two
examples are in the folder of this file.
"""

import base64
import html
import importlib.util
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from emat.errors import EmatError
from emat.files import whole_file, write_text
from emat.inference.example import Example
from emat.inference.prediction import Prediction
from emat.pictures.overlay import draw_overlay
from emat.pictures.palette import colour_of

SOURCE = "gradio"
EXAMPLES = {"cheetah": "media_assets/images/cheetah1.jpg", "lion": "media_assets/images/lion.jpg"}
QUERIES = {
    "a cub": "test_data/cheetah2.jpg",
    "small and fast": "media_assets/images/cheetah.jpg",
    "neither": "media_assets/images/tower.jpg",
}

# Of the picture; lengths in pixels.
GROUND, PANEL, INK, QUIET, RULE = (250, 250, 248), (255, 255, 255), (30, 32, 38), (112, 116, 126), (226, 226, 222)
MARGIN, GAP = 44, 28
EXAMPLE, ANSWER = 270, 350  # width and height of a photo
HEADER, TITLE, SCORE = 104, 38, 34
TITLE_LETTERS, HEAD_LETTERS, LETTERS = 34, 20, 18


@dataclass(frozen=True)
class DemoPhotos:
    """The examples, and the photos to predict."""

    examples: tuple[Example, ...]
    queries: dict[str, Path]  # by title


def demo_photos() -> DemoPhotos:
    """Find the photos of the demonstration.

    Raises:
        EmatError: The package that contains them is not installed, or is another version.
    """
    found = importlib.util.find_spec(SOURCE)  # finds the package without importing it, which would take seconds
    folders = found.submodule_search_locations if found else None
    if not folders:
        raise EmatError('the demonstration uses photos that come with the studio; run: pip install "emat[studio]"')
    root = Path(folders[0])
    absent = [name for name in (*EXAMPLES.values(), *QUERIES.values()) if not (root / name).is_file()]
    if absent:
        raise EmatError(
            f"the installed {SOURCE} does not have {absent[0]}, which the demonstration uses; "
            'install the right version with: pip install "emat[studio]"'
        )
    masks = Path(str(resources.files("emat") / "pictures"))
    return DemoPhotos(
        examples=tuple(Example(root / photo, {name: masks / f"{name}.png"}) for name, photo in EXAMPLES.items()),
        queries={title: root / photo for title, photo in QUERIES.items()},
    )


@dataclass(frozen=True)
class ExampleCard:
    """An example, drawn with its masks."""

    title: str
    picture: Image.Image


@dataclass(frozen=True)
class ScoreBar:
    """The score of one class on one photo, and the colour to show it in."""

    name: str
    value: float
    present: bool
    colour: tuple[int, int, int]


@dataclass(frozen=True)
class AnswerCard:
    """A photo, its prediction in a picture and in words, and the score of each class."""

    title: str
    photo: Image.Image
    picture: Image.Image
    verdict: str
    scores: tuple[ScoreBar, ...]


def example_card(example: Example, classes: Sequence[str]) -> ExampleCard:
    """Draw an example with its masks in the colours of `classes`."""
    shown = example.read()
    label_map = np.zeros(shown.photo.shape[:2], np.uint8)
    for name, mask in shown.masks.items():
        label_map[mask] = 1 + classes.index(name)
    return ExampleCard(", ".join(shown.masks), draw_overlay(shown.photo, label_map, {}, legend=False))


def answer_card(title: str, prediction: Prediction) -> AnswerCard:
    """Describe the prediction for one photo."""
    found = [f"{name} on {share:.0%} of it" for name, _, share in prediction.found()]
    return AnswerCard(
        title=title,
        photo=Image.fromarray(prediction.photo),
        picture=draw_overlay(prediction.photo, prediction.label_map, {}, legend=False),
        verdict=", ".join(found) if found else "nothing: an empty mask",
        scores=tuple(
            ScoreBar(name, value, name in prediction.present, colour_of(index))
            for index, (name, value) in enumerate(prediction.scores.items(), start=1)
        ),
    )


def draw_demo(examples: Sequence[ExampleCard], answers: Sequence[AnswerCard]) -> Image.Image:
    """Draw the picture of all examples and predictions."""
    most = max(len(answer.scores) for answer in answers)
    body = 2 * (TITLE + ANSWER) + TITLE + most * SCORE + GAP
    left = MARGIN + EXAMPLE + 2 * GAP
    size = (
        left + len(answers) * (ANSWER + GAP) - GAP + MARGIN,
        HEADER + MARGIN + max(body, _examples_height(examples)),
    )
    canvas = Image.new("RGB", size, GROUND)
    draw = ImageDraw.Draw(canvas)
    draw.text((MARGIN, MARGIN), "Two examples in, masks out", fill=INK, font=_font(TITLE_LETTERS))
    draw.line((left - GAP, HEADER + GAP, left - GAP, size[1] - MARGIN), fill=RULE, width=2)
    _draw_examples(canvas, examples)
    for number, answer in enumerate(answers):
        _draw_answer(canvas, left + number * (ANSWER + GAP), answer)
    return canvas


def save_picture(picture: Image.Image, path: Path) -> None:
    """Save a picture as PNG, whole or not at all."""
    with whole_file(path) as unfinished:
        picture.save(unfinished, "PNG", optimize=True)


def _examples_height(examples: Sequence[ExampleCard]) -> int:
    return TITLE + len(examples) * (EXAMPLE + TITLE + GAP)


def _draw_examples(canvas: Image.Image, examples: Sequence[ExampleCard]) -> None:
    draw, top = ImageDraw.Draw(canvas), HEADER + GAP
    draw.text((MARGIN, top), "Shown, with a mask", fill=QUIET, font=_font(HEAD_LETTERS))
    top += TITLE
    for number, example in enumerate(examples, start=1):
        _paste(canvas, (MARGIN, top), example.picture, EXAMPLE)
        _swatch(draw, (MARGIN, top + EXAMPLE + 10), colour_of(number))
        draw.text((MARGIN + 26, top + EXAMPLE + 6), example.title, fill=INK, font=_font(LETTERS))
        top += EXAMPLE + TITLE + GAP


def _draw_answer(canvas: Image.Image, left: int, answer: AnswerCard) -> None:
    draw, top = ImageDraw.Draw(canvas), HEADER + GAP
    for heading, picture in ((f"Photo: {answer.title}", answer.photo), ("Prediction", answer.picture)):
        draw.text((left, top), heading, fill=QUIET, font=_font(HEAD_LETTERS))
        _paste(canvas, (left, top + TITLE), picture, ANSWER)
        top += TITLE + ANSWER + GAP // 2
    draw.text((left, top), answer.verdict, fill=INK, font=_font(HEAD_LETTERS))
    top += TITLE
    for score in answer.scores:
        _draw_score(draw, (left, top), score)
        top += SCORE


def _draw_score(draw: ImageDraw.ImageDraw, where: tuple[int, int], score: ScoreBar) -> None:
    """Draw a name, a bar and a number, in grey if the class is not present."""
    left, top = where
    name_width, number_width = 92, 56
    draw.text((left, top), score.name, fill=INK if score.present else QUIET, font=_font(LETTERS))
    bar_left, bar_right = left + name_width, left + ANSWER - number_width
    bar = (bar_left, top + 5, bar_right, top + 19)
    draw.rounded_rectangle(bar, radius=7, fill=RULE)
    filled = bar_left + max(14, round((bar_right - bar_left) * score.value))
    colour = score.colour if score.present else QUIET
    draw.rounded_rectangle((bar[0], bar[1], filled, bar[3]), radius=7, fill=colour)
    draw.text((left + ANSWER, top), f"{score.value:.2f}", fill=INK, font=_font(LETTERS), anchor="ra")


def _paste(canvas: Image.Image, where: tuple[int, int], picture: Image.Image, side: int) -> None:
    """Paste a picture in the middle of a white square with rounded corners."""
    fitted = ImageOps.pad(picture, (side, side), Image.Resampling.LANCZOS, color=PANEL)
    corners = Image.new("L", (4 * side, 4 * side))
    ImageDraw.Draw(corners).rounded_rectangle((0, 0, 4 * side - 1, 4 * side - 1), radius=48, fill=255)
    canvas.paste(fitted, where, corners.resize((side, side), Image.Resampling.LANCZOS))


def _swatch(draw: ImageDraw.ImageDraw, where: tuple[int, int], colour: tuple[int, int, int]) -> None:
    draw.rounded_rectangle((*where, where[0] + 16, where[1] + 16), radius=4, fill=colour)


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


QUALITY = 88  # of the JPEG pictures

STYLE = """
:root { color-scheme: light dark; --ground: #fafaf8; --panel: #fff; --ink: #1e2026; --quiet: #70747e; --rule: #e2e2de }
@media (prefers-color-scheme: dark) {
  :root { --ground: #15161a; --panel: #1f2127; --ink: #eceef2; --quiet: #9aa0ac; --rule: #34373f } }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 76rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.9rem; margin: 0 0 .25rem } h2 { font-size: 1.15rem; margin: 2.25rem 0 .75rem }
p { color: var(--quiet); margin: 0; max-width: 46rem }
.cards { display: grid; gap: 1.25rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)) }
figure { margin: 0; padding: .75rem; background: var(--panel); border: 1px solid var(--rule); border-radius: 14px }
img { width: 100%; height: 17rem; object-fit: contain; border-radius: 8px; display: block; margin-bottom: .5rem }
figcaption { font-weight: 600 } .score { display: grid; grid-template-columns: 5.5rem 1fr 3rem; gap: .5rem;
  align-items: center; font-weight: 400; font-variant-numeric: tabular-nums } .absent { color: var(--quiet) }
.bar { height: .8rem; border-radius: .4rem; background: var(--rule); overflow: hidden }
.bar i { display: block; height: 100%; border-radius: .4rem } .score b { font-weight: 400; text-align: right }
pre { background: var(--panel); border: 1px solid var(--rule); border-radius: 14px; padding: 1rem; overflow-x: auto }
"""

CODE = """from emat import Example, Segmenter

segmenter = Segmenter.load("default").fit([
    Example("cheetah1.jpg", {"cheetah": "cheetah.png"}),
    Example("lion.jpg", {"lion": "lion.png"}),
])
prediction = segmenter.predict("cheetah2.jpg")
prediction.scores, prediction.present, prediction.mask("cheetah")"""


def write_page(path: Path, examples: Sequence[ExampleCard], answers: Sequence[AnswerCard]) -> None:
    """Write the page, whole or not at all."""
    shown = "".join(_figure([card.picture], f"<figcaption>{html.escape(card.title)}</figcaption>") for card in examples)
    answered = "".join(_figure([card.photo, card.picture], _caption(card)) for card in answers)
    write_text(
        path,
        f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>emat demo</title><style>{STYLE}</style>
<h1>Two examples in, masks out</h1>
<p>emat got one photo with a mask for each class. Below are other photos and what it found in them: a score for each
class, and a mask, which is empty if the class is not in the photo.</p>
<h2>Shown, with a mask</h2><div class="cards">{shown}</div>
<h2>Predictions</h2><div class="cards">{answered}</div>
<h2>The same in Python</h2><pre>{html.escape(CODE)}</pre>
</html>
""",
    )


def _figure(pictures: Sequence[Image.Image], caption: str) -> str:
    images = "".join(f'<img alt="" src="{_embedded(picture)}">' for picture in pictures)
    return f"<figure>{images}{caption}</figure>"


def _caption(card: AnswerCard) -> str:
    scores = "".join(_score(score) for score in card.scores)
    return f"<figcaption>{html.escape(card.title)}: {html.escape(card.verdict)}{scores}</figcaption>"


def _score(score: ScoreBar) -> str:
    colour = "rgb({}, {}, {})".format(*score.colour) if score.present else "var(--quiet)"
    bar = f'<span class="bar"><i style="width: {score.value:.0%}; background: {colour}"></i></span>'
    name = html.escape(score.name)
    return (
        f'<div class="score{"" if score.present else " absent"}"><span>{name}</span>{bar}<b>{score.value:.2f}</b></div>'
    )


def _embedded(picture: Image.Image) -> str:
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()
