"""How many tasks a second training takes, and where the time goes.

    python benchmarks/training_speed.py --size 256 --support-grid 12 --threads 1

The photos are random, because the time does not depend on what they show; their features are kept in memory, as in a
run after its first epoch. Masks cover a rectangle of `--cover` of the photo. Seconds are processor seconds, since other
work on the machine comes and goes.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F

from emat.features import FeatureCache
from emat.methods.correlation import NetworkMethod
from emat.methods.registry import build_method
from emat.model import Shape

PHOTOS = 32
STEPS_BEFORE = 2  # not counted


class Stopwatch:
    """Adds up the processor seconds of named parts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        started = time.process_time()
        yield
        self.seconds[name] += time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="emat")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--support-grid", type=int)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=160)
    parser.add_argument("--cover", type=float, default=0.2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    random = np.random.default_rng(0)
    photos = random.integers(0, 256, (PHOTOS, options.size, options.size, 3), np.uint8)
    method = build_method(options.method, image_size=options.size, device="cpu", shape=Shape(options.support_grid))
    assert isinstance(method, NetworkMethod)
    cache = FeatureCache(method, memory_bytes=2**31, dtype=torch.float16)
    for photo in photos:
        cache.features(photo)
    side = round(options.size * options.cover**0.5)
    mask = torch.zeros(options.size, options.size)
    mask[:side, :side] = 1
    target = mask[None, ::4, ::4].long().expand(options.batch, -1, -1)
    present = torch.ones(options.batch, dtype=torch.long)
    optimizer = torch.optim.Adam([p for p in method.parameters() if p.requires_grad], 1e-3)

    watch = Stopwatch()
    for step in range(STEPS_BEFORE + -(-options.tasks // options.batch)):
        if step == STEPS_BEFORE:
            watch = Stopwatch()
        queries, supports = random.integers(0, PHOTOS, (2, options.batch))
        with watch.part("features from the cache"):
            kept = [
                (cache.features(photos[q]), cache.features(photos[s])) for q, s in zip(queries, supports, strict=True)
            ]
        with watch.part("encode"):
            pairs = [(method.encode_query(query), method.encode_support(support, mask)) for query, support in kept]
        with watch.part("forward"):
            out = method.network.pairs(*zip(*pairs, strict=True))
            masks = F.interpolate(out.masks, target.shape[1:], mode="bilinear", align_corners=True)
            loss = F.cross_entropy(masks, target)
            if out.presence is not None:
                loss = loss + F.cross_entropy(out.presence, present)
        with watch.part("backward"):
            optimizer.zero_grad()
            loss.backward()
        with watch.part("step"):
            optimizer.step()

    tasks = options.batch * -(-options.tasks // options.batch)
    total = sum(watch.seconds.values())
    print(
        f"{options.method} at {options.size} px, support grid {method.network.form.support_grid}, "
        f"{options.threads} threads"
    )
    for name, seconds in watch.seconds.items():
        print(f"  {name:24} {1000 * seconds / tasks:7.1f} ms a task  {seconds / total:4.0%}")
    print(f"  {tasks / total:.1f} tasks a second")


if __name__ == "__main__":
    main()
