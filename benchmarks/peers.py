"""Methods that need no training beside EMAT: the same tasks, the same features. Runs `emat eval`, prints Markdown.

    python benchmarks/peers.py run --data DATA --out runs/peers --tasks 100 --prompted-tasks 15
    python benchmarks/peers.py run --data DATA --out runs/peers --tasks 15 --prompted-tasks 15 --refine
    python benchmarks/peers.py absent --data DATA --out runs/peers --tasks 100
    python benchmarks/peers.py table runs/peers
    python benchmarks/peers.py levels --data DATA --pairs 60
    python benchmarks/peers.py channels --data DATA --pairs 120

DATA holds pascal/, voc2012-masks.zip, splits/, domain/nuclei and domain/steel. A finished evaluation is not repeated
and a stopped one goes on, so `run` may be given again for more sets and methods. `levels` shows the scores of the best
patches on pairs of train-list photos with and without the class, and the presence rule that follows from them.
`channels` shows what the channels of the stack of EfficientNet-Lite2 and MobileSAM are worth to the prototype, on the
same pairs at 384 pixels.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from emat.datasets.dataset import Dataset
from emat.datasets.layouts import open_dataset
from emat.evaluation.absence import area_under_curve
from emat.evaluation.results import read_results, summaries_of
from emat.features import FeatureCache
from emat.images import VOID
from emat.methods.prototype import FOREGROUND_MARGIN, Prototype
from emat.methods.registry import build_method
from emat.methods.training_free import PatchMethod, best_patches

BACKBONE = "efficientnet-lite2"
STACK = "efficientnet-lite2+mobilesam"
CHANNEL_GROUPS = {
    "EfficientNet-Lite2, blocks 18 to 20": (range(28, 42),),
    "MobileSAM, stages 3 and 4": (range(45, 55),),
    "MobileSAM, stages 2 to 4 and neck": (range(42, 59),),
    "blocks 18 to 20, stages 2 to 4 and neck": (range(28, 59),),
    "blocks 18 to 20, stages 3 and 4": (range(28, 42), range(45, 55)),
    "blocks 18 to 20, neck": (range(28, 42), range(55, 59)),
}
MARGINS = np.linspace(-0.05, 0.3, 36)
PROMPTED = ("persam", "matcher", "gf-sam")
FREE = ("prototype", "promi", "whitened", "frost", "insid3", *PROMPTED)
HEADS = {"emat": "emat", "emat-prior": "emat-prior"}
METHODS = (*HEADS, *FREE)
# Each set's options of `emat eval`, and the head of EMAT that saw none of its classes.
FOLD_HEADS = "benchmarks/heads-32000/emat-fold{fold}.safetensors"
SETS = {
    "PASCAL-5i, 2-way 1-shot": ("pascal", "--way 2", FOLD_HEADS),
    "PASCAL-5i, 2-way 1-shot, fully augmented": ("pascal", "--way 2 --setting fully-augmented", FOLD_HEADS),
    "PASCAL-5i, 1-way 1-shot, query has the class": ("pascal", "--way 1 --query-has-class", FOLD_HEADS),
    "nuclei, 1-way 1-shot": ("domain/nuclei", "--folds 1", "default-light"),
    "steel, 1-way 1-shot": ("domain/steel", "--folds 1", "default-light"),
}
ABSENT_SETS = {
    "PASCAL-5i": ("pascal", "--absent", FOLD_HEADS),
    "steel": ("domain/steel", "--folds 1 --absent", "default-light"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("act", choices=("run", "absent", "table", "levels", "channels"))
    parser.add_argument("results", nargs="?", type=Path, help="folder of results, for the table")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/peers"))
    parser.add_argument("--tasks", type=int, default=100, help="tasks of each fold")
    parser.add_argument("--prompted-tasks", type=int, default=15, help="the same for methods that prompt MobileSAM")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--sets", default="", help="only sets whose names contain this")
    parser.add_argument("--refine", action="store_true", help="refine the masks with MobileSAM")
    parser.add_argument("--pairs", type=int, default=60, help="of each kind, for the levels")
    arguments = parser.parse_args()
    if arguments.act == "table":
        print(tables(arguments.results or arguments.out))
    elif arguments.act == "levels":
        levels(arguments.data, arguments.methods.split(","), arguments.pairs)
    elif arguments.act == "channels":
        channels(arguments.data, arguments.pairs)
    else:
        run(arguments, SETS if arguments.act == "run" else ABSENT_SETS)


def run(arguments: argparse.Namespace, sets: dict[str, tuple[str, str, str]]) -> None:
    """Evaluate every method on every set, each in a process of its own."""
    for title, (folder, options, head) in sets.items():
        if arguments.sets not in title:
            continue
        for method in arguments.methods.split(","):
            data = ["--data", arguments.data / folder]
            if folder == "pascal":
                data += ["--dataset", "pascal", "--masks", arguments.data / "voc2012-masks.zip"]
                data += ["--lists", arguments.data / "splits", "--folds", "all"]
            tasks = arguments.prompted_tasks if method in PROMPTED else arguments.tasks
            which = ["--backbone", BACKBONE, "--size", 400] if method in FREE else ["--model", head, "--size", 384]
            name = f"{arguments.act}-{title}-{method}{'-refined' * arguments.refine}.json".replace(" ", "_")
            words = ["eval", "--method", method, *which, *data, *options.split(), "--tasks", tasks]
            words += ["--refine", "auto"] * arguments.refine
            words += ["--cache", arguments.out / "features", "-o", arguments.out / name]
            print(time.strftime("%H:%M"), name, file=sys.stderr, flush=True)
            subprocess.run([sys.executable, "-m", "emat", *map(str, words)], stdout=subprocess.DEVNULL, check=False)


def tables(folder: Path) -> str:
    """Return a Markdown table for each set, and one of absence."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.json"), key=lambda each: (METHODS.index(_method(each)), each.name)):
        act, title = path.stem.replace("_", " ").split("-", 1)
        content = read_results(path)
        method = f"`{_method(path)}`{', refined' * path.stem.endswith('-refined')}"
        title = title.rsplit(f"-{_method(path)}", 1)[0]
        if act == "absent":
            found.setdefault(f"Absence: {title}", []).extend(_absent_rows(method, content))
        else:
            found.setdefault(title, []).append(_row(method, content))
    heads = {
        "Absence": "| method | query shows | queries | AUROC | false masks | at 90 % found |\n"
        "|---|---|---:|---:|---:|---:|",
        "": "| method | tasks | accuracy | mIoU | false masks | seconds a task |\n|---|---:|---:|---:|---:|---:|",
    }
    return "\n\n".join(
        f"**{title}**\n\n{heads['Absence' if title.startswith('Absence') else '']}\n" + "\n".join(rows)
        for title, rows in found.items()
    )


