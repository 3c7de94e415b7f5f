"""Every method side by side: parameters, time of a 1-way 1-shot task, peak memory. Prints Markdown.

    python benchmarks/methods.py --threads 2 --json methods.json
    python benchmarks/methods.py hsnet asnet emat:dinov2-s        some methods; emat on another backbone than its own

Each row is measured in a process of its own. Where a backbone's weights are not on this machine random ones take their
place, and the table says so.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from emat.backbone import Backbone, build_backbone
from emat.backbone.registry import find_backbone
from emat.methods.base import Method, TaskEvidence
from emat.methods.registry import METHODS
from emat.weights import find_weights

ANSWER = (375, 500)  # size of the label map, that of a usual photo
COVER = 0.25  # share of the support that its mask covers
PAPER_ROWS = ("emat:dinov2-s", "cst:dino-s8")  # the paper's own backbones, beside every method's default


@dataclass(frozen=True)
class Row:
    """One method's figures. Times are the best in seconds, since other work only adds; memory is the process's peak."""

    method: str
    backbone: str
    weights: str  # "pretrained" or "random"
    image_size: int
    trainable: int
    encode: float  # both photos, from pixels to encodings
    answer: float  # from encodings to the label map
    peak_gb: float
    idle_gb: float  # of the peak, what the program and its weights take

    @property
    def task(self) -> float:
        return self.encode + self.answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="METHOD or METHOD:BACKBONE; all methods if none is given")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(asdict(measure(arguments.rows[0], arguments.threads, arguments.repeats))))
        return
    rows = [measure_apart(row, arguments) for row in arguments.rows or [*METHODS, *PAPER_ROWS]]
    machine = (
        f"{platform.machine()}, {arguments.threads} thread{'s' * (arguments.threads > 1)}, PyTorch {torch.__version__}"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=1))
    print(table(rows, machine))


def measure_apart(row: str, arguments: argparse.Namespace) -> Row:
    """The figures of one row, from a process that does nothing else."""
    options = ["--child", "--threads", str(arguments.threads), "--repeats", str(arguments.repeats)]
    print(f"measuring {row}", file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, __file__, row, *options], stdout=subprocess.PIPE, text=True, check=True)
    return Row(**json.loads(done.stdout.splitlines()[-1]))


@torch.no_grad()
def measure(row: str, threads: int, repeats: int) -> Row:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    name, _, backbone_name = row.partition(":")
    entry = METHODS[name]
    backbone, weights = backbone_here(backbone_name or entry.default_backbone)
    method = entry.make(backbone, None).eval()
    side = method.preparation.image_size
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    encode, answer = zip(*(one_task(method, side) for _ in range(repeats + 1)), strict=True)
    return Row(
        method=name,
        backbone=backbone_name or entry.default_backbone,
        weights=weights,
        image_size=side,
        trainable=sum(value.numel() for value in method.parameters() if value.requires_grad),
        encode=min(encode[1:]),  # the first one warms up
        answer=min(answer[1:]),
        peak_gb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        idle_gb=idle / 2**20,
    )


def backbone_here(name: str) -> tuple[Backbone, str]:
    spec = find_backbone(name)
    if all(find_weights(part.weights) for part in spec.parts or (spec,)):
        return build_backbone(name, device="cpu"), "pretrained"
    return spec.build(), "random"


def one_task(method: Method, side: int) -> tuple[float, float]:
    """Seconds until two photos of noise are encoded, and from there to the answer."""
    photos = torch.randn(2, 1, 3, side, side)
    mask = torch.zeros(side, side)
    mask[: int(side * COVER**0.5), : int(side * COVER**0.5)] = 1
    start = time.perf_counter()
    (query,), (support,) = (method.features(photo) for photo in photos)
    encoded_query, encoded_support = method.encode_query(query), method.encode_support(support, mask)
    encoded = time.perf_counter()
    method.decide(TaskEvidence([method.compare(encoded_query, [encoded_support])], ANSWER))
    return encoded - start, time.perf_counter() - encoded


def table(rows: list[Row], machine: str) -> str:
    lines = [
        "| method | backbone | photo | trainable | encode 2 photos | compare and decide | task | peak memory |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        star = "" if row.weights == "pretrained" else " *"
        lines.append(
            f"| {row.method} | {row.backbone}{star} | {row.image_size} | {row.trainable:,} | {row.encode:.2f} s | "
            f"{row.answer:.2f} s | {row.task:.2f} s | {row.peak_gb:.2f} GB |"
        )
    lines += ["", f"{machine}. 1-way 1-shot, the mask covers {COVER:.0%} of the support; best of several runs."]
    if any(row.weights == "random" for row in rows):
        lines.append("\\* random weights: the pretrained ones were not on this machine.")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
