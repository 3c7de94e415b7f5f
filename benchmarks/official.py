"""emat against the published code's way of working: one task after the other, and every photo of a task encoded anew.

    python benchmarks/official.py
    python benchmarks/official.py --precision bfloat16    # emat encodes photos as emat eval --precision bfloat16 does
    python benchmarks/official.py --lists splits --masks voc2012-masks.zip    # counts the published tasks of PASCAL

The published way is `tests/parity/plain_evaluation.py`, which gives the same answers. Weights are random: EMAT with
DINOv2 ViT-S. Every measurement is a process of its own with one thread. Seconds are processor seconds, since other work
on the machine comes and goes; memory is the largest that the process ever held. A row of 1000 tasks is computed: the
seconds that a photo and a pair took, times their number in the tasks of the first fold, of the published lists if they
are given and otherwise of lists by rule. The rows of few tasks are run, and say what the same computation gives.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from emat.backbone.registry import find_backbone
from emat.datasets.fold_lists import FoldList
from emat.evaluation.evaluator import savings
from emat.evaluation.run import EvaluatedMethod, Run, evaluate
from emat.images import write_indexed_png
from emat.methods.base import Features, LossWeights, TrainingBatch
from emat.methods.correlation import NetworkMethod
from emat.model import build
from emat.model.plain import FORMS, plain_forward
from emat.tasks.benchmark import Benchmark, open_benchmark
from emat.tasks.sampling import TaskRequest, TaskSampler, published_protocol
from emat.tasks.task import Configuration, Setting

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.parity.plain_evaluation import PlainMethod, Shot, plain_answer, plain_tokens

PHOTOS, CLASSES = 346, 5  # as many as the published list of PASCAL's first fold has
PHOTO_SIZE = (375, 500)
CHANNELS, COVER = 72, 0.1
TRAINING_BATCH, TRAINING_SIDE = 3, 700

Units = dict[str, list[tuple[float, int]]]  # of a photo and a pair: seconds and bytes of the published way and of emat


def network_method(side: int, precision: str = "float32") -> NetworkMethod:
    torch.manual_seed(0)
    backbone = find_backbone("dinov2-s").build()
    for parameter in backbone.parameters():
        parameter.normal_(std=0.05)
    method = NetworkMethod(backbone, build("emat", CHANNELS), side).eval()
    method.precision = getattr(torch, precision)
    return method


def plain_of(method: NetworkMethod, side: int) -> PlainMethod:
    return PlainMethod(FORMS["emat"], method.backbone.state_dict(), dict(method.network.named_parameters()), side)


def label_map(number: int) -> np.ndarray:
    """A photo's classes: one large object, and in every third photo another one."""
    random = np.random.default_rng(number)
    height, width = PHOTO_SIZE
    labels = np.zeros(PHOTO_SIZE, np.uint8)
    for order in range(2 if number % 3 == 0 else 1):
        top, left = random.integers(0, height // 2), random.integers(0, width // 2)
        side = np.sqrt(random.uniform(0.03, 0.25))
        labels[top : top + int(side * height), left : left + int(side * width)] = 1 + (number + order) % CLASSES
    return labels


def write_photos(root: Path, wanted: set[str]) -> None:
    """Write the photos that tasks use, and the masks of all."""
    (root / "images").mkdir(parents=True)
    (root / "classes.txt").write_text("".join(f"class{number}\n" for number in range(CLASSES)))
    for name in wanted:
        number = int(name)
        photo = np.random.default_rng(number).integers(0, 256, (*PHOTO_SIZE, 3), np.uint8)
        Image.fromarray(photo).save(root / "images" / f"{name}.png", compress_level=1)
        write_indexed_png(root / "masks" / f"{name}.png", label_map(number))


def published_configurations(lists: Path, masks: Path, settings: int, tasks: int) -> tuple[Configuration, ...]:
    """The tasks of the first `settings` settings in the first fold of PASCAL's published lists, 2-way 1-shot."""
    benchmark = open_benchmark("pascal", lists, None, masks=masks, only=[0])
    requests = (TaskRequest(2, 1, setting, tasks=tasks) for setting in list(Setting)[:settings])
    return tuple(benchmark.sampler(0, request).configuration() for request in requests)


def configurations(settings: int, tasks: int) -> tuple[Configuration, ...]:
    """The tasks of the first `settings` settings, 2-way 1-shot, by rule."""
    maps = {f"{number:04}": label_map(number) for number in range(PHOTOS)}
    areas: Any = {
        name: {int(c): float((labels == c).mean()) for c in np.unique(labels) if c} for name, labels in maps.items()
    }
    entries = tuple((name, class_id) for name, shown in areas.items() for class_id in shown)
    listed = FoldList("pascal", 0, "val", entries, tuple(range(1, CLASSES + 1)))
    return tuple(
        TaskSampler(listed, published_protocol(listed, TaskRequest(2, 1, setting, tasks=tasks)), areas).configuration()
        for setting in list(Setting)[:settings]
    )


def opened(drawn: tuple[Configuration, ...], folder: Path) -> Benchmark:
    write_photos(folder / "data", {name for each in drawn for task in each.tasks for name in task.photos})
    return open_benchmark(None, None, folder / "data", folds="1")


def evaluation(way: str, side: int, tasks: int, settings: int, precision: str) -> Callable[[], object]:
    """An evaluation, ready to start."""
    method, drawn = network_method(side, precision), configurations(settings, tasks)
    folder = Path(tempfile.mkdtemp())
    dataset = opened(drawn, folder).dataset
    assert dataset is not None

    def plain() -> None:
        for task in (task for each in drawn for task in each.tasks):
            ways = [
                [Shot(dataset.image(name), dataset.mask(name) == c) for name in names]
                for c, names in zip(task.ways, task.shots, strict=True)
            ]
            truth = [dataset.mask(task.query) == c for c in task.ways]
            plain_answer(plain_of(method, side), dataset.image(task.query), ways, truth)

    def ours() -> None:
        run = Run(drawn, {0: EvaluatedMethod(method.requires_grad_(False), "dinov2-s", None, None, "", 0)})
        evaluate(run, dataset, folder / "journal")

    return plain if way == "plain" else ours


def unit(way: str, side: int, what: str, precision: str) -> Callable[[], object]:
    """One photo through the backbone, one pair through the network, or the forward or training pass of a batch."""
    method = network_method(side, precision)
    plain = plain_of(method, side)
    photo = np.random.default_rng(0).integers(0, 256, (*PHOTO_SIZE, 3), np.uint8)
    if what == "photo":
        return lambda: plain_tokens(plain, photo) if way == "plain" else method.photo_features(photo)
    grid = side // 14
    batch = TRAINING_BATCH if what == "training" else 1
    torch.manual_seed(1)
    tokens = torch.randn(2, batch, CHANNELS, 1 + grid * grid, 64) + torch.randn(CHANNELS, 1, 64)
    masks = torch.zeros(batch, side, side)
    edge = round(side * COVER**0.5)
    masks[:, :edge, :edge] = 1
    queries, supports = ([Features((each,), (side, side)) for each in role] for role in tokens)
    training = TrainingBatch(queries, supports, list(masks), masks.long())

    def plain_loss() -> torch.Tensor:
        weights = dict(method.network.named_parameters())
        presence, logits = plain_forward(FORMS["emat"], weights, tokens[0], tokens[1], masks)
        assert presence is not None
        full = F.interpolate(logits, (side, side), mode="bilinear", align_corners=True)
        there = torch.ones(batch, dtype=torch.long)
        return 0.1 * F.cross_entropy(presence, there) + F.cross_entropy(full, masks.long())

    def step() -> None:
        # Made here, because it imports a part of PyTorch that takes 0.1 GB.
        optimizer = torch.optim.Adam([p for p in method.parameters() if p.requires_grad], 1e-3)
        optimizer.zero_grad()
        (plain_loss() if way == "plain" else method.loss(training, LossWeights()).total).backward()
        optimizer.step()

    def forward() -> None:
        with torch.no_grad():
            if way == "plain":
                plain_forward(FORMS["emat"], dict(method.network.named_parameters()), tokens[0], tokens[1], masks)
            else:
                support = method.encode_support(supports[0], masks[0])
                method.compare(method.encode_query(queries[0]), [support])

    return step if what == "training" else forward


def measure(words: list[str]) -> None:
    """In a process of its own: print seconds and peak memory of one piece of work."""
    torch.set_num_threads(1)
    what, way, precision = words[:3]
    if way == "plain":
        torch.set_float32_matmul_precision("highest")  # PyTorch's default, which emat.device may have changed
    side, tasks, settings, repeats = map(int, words[3:])
    if what == "evaluation":
        work = evaluation(way, side, tasks, settings, precision)
    else:
        work = unit(way, side, what, precision)
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": min(seconds), "peak": peak}))


def measured(
    what: str, way: str, side: int, tasks: int = 0, settings: int = 1, repeats: int = 1, precision: str = "float32"
) -> tuple[float, int]:
    words = [what, way, precision, *(str(value) for value in (side, tasks, settings, repeats))]
    command = [sys.executable, __file__, "--measure", *words]
    out = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
    return out["seconds"], out["peak"]


def row(name: str, plain: tuple[float, int], ours: tuple[float, int]) -> None:
    print(
        f"| {name} | {plain[0]:.2f} s, {plain[1] / 2**20:.0f} MB | {ours[0]:.2f} s, {ours[1] / 2**20:.0f} MB | "
        f"{plain[0] / ours[0]:.1f}x | {ours[1] / plain[1]:.2f} |",
        flush=True,
    )


def computed_row(name: str, drawn: tuple[Configuration, ...], units: Units) -> None:
    """What photos and pairs cost in both ways; reading files and deciding are left out."""
    counted = savings(drawn)
    (plain_photo, photo), (plain_pair, pair) = ([seconds for seconds, _ in units[what]] for what in ("photo", "pair"))
    plain = counted.images_apart * plain_photo + counted.pairs_apart * plain_pair
    backbone = counted.images * photo
    ours = backbone + counted.pairs * pair
    print(
        f"| {name}: {counted.images_apart} photos and {counted.pairs_apart} pairs, {counted.images} and "
        f"{counted.pairs} | {plain:.1f} s | {ours:.1f} s, the backbone {backbone / ours:.0%} | {plain / ours:.1f}x | |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs=7, help=argparse.SUPPRESS)
    parser.add_argument("--small-tasks", type=int, default=12, help="of each setting at 350 px")
    parser.add_argument("--large-tasks", type=int, default=4, help="of each setting at 700 px; 0 leaves these out")
    parser.add_argument("--repeats", type=int, default=3, help="of a photo, a pair and a training step")
    parser.add_argument("--lists", type=Path, help="the folder of the published fold lists; needs --masks")
    parser.add_argument("--masks", type=Path, help="the masks of PASCAL, a folder or a zip")
    parser.add_argument("--precision", default="float32", help="in which emat encodes photos")
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
        return
    print("| work | published way | emat | faster | memory |\n|---|---:|---:|---:|---:|")
    sizes = [(350, options.small_tasks)] + ([(700, options.large_tasks)] if options.large_tasks else [])
    for side, tasks in sizes:
        units: Units = {}
        for what in ("photo", "pair"):
            units[what] = [
                measured(what, way, side, repeats=options.repeats, precision=options.precision)
                for way in ("plain", "emat")
            ]
            row(f"one {what}, {side} px" + (", mask cover 10 %" if what == "pair" else ""), *units[what])
        for settings in (1, 3):
            name = f"2-way 1-shot, {settings} setting{'s' * (settings > 1)}"
            both = [
                measured("evaluation", way, side, tasks, settings, precision=options.precision)
                for way in ("plain", "emat")
            ]
            row(f"{name}, {tasks} tasks each, {side} px", *both)
            computed_row("the same, computed", configurations(settings, tasks), units)
            many = (
                published_configurations(options.lists, options.masks, settings, 1000)
                if options.lists
                else configurations(settings, 1000)
            )
            computed_row(f"{name}, 1000 tasks each, {side} px, computed", many, units)
    both = [measured("training", way, TRAINING_SIDE, repeats=options.repeats) for way in ("plain", "emat")]
    row(f"training step, {TRAINING_SIDE} px, batch {TRAINING_BATCH}, kept features", *both)


if __name__ == "__main__":
    main()