def _method(path: Path) -> str:
    stem = path.stem.removesuffix("-refined")
    return max((name for name in METHODS if stem.endswith(f"-{name}")), key=len)


def _row(method: str, content: dict[str, object]) -> str:
    summary = summaries_of(content)[-1]  # the mean of the folds, or the only one
    cells = [method, str(summary.tasks)]
    for name in ("accuracy", "miou", "false_mask_rate"):
        value, interval = summary.scores[name], summary.intervals[name]
        half = "" if interval is None else f" ± {50 * (interval[1] - interval[0]):.1f}"
        cells.append("" if value is None else f"{100 * value:.1f}{half}")
    cells.append(f"{float(str(content['seconds'])) / summary.tasks:.2f}")
    return f"| {' | '.join(cells)} |"


def _absent_rows(method: str, content: dict[str, object]) -> Iterator[str]:
    for each in json.loads(json.dumps(content["absence"]))["levels"]:
        auroc, masks = (
            f"{100 * each[name]:.1f} ± {50 * (each[f'{name}_interval'][1] - each[f'{name}_interval'][0]):.1f}"
            for name in ("auroc", "false_masks")
        )
        at_hits = each["false_masks_at_hits"]
        last = "fewer found" if at_hits is None else f"{100 * at_hits:.1f}"
        yield f"| {method} | {each['level']} | {each['queries']} | {auroc} | {masks} | {last} |"


def levels(data: Path, methods: list[str], count: int) -> None:
    """Print the presence rule that a logistic regression on the best patches' scores gives, and what it is worth."""
    dataset = open_dataset(data / "pascal", None, data / "voc2012-masks.zip")
    pairs = list(train_pairs(dataset, data / "splits" / "pascal" / "trn", count))
    print("| method | AUC | level | sharpness |\n|---|---:|---:|---:|")
    for name in methods:
        method = build_method(name, BACKBONE)
        if not isinstance(method, PatchMethod):
            continue
        cache = FeatureCache(method, memory_bytes=2**30)
        scores = torch.tensor([best_score(method, cache, dataset, *pair) for pair in pairs], dtype=torch.float64)
        there = scores[::2].numpy(), scores[1::2].numpy()
        level, sharpness = logistic(scores, torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(count))
        print(f"| `{name}` | {100 * area_under_curve(*there):.1f} | {level:.3f} | {sharpness:.1f} |", flush=True)


