"""Cross-validation of whole segmenters: examples are left out in turn, predicted from the others, and compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean

import numpy as np

from emat.errors import EmatError
from emat.images import VOID
from emat.inference.decisions import iou
from emat.inference.example import Example
from emat.inference.segmenter import Segmenter
from emat.pictures.html import table

HEADER = ("example", "class", "IoU", "score", "present", "found")


@dataclass(frozen=True)
class LeftOut:
    """What was found of one class on one example by a segmenter that had not seen it."""

    example: str
    name: str  # of the class
    iou: float | None  # None if the class is not in the photo
    score: float
    present: bool  # whether the example shows it
    found: bool  # whether the prediction has it

    def cells(self) -> list[str]:
        """The cells of its row in the table."""
        overlap = "" if self.iou is None else f"{self.iou:.2f}"
        return [
            self.example,
            self.name,
            overlap,
            f"{self.score:.2f}",
            *("yes" if x else "no" for x in (self.present, self.found)),
        ]


@dataclass(frozen=True, repr=False)
class CrossValidation:
    """A row for each example and class; printed, it is a table."""

    rows: tuple[LeftOut, ...]

    @property
    def iou(self) -> dict[str, float]:
        """The mean IoU of each class over the examples that show it."""
        names = dict.fromkeys(row.name for row in self.rows if row.iou is not None)
        return {name: mean(row.iou for row in self.rows if row.name == name and row.iou is not None) for name in names}

    @property
    def presence(self) -> dict[str, float]:
        """For each class, the share of examples on which its presence was judged correctly."""
        names = dict.fromkeys(row.name for row in self.rows)
        return {name: mean(row.present == row.found for row in self.rows if row.name == name) for name in names}

    def __repr__(self) -> str:
        lines = [list(HEADER), *(row.cells() for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
        )

    def _repr_html_(self) -> str:
        return table(HEADER, [row.cells() for row in self.rows])


def cross_validate(
    examples: Iterable[Example], segmenter: Segmenter | None = None, folds: int | None = None
) -> CrossValidation:
    """Leave examples out in turn, predict them from the others with the whole pipeline, and compare.

    Unlike the forecast of `fit`, which tries the learner and the head alone on small copies, this predicts photos at
    their own size and with post-processing, and takes as much longer.

    Args:
        examples: At least two, with whole masks.
        segmenter: Whose head and options to use; by default those of ``Segmenter.load("default")``. It is not changed.
        folds: Into how many groups the examples are cut; by default each is left out alone.

    Raises:
        EmatError: If there are fewer than two examples, or the folds are not 2 to the number of examples.
    """
    shown = list(examples)
    if len(shown) < 2:
        raise EmatError("too-few-examples", f"cross-validation needs at least two examples, not {len(shown)}")
    folds = len(shown) if folds is None else folds
    if not 2 <= folds <= len(shown):
        raise EmatError("bad-number", f"folds is {folds}; with {len(shown)} examples it must be 2 to {len(shown)}")
    whole = (segmenter or Segmenter.load("default")).copy(examples=False)
    for example in shown:
        whole.add(example)  # encoded once; nothing is learnt before it is needed
    rows: list[tuple[int, list[LeftOut]]] = []
    for fold in range(folds):
        left_out = range(fold, len(shown), folds)
        others = whole.copy()
        for index in reversed(left_out):
            others.remove(index)
        rows += [(index, _judged(shown[index], others)) for index in left_out if others.classes_]
    return CrossValidation(tuple(row for _, judged in sorted(rows, key=lambda indexed: indexed[0]) for row in judged))


def _judged(example: Example, segmenter: Segmenter) -> list[LeftOut]:
    """What a segmenter finds of each class on an example that it has not seen."""
    truth = example.read(segmenter.reading)
    prediction = segmenter.predict(truth.photo)
    rows = []
    for name in segmenter.classes_:
        if name in example.undecided:
            continue
        mask, there = prediction.mask(name), truth.masks.get(name)
        overlap = None
        if there is not None:
            overlap = iou(mask, np.where(truth.void, VOID, there).astype(np.uint8))
        rows.append(LeftOut(example.title, name, overlap, prediction.scores[name], there is not None, bool(mask.any())))
    return rows
