"""The demonstrations: examples with masks, predictions for other photos, and a picture and a page of both.

The page is a single file that loads nothing else. The photos are in the folder `photos` beside this file; its
`CREDITS.md` says where they come from.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

from emat.errors import EmatError
from emat.inference.example import Example
from emat.inference.prediction import Prediction
from emat.outputs import whole_file, write_text
from emat.pictures.html import embedded
from emat.pictures.overlay import draw_overlay
from emat.pictures.palette import colour_of
from emat.refine.objects import separate

DEMOS = ("cats", "nuclei")
NUCLEUS, SHOWN_NUCLEI = "nucleus", "1b6044e4858a"

# Of the picture; lengths in pixels.
GROUND, PANEL, INK, QUIET, RULE = (250, 250, 248), (255, 255, 255), (30, 32, 38), (112, 116, 126), (226, 226, 222)
MARGIN, GAP = 44, 28
EXAMPLE_SIDE, ANSWER_SIDE = 270, 350  # width and height of a photo
HEADER, TITLE, SCORE = 104, 38, 34
TITLE_LETTERS, HEAD_LETTERS, LETTERS = 34, 20, 18


@dataclass(frozen=True)
class DemoPhotos:
    """The examples, and the photos to predict."""

    examples: tuple[Example, ...]
    queries: dict[str, Path]  # by title
    masks: dict[str, Path] = field(default_factory=dict)  # drawn by hand, of the photos to predict; by title
    heading: str = "Two examples in, masks out"


def demo_photos(name: str = "cats") -> DemoPhotos:
    """Return the photos of a demonstration: "cats" (two classes, three photos) or "nuclei" (one class, eleven photos).

    Raises:
        EmatError: There is no such demonstration.
    """
    if name not in DEMOS:
        raise EmatError("unknown-choice", f"there is no demonstration {name!r}; choose {' or '.join(DEMOS)}")
    root = Path(str(resources.files("emat") / "pictures" / "photos" / name))
    if name == "cats":
        examples = {"cheetah": "cheetah1.jpg", "lion": "lion.jpg"}
        queries = {"a cub": "cheetah2.jpg", "small and fast": "cheetah.jpg", "neither": "tower.jpg"}
        return DemoPhotos(
            examples=tuple(Example(root / photo, {cat: root / f"{cat}.png"}) for cat, photo in examples.items()),
            queries={title: root / photo for title, photo in queries.items()},
        )
    photos = sorted((root / "images").glob("*.jpg"))
    others = {photo.stem: photo for photo in photos if photo.stem != SHOWN_NUCLEI}
    shown = Example(root / "images" / f"{SHOWN_NUCLEI}.jpg", {NUCLEUS: root / "masks" / f"{SHOWN_NUCLEI}.png"})
    masks = {title: root / "masks" / f"{title}.png" for title in others}
    return DemoPhotos((shown,), others, masks, "One example in, every nucleus counted")


@dataclass(frozen=True)
class ObjectCount:
    """The single objects of one class in one photo: how many, how large, and how well they agree with masks by hand."""

    count: int
    median_area: float  # pixels; 0 if there are none
    count_by_hand: int  # objects of the mask that was drawn by hand, taken apart by the same rule
    iou: float  # of the predicted mask and the one drawn by hand


def count_objects(prediction: Prediction, name: str, by_hand: NDArray[np.bool_]) -> ObjectCount:
    """Count and measure the objects of a class, and compare its mask with one that was drawn `by_hand` (H, W)."""
    areas = [row.area for row in prediction.instances(name).rows]
    mask = prediction.mask(name)
    return ObjectCount(
        count=len(areas),
        median_area=float(np.median(areas)) if areas else 0.0,
        count_by_hand=int(separate(by_hand).max()),
        iou=float((mask & by_hand).sum() / max(int((mask | by_hand).sum()), 1)),
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


def answer_card(title: str, prediction: Prediction, objects: ObjectCount | None = None) -> AnswerCard:
    """Describe the prediction for one photo; with `objects`, by their number and size."""
    parts = [f"{name} on {share:.0%} of it" for name, _, share in prediction.found()]
    verdict = ", ".join(parts) if parts else "nothing: an empty mask"
    if objects is not None:
        verdict = f"{objects.count} objects of {objects.median_area:.0f} pixels (median)"
    return AnswerCard(
        title=title,
        photo=Image.fromarray(prediction.photo),
        picture=draw_overlay(prediction.photo, prediction.label_map, {}, legend=False),
        verdict=verdict,
        scores=tuple(
            ScoreBar(name, value, name in prediction.present, colour_of(index))
            for index, (name, value) in enumerate(prediction.scores.items(), start=1)
        ),
    )


def draw_demo(heading: str, examples: Sequence[ExampleCard], answers: Sequence[AnswerCard]) -> Image.Image:
    """Draw the picture of all examples and predictions."""
    most = max(len(answer.scores) for answer in answers)
    body = 2 * (TITLE + ANSWER_SIDE) + TITLE + most * SCORE + GAP
    left = MARGIN + EXAMPLE_SIDE + 2 * GAP
    side = TITLE + len(examples) * (EXAMPLE_SIDE + TITLE + GAP)  # what the examples need
    size = (left + len(answers) * (ANSWER_SIDE + GAP) - GAP + MARGIN, HEADER + MARGIN + max(body, side))
    canvas = Image.new("RGB", size, GROUND)
    draw = ImageDraw.Draw(canvas)
    draw.text((MARGIN, MARGIN), heading, fill=INK, font=_font(TITLE_LETTERS))
    draw.line((left - GAP, HEADER + GAP, left - GAP, size[1] - MARGIN), fill=RULE, width=2)
    _draw_examples(canvas, examples)
    for number, answer in enumerate(answers):
        _draw_answer(canvas, left + number * (ANSWER_SIDE + GAP), answer)
    return canvas


def save_picture(picture: Image.Image, path: Path) -> None:
    """Save a picture as PNG, whole or not at all."""
    with whole_file(path) as unfinished:
        picture.save(unfinished, "PNG", optimize=True)


def _draw_examples(canvas: Image.Image, examples: Sequence[ExampleCard]) -> None:
    draw, top = ImageDraw.Draw(canvas), HEADER + GAP
    draw.text((MARGIN, top), "Shown, with a mask", fill=QUIET, font=_font(HEAD_LETTERS))
    top += TITLE
    for number, example in enumerate(examples, start=1):
        _paste(canvas, (MARGIN, top), example.picture, EXAMPLE_SIDE)
        swatch = (MARGIN, top + EXAMPLE_SIDE + 10, MARGIN + 16, top + EXAMPLE_SIDE + 26)
        draw.rounded_rectangle(swatch, radius=4, fill=colour_of(number))
        draw.text((MARGIN + 26, top + EXAMPLE_SIDE + 6), example.title, fill=INK, font=_font(LETTERS))
        top += EXAMPLE_SIDE + TITLE + GAP


def _draw_answer(canvas: Image.Image, left: int, answer: AnswerCard) -> None:
    draw, top = ImageDraw.Draw(canvas), HEADER + GAP
    for heading, picture in ((f"Photo: {answer.title}", answer.photo), ("Prediction", answer.picture)):
        draw.text((left, top), heading, fill=QUIET, font=_font(HEAD_LETTERS))
        _paste(canvas, (left, top + TITLE), picture, ANSWER_SIDE)
        top += TITLE + ANSWER_SIDE + GAP // 2
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
    bar_left, bar_right = left + name_width, left + ANSWER_SIDE - number_width
    bar = (bar_left, top + 5, bar_right, top + 19)
    draw.rounded_rectangle(bar, radius=7, fill=RULE)
    filled = bar_left + max(14, round((bar_right - bar_left) * score.value))
    colour = score.colour if score.present else QUIET
    draw.rounded_rectangle((bar[0], bar[1], filled, bar[3]), radius=7, fill=colour)
    draw.text((left + ANSWER_SIDE, top), f"{score.value:.2f}", fill=INK, font=_font(LETTERS), anchor="ra")


def _paste(canvas: Image.Image, where: tuple[int, int], picture: Image.Image, side: int) -> None:
    """Paste a picture in the middle of a white square with rounded corners."""
    fitted = ImageOps.pad(picture, (side, side), Image.Resampling.LANCZOS, color=PANEL)
    corners = Image.new("L", (4 * side, 4 * side))
    ImageDraw.Draw(corners).rounded_rectangle((0, 0, 4 * side - 1, 4 * side - 1), radius=48, fill=255)
    canvas.paste(fitted, where, corners.resize((side, side), Image.Resampling.LANCZOS))


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


CODE = """from emat import Example, Segmenter

