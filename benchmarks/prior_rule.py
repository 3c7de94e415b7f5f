"""How the constants of `emat-prior` were chosen: its rule with other constants, on photos that no evaluation uses.

    python benchmarks/prior_rule.py --data pascal --masks voc2012-masks.zip --lists splits --fold 1 \
        --head benchmarks/heads/emat-fold1.safetensors

Tasks are 2-way 1-shot, drawn from the fold's own *training* list in a shuffled order; the head never saw these
classes. Every pair of photos is compared once, and each row of the table decides again with its constants.
"""

import argparse
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray

from emat.datasets.layouts import open_dataset
from emat.evaluation.metrics import ScoreCounts, compute, judge_task
from emat.evaluation.run import load_evaluated
from emat.images import Pixels
from emat.methods import prior
from emat.methods.base import TaskEvidence
from emat.methods.correlation import ShotEvidence
from emat.tasks.sampling import TaskSampler, load_split
from emat.tasks.task import Protocol

CONSTANTS = ("RIVALRY", "PRESENCE_SHARE", "ABSENCE_SHARE", "MASK_MARGIN")
WHOLE_MASKS: dict[str, Any] = {"scores_by_masks": lambda scores, _: scores}  # scores heed no other way's mask
NO_RULE = {**dict.fromkeys(CONSTANTS, 0.0), **WHOLE_MASKS}
CHOSEN = {name: getattr(prior, name) for name in CONSTANTS}
VARIANTS: Mapping[str, list[float]] = {
    "RIVALRY": [0.0, 0.4, 1.2],
    "PRESENCE_SHARE": [0.0, 0.2],
    "ABSENCE_SHARE": [0.0, 0.3, 3.0],
    "MASK_MARGIN": [0.0, 0.1, 0.3],
}


@dataclass(frozen=True)
class Compared:
    """A task whose pairs were compared: its ways, the evidence of each way's shot, and the query's mask (H, W)."""

    ways: tuple[int, ...]
    evidence: list[list[ShotEvidence]]
    mask: NDArray[np.uint8]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="photos of PASCAL")
    parser.add_argument("--masks", type=Path, help="their masks, if these are elsewhere")
    parser.add_argument("--lists", type=Path, required=True, help="fold lists")
    parser.add_argument("--fold", type=int, required=True)
    parser.add_argument("--head", required=True, help="a head of emat that never saw the fold's classes")
    parser.add_argument("--size", type=int, default=320)
    parser.add_argument("--tasks", type=int, default=250)
    given = parser.parse_args()
    method = load_evaluated(given.head, "emat-prior", image_size=given.size).method
    assert isinstance(method, prior.PriorMethod)
    listed = load_split(given.lists, "pascal", "train", [given.fold])[0]
    entries = list(listed.entries)
    random.Random(0).shuffle(entries)
    sampler = TaskSampler(replace(listed, entries=tuple(entries)), Protocol(way=2, tasks=given.tasks))
    tasks = compare(method, sampler, given.data, given.masks)
    print("constants | accuracy | mIoU | false masks")
    rows = [("no rule", NO_RULE), ("scores by whole masks", WHOLE_MASKS), ("as chosen", CHOSEN), *variants()]
    for label, constants in rows:
        with mock.patch.multiple(prior, **constants):
            outcomes = []
            for task in tasks:
                decision = method.decide(TaskEvidence(task.evidence, (task.mask.shape[0], task.mask.shape[1])))
                outcomes.append(judge_task(task.ways, decision.present, decision.label_map, task.mask))
        ids = sampler.class_ids
        scores = compute(ScoreCounts.of(outcomes, ids))
        values = (scores.accuracy, scores.miou, scores.false_mask_rate)
        print(label, *(f"{100 * value:.1f}" for value in values), sep=" | ", flush=True)


def variants() -> list[tuple[str, dict[str, Any]]]:
    """The chosen constants with one of them changed at a time."""
    return [(f"{name} {value}", {**CHOSEN, name: value}) for name, values in VARIANTS.items() for value in values]


@torch.no_grad()
def compare(method: prior.PriorMethod, sampler: TaskSampler, data: Path, masks: Path | None) -> list[Compared]:
    """Compare the query of every task with its supports."""
    dataset = open_dataset(data, "pascal", masks)
    found = []
    for task in sampler:
        query = method.encode_query(method.photo_features(dataset.image(task.query)))
        evidence = []
        for way, (name,) in zip(task.ways, task.shots, strict=True):
            shown = torch.from_numpy(dataset.mask(name) == way).float()
            evidence.append(method.compare(query, [encoded(method, dataset.image(name), shown)]))
        found.append(Compared(task.ways, evidence, dataset.mask(task.query)))
    return found


def encoded(method: prior.PriorMethod, photo: Pixels, shown: torch.Tensor) -> prior.SupportWithPrior:
    """Encode a support."""
    return method.encode_example(shown, lambda: photo, lambda: method.photo_features(photo))


if __name__ == "__main__":
    main()
