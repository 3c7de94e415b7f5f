"""What a prediction costs beside the bare backbone, from process start to the first mask, and in memory.

    python benchmarks/predict.py                           the default backbone at 700 px
    python benchmarks/predict.py --backbone dinov2-s       the paper's, with random weights if its own are not here

Times of the backbone and of predictions are taken in turns and their medians compared, so that other work on the
machine falls on both. Examples are encoded at fit, before the clock starts: `predict` takes a photo in memory and
gives a label map at the photo's size.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from emat import Example, Segmenter
from emat.backbone import Backbone, build_backbone
from emat.backbone.registry import DEFAULT_BACKBONE, find_backbone
from emat.errors import EmatError
from emat.methods.correlation import NetworkMethod
from emat.model import build

COVER = 0.15  # of a support photo, by its mask
# A new process's ru_maxrss begins with that of the process which started it: the kernel's own table is asked instead.
FIRST_MASK = """
import sys
from emat import Segmenter
Segmenter.load(sys.argv[1]).predict(sys.argv[2]).label_map
lines = open("/proc/self/status").read().splitlines()
print(next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")))
"""


@dataclass(frozen=True)
class Cost:
    ways: int
    shots: int
    seconds: float
    backbone_seconds: float
    backbones: float  # seconds as a multiple of the bare backbone's


def backbone_for_timing(name: str) -> Backbone:
    """With its weights, or with random ones where they cannot be had: they take the same time."""
    try:
        return build_backbone(name, device="cpu")
    except EmatError:
        torch.manual_seed(0)
        return find_backbone(name).build().freeze()


def examples(ways: int, shots: int, size: int) -> list[Example]:
    """As many photos as shots, each of which shows every class."""
    random = np.random.default_rng(0)
    side = COVER**0.5 * size
    masks = {f"class {way}": (0, 0, side, side) for way in range(ways)}
    return [Example(random.integers(0, 255, (size, size, 3), np.uint8), masks) for _ in range(shots)]


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def cost(segmenter: Segmenter, ways: int, shots: int, repeats: int) -> Cost:
    method, size = segmenter.method, segmenter.method.preparation.image_size
    segmenter.fit(examples(ways, shots, size))
    photo = np.random.default_rng(1).integers(0, 255, (size, size, 3), np.uint8)
    pixels = method.prepare(photo)
    bare, whole = [], []
    with torch.inference_mode():
        for turn in range(repeats + 1):
            one = timed(lambda: method.features(pixels))
            other = timed(lambda: segmenter.predict(photo).label_map)
            if turn:  # the first one warms up
                bare.append(one)
                whole.append(other)
    seconds, backbone = statistics.median(whole), statistics.median(bare)
    return Cost(ways, shots, seconds, backbone, seconds / backbone)


def first_mask() -> dict[str, float]:
    """A new process that loads a fitted file and predicts one photo: its time and its largest memory."""
    with tempfile.TemporaryDirectory() as folder:
        fitted, photo = Path(folder) / "fitted.emat", Path(folder) / "photo.png"
        Segmenter.load("default", device="cpu").fit(examples(1, 1, 400)).save(fitted)
        from PIL import Image

        Image.fromarray(np.random.default_rng(2).integers(0, 255, (600, 800, 3), np.uint8)).save(photo)
        seconds, memory = [], 0.0
        for _ in range(3):
            began = time.perf_counter()
            arguments = [sys.executable, "-c", FIRST_MASK, str(fitted), str(photo)]
            memory = float(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
            seconds.append(time.perf_counter() - began)
        return {"seconds": min(seconds), "memory_mb": memory, "file_mb": fitted.stat().st_size / 1e6}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--backbone", default=DEFAULT_BACKBONE)
    options.add_argument("--size", type=int, default=700, help="pixels a side")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--threads", type=int)
    options.add_argument("--ways", type=int, nargs="+", default=[1, 2, 5])
    options.add_argument("--shots", type=int, nargs="+", default=[1, 5])
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    backbone = backbone_for_timing(chosen.backbone)
    torch.manual_seed(0)
    method = NetworkMethod(backbone, build("emat", backbone.channels), chosen.size)
    segmenter = Segmenter(method.requires_grad_(False))
    costs = [cost(segmenter, ways, shots, chosen.repeats) for ways in chosen.ways for shots in chosen.shots]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started = first_mask()
    if chosen.json:
        print(json.dumps({"costs": [asdict(one) for one in costs], "memory_mb": memory, "first_mask": started}))
        return
    print(f"{chosen.backbone} at {chosen.size} px, {torch.get_num_threads()} threads, mask cover {COVER:.0%}")
    print("ways shots  seconds  of backbone alone")
    for one in costs:
        print(f"{one.ways:4} {one.shots:5} {one.seconds:8.2f} {one.backbones:8.2f} x ({one.backbone_seconds:.2f} s)")
    print(f"largest memory of this process {memory:.0f} MB")
    print(
        f"default head: process start to first mask {started['seconds']:.1f} s, {started['memory_mb']:.0f} MB, "
        f"fitted file {started['file_mb']:.1f} MB"
    )


if __name__ == "__main__":
    main()
