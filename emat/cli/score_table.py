"""The scores of many photos as a CSV file that grows photo by photo."""

import csv
from collections.abc import Sequence, Set
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from emat.errors import EmatError
from emat.inference.prediction import Prediction


class ScoreTable:
    """A row for each photo: its name, then each class's probability to be there and its share of the pixels."""

    def __init__(self, path: Path, classes: Sequence[str], keep: Set[str]) -> None:
        self._classes = tuple(classes)
        header = ["photo", *classes, *(f"{name}: share of pixels" for name in classes)]
        kept = [row for row in _rows(path) if row and row[0] in keep]
        try:
            self._file = path.open("w", encoding="utf-8", newline="")
        except OSError as error:
            raise EmatError(f"{path} cannot be written: {error.strerror}; choose another folder") from None
        self._writer = csv.writer(self._file)
        self._writer.writerows([header, *kept])

    def add(self, photo: str, prediction: Prediction) -> None:
        """Append a photo's row."""
        scores = [f"{prediction.scores[name]:.4f}" for name in self._classes]
        shares = [f"{prediction.mask(name).mean():.4f}" for name in self._classes]
        self._writer.writerow([photo, *scores, *shares])
        self._file.flush()

    def __enter__(self) -> "ScoreTable":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _rows(path: Path) -> list[list[str]]:
    with suppress(OSError, UnicodeDecodeError, csv.Error), path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))
    return []
