"""How much the published rule of support masks moves a head: masks first go to the photo's side, then to the grid.

    python benchmarks/mask_rule.py VOC2012 --names VOC2012/ImageSets/Segmentation/val.txt \\
        benchmarks/heads/emat-fold*.safetensors

Every head answers 2-way 1-shot tasks of its fold twice: by the published rule, and with masks that go from their own
size straight to the support grid, as in evaluations before that rule. Prints accuracy, mIoU and the share of pixels
whose class differs. The heads stay as they are; none is trained again.
"""

import argparse
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from emat.datasets.dataset import Dataset
from emat.evaluation.run import load_evaluated
from emat.features import FeatureCache
from emat.methods.base import Comparison, Decision, Method
from emat.tasks.benchmark import open_benchmark
from emat.tasks.sampling import TaskRequest
from emat.tasks.task import Setting, Task

STEP = "emat.methods.correlation.support_mask"  # the published rule's first step


class Scores:
    """Sums over the tasks of a fold."""

    def __init__(self) -> None:
        self.right, self.overlap = 0, dict[int, list[int]]()

    def add(self, task: Task, decision: Decision, truth: np.ndarray) -> None:
        shown = tuple(bool((truth == way).any()) for way in task.ways)
        self.right += decision.present == shown
        for number, way in enumerate(task.ways, start=1):
            found, there = decision.label_map == number, truth == way
            sums = self.overlap.setdefault(way, [0, 0])
            sums[0] += int((found & there).sum())
            sums[1] += int((found | there).sum())

    def mean_iou(self) -> float:
        return float(np.mean([both / max(either, 1) for both, either in self.overlap.values()]))


def answer(method: Method, dataset: Dataset, cache: FeatureCache, task: Task) -> Decision:
    supports = [
        [
            method.encode_support(cache.features(dataset.image(name)), torch.from_numpy(dataset.mask(name) == way))
            for name in names
        ]
        for way, names in zip(task.ways, task.shots, strict=True)
    ]
    height, width = dataset.mask(task.query).shape
    return Comparison(method, cache.features(dataset.image(task.query))).decide(supports, (height, width))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="photos and masks of PASCAL VOC")
    parser.add_argument("heads", nargs="+", help="of folds 0, 1, 2 ... in order")
    parser.add_argument("--names", type=Path, help="file of the photos to use, a name a line")
    parser.add_argument("--tasks", type=int, default=50, help="of each fold")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    benchmark = open_benchmark(None, None, options.data, names=options.names)
    dataset = benchmark.dataset
    assert dataset is not None
    print("| head | accuracy | mIoU | pixels that differ |\n|---|---:|---:|---:|")
    for fold, head in enumerate(options.heads):
        method = load_evaluated(head, device="cpu").method
        cache = FeatureCache(method, memory_bytes=2**31)
        published, before, changed = Scores(), Scores(), []
        for task in (
            benchmark.sampler(fold, TaskRequest(2, 1, Setting.ORIGINAL, tasks=options.tasks)).configuration().tasks
        ):
            truth = dataset.mask(task.query)
            decision = answer(method, dataset, cache, task)
            with patch(STEP, lambda mask, side: mask.float()):
                other = answer(method, dataset, cache, task)
            published.add(task, decision, truth)
            before.add(task, other, truth)
            changed.append(float((decision.label_map != other.label_map).mean()))
        accuracies, scores = zip(
            *((each.right / options.tasks, each.mean_iou()) for each in (before, published)), strict=True
        )
        print(
            f"| {Path(head).stem} | {accuracies[0]:.1%} -> {accuracies[1]:.1%} | {100 * scores[0]:.2f} -> "
            f"{100 * scores[1]:.2f} | {np.mean(changed):.2%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
