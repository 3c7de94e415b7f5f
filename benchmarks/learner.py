"""The network from backbone tokens to logits: ours against the plain formula, in one run.

    python benchmarks/learner.py [--json runs/learner.json]

At the paper's size: t_q 2500, t_s 401, 72 channels of width 64. Times are the best of several interleaved runs; memory
is the peak resident size of a child process beyond its inputs. The plain formula is the
tests' oracle, `emat/model/plain.py`.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from emat.model import build
from emat.model.plain import FORMS, plain_forward

CHANNELS, GRID, WIDTH, MASK = 72, 50, 64, 700
COVERS, BATCHES, PAIRS = (0.1, 0.4), (1, 3), (1, 5, 25)


@dataclass(frozen=True)
class Row:
    """One comparison; seconds or megabytes."""

    what: str
    cover: float
    batch: int
    plain: float
    ours: float

    @property
    def ratio(self) -> float:
        return self.plain / self.ours if self.what.startswith("time") else self.ours / self.plain


class Case:
    """Inputs of the paper's size, whose masks are squares that cover a share of the image."""

    def __init__(self, cover: float, batch: int) -> None:
        generator = torch.Generator().manual_seed(0)
        common = torch.randn(1, CHANNELS, 1, WIDTH, generator=generator)
        shape = (batch, CHANNELS, 1 + GRID**2, WIDTH)
        self.query, self.support = (torch.randn(shape, generator=generator).add_(common) for _ in range(2))
        self.masks = torch.zeros(batch, MASK, MASK)
        side = round(MASK * cover**0.5)
        for i in range(batch):  # at different places, so that they keep different numbers of tokens
            self.masks[i, 20 + 30 * i :, 50 + 10 * i :][:side, :side] = 1
        torch.manual_seed(0)
        self.net = build("emat", CHANNELS)
        self.weights = dict(self.net.named_parameters())

    def plain(self) -> tuple[Tensor | None, Tensor]:
        return plain_forward(FORMS["emat"], self.weights, self.query, self.support, self.masks)

    def ours(self) -> tuple[Tensor | None, Tensor]:
        out = self.net(self.query, self.support, self.masks)
        return out.presence, out.masks

    def run(self, which: str, train: bool) -> tuple[Tensor | None, Tensor]:
        forward = getattr(self, which)
        if not train:
            with torch.no_grad():
                return forward()
        self.net.zero_grad()
        presence, masks = forward()
        (presence.sum() + masks.square().sum()).backward()
        return presence, masks


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare_time(case: Case, train: bool, repeats: int) -> tuple[float, float]:
    """Best times of both, run alternately so that a busy moment hits both."""
    case.run("ours", train)
    times = [
        (seconds(lambda: case.run("plain", train)), seconds(lambda: case.run("ours", train))) for _ in range(repeats)
    ]
    return min(t for t, _ in times), min(t for _, t in times)


def largest_difference(case: Case) -> float:
    (plain_presence, plain_masks), (presence, masks) = case.run("plain", False), case.run("ours", False)
    assert plain_presence is not None
    assert presence is not None
    return max(float((plain_masks - masks).abs().max()), float((plain_presence - presence).abs().max()))


