"""What a run tells afterwards: a CSV row an epoch, and TensorBoard's curves."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emat.formats.whole_files import write_text
from emat.training.curves import Curves

CSV = "metrics.csv"
COLUMNS = (
    "epoch",
    "step",
    "tasks",
    "loss",
    "masks",
    "presence",
    "lr",
    "miou",
    "accuracy",
    "false_mask_rate",
    "false_area",
    "tasks_per_second",
    "cache_hits",
    "cache_bytes",
)


class RunLogs:
    """Logs of the run in `folder` that goes on after `epoch` epochs and `step` steps; later rows are dropped."""

    def __init__(self, folder: Path, epoch: int, step: int) -> None:
        self._path = folder / CSV
        self._rows = [row for row in _read(self._path) if int(row["epoch"]) < epoch]
        self._curves = Curves(folder / "tensorboard", step)

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Values after one step."""
        self._curves.add(step, {f"step/{name}": value for name, value in values.items()})

    def epoch(self, values: Mapping[str, float]) -> None:
        """The row of one epoch."""
        self._rows.append({name: values.get(name, "") for name in COLUMNS})
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        write_text(self._path, text.getvalue())
        self._curves.add(int(values["step"]), {f"epoch/{name}": value for name, value in values.items()})

    def close(self) -> None:
        """No more rows."""
        self._curves.close()


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [dict(row) for row in csv.DictReader(file)]