segmenter = Segmenter.load("default")
segmenter.fit([{examples}])
prediction = segmenter.predict("{photo}")
prediction.scores, prediction.present, prediction.mask("{name}")
prediction.instances("{name}").rows  # every single object: its area, box and centre"""


def _code(photos: DemoPhotos) -> str:
    """The demonstration as a user would write it, with the names of the files."""
    shown = [(example.title, name, str(mask)) for example in photos.examples for name, mask in example.masks.items()]
    examples = ", ".join(f'Example("{photo}", {{"{name}": "{Path(mask).name}"}})' for photo, name, mask in shown)
    return CODE.format(examples=examples, photo=next(iter(photos.queries.values())).name, name=shown[0][1])


def write_page(path: Path, photos: DemoPhotos, examples: Sequence[ExampleCard], answers: Sequence[AnswerCard]) -> None:
    """Write the page, whole or not at all."""
    shown = "".join(_figure([card.picture], f"<figcaption>{html.escape(card.title)}</figcaption>") for card in examples)
    answered = "".join(_figure([card.photo, card.picture], _caption(card)) for card in answers)
    style = (resources.files("emat") / "pictures" / "demo.css").read_text(encoding="utf-8")
    write_text(
        path,
        f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>emat demo</title><style>
{style}</style>
<h1>{html.escape(photos.heading)}</h1>
<p>emat got one photo with a mask for each class. Below are other photos and what it found in them: a score for each
class, and a mask, which is empty if the class is not in the photo.</p>
<h2>Shown, with a mask</h2><div class="cards">{shown}</div>
<h2>Predictions</h2><div class="cards">{answered}</div>
<h2>The same in Python</h2><pre>{html.escape(_code(photos))}</pre>
</html>
""",
    )


def _figure(pictures: Sequence[Image.Image], caption: str) -> str:
    images = "".join(f'<img alt="" src="{embedded(picture)}">' for picture in pictures)
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