def resident(field: str) -> float:
    """Megabytes: "VmRSS" now, "VmHWM" at the peak."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return next(float(line.split()[1]) / 1024 for line in status.read_text().splitlines() if line.startswith(field))


def measure_memory(which: str, train: bool, cover: float, batch: int) -> None:
    """In a child process: print the peak beyond the inputs, in megabytes."""
    Case(cover, 1).net(torch.randn(1, CHANNELS, 5, WIDTH), torch.randn(1, CHANNELS, 5, WIDTH), torch.ones(1, 9, 9))
    case = Case(cover, batch)
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = resident("VmRSS")
    case.run(which, train)
    print(resident("VmHWM") - before)


def peak_memory(which: str, train: bool, cover: float, batch: int) -> float:
    command = [sys.executable, __file__, "--child", which, str(int(train)), str(cover), str(batch)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def growth(cover: float) -> dict[int, float]:
    """Seconds for one query against 1, 5, 25 encoded supports: the query is encoded once, each support once."""
    case = Case(cover, 1)
    with torch.no_grad():
        support = case.net.encode_support(case.support[0], case.masks[0])
        found = {}
        for pairs in PAIRS:
            start = time.perf_counter()
            case.net.compare(case.net.encode_query(case.query[0]), [support] * pairs)
            found[pairs] = time.perf_counter() - start
    return found


def matrix_limit(cover: float) -> dict[str, float]:
    """The products of one forward pass, and how long the machine takes for as much work in one large product."""
    case = Case(cover, 1)
    support = case.net.encode_support(case.support[0], case.masks[0])
    t_q, cells, kept = GRID**2, support.cells.shape[2], support.kept.shape[1]
    multiplications = t_q * (
        CHANNELS * WIDTH * (4 * cells + kept)  # correlation
        + 96 * 4 * CHANNELS * cells  # queries and residual
        + 64 * CHANNELS * kept  # keys and values
        + 2 * 32 * (1 + cells) * kept  # attention
        + 3 * 32 * 64 * (1 + cells)  # aggregation and feed-forward
    )
    a = torch.randn(2000, 2000)
    best = min(seconds(lambda: a @ a) for _ in range(10))
    return {"gigaflops": 2 * multiplications / 1e9, "machine_gigaflops_per_second": 2 * 2000**3 / best / 1e9}


def show(rows: list[Row], console: Console) -> None:
    table = Table(title="EMAT, tokens to logits, t_q 2500, t_s 401, 72 channels")
    for column in ("", "mask cover", "batch", "plain", "ours", "ratio"):
        table.add_column(column, justify="left" if not column else "right")
    for row in rows:
        unit, ratio = (
            ("s", f"{row.ratio:.1f}x faster") if row.what.startswith("time") else ("MB", f"{row.ratio:.2f} of it")
        )
        numbers = (f"{value:.2f} {unit}" if unit == "s" else f"{value:.0f} {unit}" for value in (row.plain, row.ours))
        table.add_row(row.what, f"{row.cover:.0%}", str(row.batch), *numbers, ratio)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("runs/learner.json"), help="where the figures go")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        which, train, cover, batch = options.child
        measure_memory(which, bool(int(train)), float(cover), int(batch))
        return
    console, rows, differences, grown = Console(), [], {}, {}
    for cover in COVERS:
        for batch in BATCHES:
            case = Case(cover, batch)
            differences[f"{cover:.0%}, batch {batch}"] = largest_difference(case)
            for train, name in ((False, "forward"), (True, "forward + backward")):
                rows.append(Row(f"time, {name}", cover, batch, *compare_time(case, train, options.repeats)))
                memory = [peak_memory(which, train, cover, batch) for which in ("plain", "ours")]
                rows.append(Row(f"memory, {name}", cover, batch, *memory))
            del case
        grown[f"{cover:.0%}"] = growth(cover)
    show(sorted(rows, key=lambda row: (row.what, row.cover, row.batch)), console)
    console.print(f"largest difference between the two: {max(differences.values()):.1e}")
    for cover, by_pairs in grown.items():
        console.print(
            f"one query, mask cover {cover}: " + ", ".join(f"{n} supports {t:.2f} s" for n, t in by_pairs.items())
        )
    limit = matrix_limit(COVERS[0])
    least = limit["gigaflops"] / limit["machine_gigaflops_per_second"]
    console.print(
        f"forward at {COVERS[0]:.0%} is {limit['gigaflops']:.0f} GFLOP of products: {least:.2f} s at this machine's "
        f"{limit['machine_gigaflops_per_second']:.0f} GFLOP/s"
    )
    result = {
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "rows": [{**asdict(row), "ratio": row.ratio} for row in rows],
        "differences": differences,
        "growth": grown,
        "limit": limit,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    temporary = options.json.with_suffix(".part")
    temporary.write_text(json.dumps(result, indent=1))
    temporary.replace(options.json)


if __name__ == "__main__":
    main()