def train_pairs(dataset: Dataset, lists: Path, count: int) -> Iterator[tuple[str, str, int]]:
    """Give query, support and class of `count` pairs with the class in the query, each followed by one without it."""
    photos: dict[int, list[str]] = {}
    for path in sorted(lists.glob("fold*.txt")):
        for line in path.read_text().split():
            name, number = line.split("__")
            photos.setdefault(int(number), []).append(name)
    random, classes = np.random.RandomState(0), sorted(photos)
    for _ in range(count):
        way = int(random.choice(classes))
        support, query = random.choice(photos[way], 2, replace=False)
        yield str(query), str(support), way
        while True:
            other = str(random.choice(photos[int(random.choice(classes))]))
            if not (dataset.mask(other) == way).any():
                break
        yield other, str(support), way


@torch.no_grad()
def best_score(
    method: PatchMethod[Any, Any],
    cache: FeatureCache,
    dataset: Dataset,
    query: str,
    support: str,
    way: int,
) -> float:
    """Return the mean score of the query's best patches."""
    mask = torch.from_numpy((dataset.mask(support) == way).astype(np.float32))
    asked = method.encode_query(cache.features_of(query, dataset.image))
    shown = method.support_patches(cache.features_of(support, dataset.image), mask)
    return float(best_patches(method.scores(asked, shown).view(1, *asked.grid)))


@torch.no_grad()
def channels(data: Path, count: int) -> None:
    """Print what groups of the stack's channels are worth: masks where the class is there, and presence."""
    dataset = open_dataset(data / "pascal", None, data / "voc2012-masks.zip")
    method = build_method("prototype", STACK, image_size=384)
    assert isinstance(method, Prototype)
    method.channels = slice(None)
    cache = FeatureCache(method, memory_bytes=2**33)
    pairs = []
    for query, support, way in train_pairs(dataset, data / "splits" / "pascal" / "trn", count):
        asked, mask = cache.features_of(query, dataset.image), torch.from_numpy(dataset.mask(support) == way).float()
        shown = method.encode_support(cache.features_of(support, dataset.image), mask)
        patches = method.encode_query(asked)[0]  # (C, h, w, d)
        near, far = (torch.einsum("chwd,cd->chw", patches, each) for each in (shown.foreground, shown.background))
        pairs.append((near, far, torch.from_numpy(dataset.mask(query)), way))
    print("| channels | mIoU | at the best margin of each photo | AUC of presence |\n|---|---:|---:|---:|")
    for name, parts in CHANNEL_GROUPS.items():
        chosen = [channel for part in parts for channel in part]
        usual, best = [], []
        for near, far, labels, way in pairs[::2]:
            ahead = (near[chosen] - far[chosen]).mean(dim=0)
            map_ = F.interpolate(ahead[None, None], labels.shape, mode="bilinear", align_corners=True)[0, 0]
            overlaps = [_iou(map_ >= float(margin), labels, way) for margin in (FOREGROUND_MARGIN, *MARGINS)]
            usual.append(overlaps[0])
            best.append(max(overlaps))
        scores = [float(best_patches(near[chosen].mean(dim=0)[None])) for near, *_ in pairs]
        auc = area_under_curve(np.array(scores[::2]), np.array(scores[1::2]))
        print(f"| {name} | {100 * np.mean(usual):.1f} | {100 * np.mean(best):.1f} | {100 * auc:.1f} |", flush=True)


def _iou(mask: torch.Tensor, labels: torch.Tensor, way: int) -> float:
    inside = labels == way
    return float((mask & inside).sum() / ((mask & (labels != VOID)) | inside).sum().clamp_min(1))


def logistic(scores: torch.Tensor, truth: torch.Tensor) -> tuple[float, float]:
    """Return the score at which presence is undecided, and the logit of a score that is 1 above it."""
    mean, deviation = scores.mean(), scores.std()
    weights = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=100)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(weights[0] * (scores - mean) / deviation + weights[1], truth)
        loss.backward()
        return loss

    optimizer.step(closure)
    slope, offset = weights.detach()
    return float(mean - offset * deviation / slope), float(slope / deviation)


if __name__ == "__main__":
    main()
