"""What a run tells afterwards: a CSV row an epoch, and TensorBoard's curves."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emat.errors import EmatError

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
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise EmatError('training needs TensorBoard; install it with: pip install "emat[train]"') from None
        self._path = folder / CSV
        self._rows = [row for row in _read(self._path) if int(row["epoch"]) < epoch]
        self._curves = SummaryWriter(str(folder / "tensorboard"), purge_step=step)

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Values after one step."""
        for name, value in values.items():
            self._curves.add_scalar(f"step/{name}", value, step)

    def epoch(self, values: Mapping[str, Any]) -> None:
        """The row of one epoch."""
        self._rows.append({name: values.get(name, "") for name in COLUMNS})
        unfinished = self._path.with_name(f".{CSV}")
        with unfinished.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(self._rows)
        unfinished.replace(self._path)
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self._curves.add_scalar(f"epoch/{name}", value, int(values["step"]))
        self._curves.flush()

    def close(self) -> None:
        """No more rows."""
        self._curves.close()


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [dict(row) for row in csv.DictReader(file)]
