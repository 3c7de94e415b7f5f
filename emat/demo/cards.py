"""What the demonstration shows, as pictures with words: the examples, and each question with its answer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from emat.formats.overlay import colour_of, draw_overlay
from emat.inference.example import Example
from emat.inference.prediction import Prediction


@dataclass(frozen=True)
class ExampleCard:
    """A photo with the mask that was shown."""

    title: str
    picture: Image.Image


@dataclass(frozen=True)
class Score:
    """A class's score in one photo."""

    name: str
    value: float
    present: bool
    colour: tuple[int, int, int]


@dataclass(frozen=True)
class AnswerCard:
    """A photo, what was found in it, and how sure that is."""

    title: str
    photo: Image.Image
    picture: Image.Image
    verdict: str
    scores: tuple[Score, ...]


def example_card(example: Example, classes: Sequence[str]) -> ExampleCard:
    """The example's photo with its masks in the colours of `classes`."""
    shown = example.read()
    label_map = np.zeros(shown.photo.shape[:2], np.uint8)
    for name, mask in shown.masks.items():
        label_map[mask] = 1 + classes.index(name)
    return ExampleCard(", ".join(shown.masks), draw_overlay(shown.photo, label_map, {}, legend=False))


def answer_card(title: str, prediction: Prediction) -> AnswerCard:
    """The answer to one question."""
    found = [f"{name} on {share:.0%} of it" for name, _, share in prediction.found()]
    return AnswerCard(
        title=title,
        photo=Image.fromarray(prediction.photo),
        picture=draw_overlay(prediction.photo, prediction.label_map, {}, legend=False),
        verdict=", ".join(found) if found else "nothing: an empty mask",
        scores=tuple(
            Score(name, value, name in prediction.present, colour_of(index))
            for index, (name, value) in enumerate(prediction.scores.items(), start=1)
        ),
    )
