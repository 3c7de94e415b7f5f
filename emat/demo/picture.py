"""The demonstration as one picture: the examples on the left, photos and predictions beside them."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from emat.demo.cards import AnswerCard, ExampleCard, Score
from emat.formats.overlay import colour_of
from emat.formats.whole_files import whole_file

GROUND, PANEL, INK, QUIET, RULE = (250, 250, 248), (255, 255, 255), (30, 32, 38), (112, 116, 126), (226, 226, 222)
MARGIN, GAP = 44, 28
EXAMPLE, ANSWER = 270, 350  # width and height of a picture, pixels
HEADER, TITLE, SCORE = 104, 38, 34
TITLE_LETTERS, HEAD_LETTERS, LETTERS = 34, 20, 18


def draw_demo(examples: Sequence[ExampleCard], answers: Sequence[AnswerCard]) -> Image.Image:
    """The whole picture."""
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
    """Save it as PNG, whole or not at all."""
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


def _draw_score(draw: ImageDraw.ImageDraw, where: tuple[int, int], score: Score) -> None:
    """A name, a bar and a number; pale where the class does not count as present."""
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
    """The picture in the middle of a white square, its corners rounded with it."""
    fitted = ImageOps.pad(picture, (side, side), Image.Resampling.LANCZOS, color=PANEL)
    corners = Image.new("L", (4 * side, 4 * side))
    ImageDraw.Draw(corners).rounded_rectangle((0, 0, 4 * side - 1, 4 * side - 1), radius=48, fill=255)
    canvas.paste(fitted, where, corners.resize((side, side), Image.Resampling.LANCZOS))


def _swatch(draw: ImageDraw.ImageDraw, where: tuple[int, int], colour: tuple[int, int, int]) -> None:
    draw.rounded_rectangle((*where, where[0] + 16, where[1] + 16), radius=4, fill=colour)


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
