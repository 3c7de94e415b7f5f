"""Memory of training tasks at the paper's size, and how many of them common cards would hold.

    python benchmarks/training_memory.py [--method emat] [--json runs/training_memory.json]

Each figure is the peak resident size of a child process beyond what it held before its step: tokens of 72 channels on
a 50 x 50 grid, masks of 700 x 700, forward and backward. What a task takes is the difference between larger and smaller
batches. Cards are computed, not measured.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from emat.backbone.registry import find_backbone
from emat.methods.base import Features, LossWeights, TrainingBatch
from emat.methods.correlation import NetworkMethod
from emat.model import FORMS, build

BACKBONE, SIZE = "dinov2-s", 700
COVERS, BATCHES = (0.1, 0.4, 1.0), (1, 3)
CARDS = (12, 24, 48)  # GB
RESERVED = 2.5  # GB of a card for CUDA itself, the frozen backbone at work, and the larger chunks a GPU walks in
GB = 10**9


@dataclass(frozen=True)
class Row:
    """Gigabytes of training steps whose support masks cover a share of the photo."""

    cover: float
    one_task: float
    each_further: float
    tokens: float  # of one task, query and support, which the cache hands out

    def batch(self, card: float) -> int:
        room = card - RESERVED - (self.one_task - self.each_further)
        return max(0, int(room / (self.each_further + self.tokens)))


def step(method_name: str, cover: float, tasks: int) -> None:
    """One step; prints the bytes of its tokens and its peak beyond what was there before."""
    backbone = find_backbone(BACKBONE).build()
    method = NetworkMethod(backbone, build(method_name, backbone.channels), SIZE)
    rows, columns = backbone.grid(SIZE, SIZE)
    shape = (backbone.channels, 1 + rows * columns, backbone.width)
    queries, supports = ([Features((torch.randn(shape),), (SIZE, SIZE)) for _ in range(tasks)] for _ in range(2))
    mask = torch.zeros(SIZE, SIZE)
    side = round(SIZE * cover**0.5)
    mask[:side, :side] = 1
    before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    batch = TrainingBatch(queries, supports, [mask] * tasks, mask.long().expand(tasks, SIZE, SIZE))
    method.loss(batch, LossWeights()).total.backward()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    tokens = 2 * queries[0].tensors[0].nbytes
    print(json.dumps({"tokens": tokens, "beyond": max(peak - before, 0)}))


def measure(method: str, cover: float, tasks: int) -> dict[str, int]:
    command = [sys.executable, __file__, "--method", method, "--step", str(cover), str(tasks)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="emat", choices=list(FORMS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--step", nargs=2, type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        step(given.method, given.step[0], int(given.step[1]))
        return
    rows = []
    for cover in COVERS:
        few, many = (measure(given.method, cover, tasks) for tasks in BATCHES)
        each = (many["beyond"] - few["beyond"]) / (BATCHES[1] - BATCHES[0])
        rows.append(Row(cover, few["beyond"] / GB, each / GB, few["tokens"] / GB))
    table = Table(title=f"Training {given.method} at {SIZE} px, {BACKBONE}; GB")
    for column in ("mask cover", "one task", "each further", "its tokens", *(f"batch on {card} GB" for card in CARDS)):
        table.add_column(column, justify="right")
    for row in rows:
        figures = (f"{value:.2f}" for value in (row.one_task, row.each_further, row.tokens))
        table.add_row(f"{row.cover:.0%}", *figures, *(str(row.batch(card)) for card in CARDS))
    Console(width=110).print(table)
    if given.json:
        content = {"method": given.method, "reserved_gb": RESERVED, "rows": [asdict(row) for row in rows]}
        content["batches"] = {str(card): [row.batch(card) for row in rows] for card in CARDS}
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
