"""The verdict on whole photos that `emat predict` writes to scores.csv and prints: which class is in which photo."""

from collections.abc import Sequence

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from scipy import ndimage

from emat.inference.prediction import Prediction
from emat.inference.tiles import SlidePrediction

PRINTED_PHOTOS = 12  # of more photos only the sums are printed; the file has them all
PRESENT, SHARE, REGIONS = "present", "share of pixels", "regions"
TOUCHING = np.ones((3, 3), bool)  # pixels that touch at a corner belong to one region


class ScoreTable:
    """The columns and rows of scores.csv.

    Its columns are the photo and the score of each class, then of each class whether it is present (1 or 0), its share
    of the pixels and the number of its regions.

    Args:
        classes: The names of the classes.
    """

    key = "scores"

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = tuple(classes)
        parts = [f"{name}: {part}" for part in (PRESENT, SHARE, REGIONS) for name in classes]
        self.header = ["photo", *classes, *parts]
        self.rows: list[list[str]] = []  # of all photos, when the run has ended

    def row(self, photo: str, prediction: Prediction) -> list[str]:
        """Return the row of one photo."""
        masks = [prediction.mask(name) for name in self._classes]
        scores = [f"{prediction.scores[name]:.4f}" for name in self._classes]
        present = [str(int(mask.any())) for mask in masks]
        shares = [f"{mask.mean():.4f}" for mask in masks]
        regions = [str(ndimage.label(mask, TOUCHING)[1]) for mask in masks]
        return [photo, *scores, *present, *shares, *regions]

    def slide_row(self, photo: str, answer: SlidePrediction) -> list[str]:
        """Return the row of a slide, whose regions are not counted."""
        scores = [f"{answer.scores[name]:.4f}" for name in self._classes]
        present = [str(int(answer.pixels[name] > 0)) for name in self._classes]
        shares = [f"{answer.share(name):.4f}" for name in self._classes]
        return [photo, *scores, *present, *shares, *[""] * len(self._classes)]

    def present(self) -> dict[str, int]:
        """In how many photos each class is present."""
        first = 1 + len(self._classes)
        return {name: sum(row[first + index] == "1" for row in self.rows) for index, name in enumerate(self._classes)}

    def print(self) -> None:
        """Print the verdict on each photo, or in how many photos each class is present if there are many."""
        table = Table(box=box.SIMPLE_HEAD)
        if len(self.rows) > PRINTED_PHOTOS:
            table.add_column("class")
            table.add_column("photos with it", justify="right")
            for name, count in self.present().items():
                table.add_row(escape(name), f"{count} of {len(self.rows)}")
        else:
            for column in ("photo", "class"):
                table.add_column(column)
            for column in ("score", "present", "area", "regions"):
                table.add_column(column, justify="right")
            for photo, *values in self.rows:
                parts = np.array(values).reshape(4, len(self._classes)).T  # (classes, 4)
                for name, (score, present, share, regions) in zip(self._classes, parts, strict=True):
                    verdict = "yes" if present == "1" else "no"
                    area = f"{float(share):.1%}"
                    table.add_row(escape(photo), escape(name), f"{float(score):.2f}", verdict, area, str(regions))
        Console().print(table)
