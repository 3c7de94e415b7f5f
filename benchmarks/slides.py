"""How much memory `emat predict` and `emat measure` take for slides, which should not grow with the slide.

    python benchmarks/slides.py                            5,000, 10,000 and 20,000 pixels a side
    python benchmarks/slides.py --sides 5000 --tile 1000   another size, in smaller windows
    python benchmarks/slides.py --verb measure             with a table of all objects, joined across the windows

Each slide is a tiled TIFF that is made tile by tile. It is predicted in a process of its own, and the highest resident
memory of that process is measured, including Python and torch. Windows have the same size in all slides.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

TILE = 512  # pixels a side of a tile in the file
DISTANCE = 700  # pixels between two cells of the slide
RADIUS = 90
GROUND, CELL = (214, 194, 202), (108, 40, 128)  # before the noise of up to 24


def window(top: int, left: int, side: int) -> NDArray[np.uint8]:
    """Return a part (side, side, 3) of an endless tissue: dark round cells on a light, noisy ground."""
    rows, columns = np.arange(top, top + side)[:, None], np.arange(left, left + side)[None]
    inside = np.hypot(rows % DISTANCE - DISTANCE / 2, columns % DISTANCE - DISTANCE / 2) < RADIUS
    noise = np.random.default_rng(side).integers(0, 25, (side, side, 1), np.uint8)
    return np.where(inside[..., None], np.array(CELL, np.uint8), np.array(GROUND, np.uint8)) + noise


def tiles(side: int) -> Iterator[NDArray[np.uint8]]:
    """Give the tiles of a slide, row by row."""
    for top in range(0, side, TILE):
        for left in range(0, side, TILE):
            yield window(top, left, TILE)


def fit(folder: Path) -> Path:
    """Fit a segmenter to one part of the tissue, and return its file."""
    photo, mask, fitted = folder / "part.png", folder / "cells.png", folder / "cells.emat"
    part = window(0, 0, 2 * DISTANCE)
    Image.fromarray(part).save(photo)
    Image.fromarray(((part[..., 1] < 130) * 255).astype(np.uint8)).save(mask)
    subprocess.run(
        [sys.executable, "-m", "emat", "fit", str(photo), "--mask", f"cell={mask}", "-o", str(fitted)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return fitted


def measure(verb: str, fitted: Path, slide: Path, out: Path, windows: int) -> tuple[float, float, str]:
    """Predict or measure a slide; returns the highest resident memory in MB, processor seconds and what was found."""
    words = [verb, str(fitted), str(slide), "-o", str(out), "--tiles", str(windows), "--max-pixels", "9000000"]
    process = subprocess.Popen([sys.executable, "-m", "emat", *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{verb} ended with {os.waitstatus_to_exitcode(status)}")
    with (out / ("scores.csv" if verb == "predict" else "photos.csv")).open() as file:
        row = next(csv.DictReader(file))
    if verb == "predict":
        found = f"{float(row['cell: share of pixels']):.1%} (true {np.pi * RADIUS**2 / DISTANCE**2:.1%})"
    else:
        found = f"{row['count']} cells, {float(row['mean_area_px']):.0f} px each (true {np.pi * RADIUS**2:.0f})"
    return used.ru_maxrss / 1024, used.ru_utime + used.ru_stime, found


def main() -> None:
    """Print a row for each slide."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", type=int, nargs="+", default=[5_000, 10_000, 20_000], help="pixels a side")
    parser.add_argument("--tile", type=int, default=2_500, help="pixels a side of a window")
    parser.add_argument("--verb", choices=("predict", "measure"), default="predict", help="what to do with the slides")
    options = parser.parse_args()
    print("| slide | windows | TIFF | highest memory | processor time | found |\n|" + "---:|" * 6)
    with tempfile.TemporaryDirectory() as scratch:
        fitted = fit(Path(scratch))
        for side in options.sides:
            slide, count = Path(scratch) / f"{side}.tif", -(-side // options.tile)
            tifffile.imwrite(
                slide, tiles(side), shape=(side, side, 3), dtype=np.uint8, tile=(TILE, TILE),
                photometric="rgb", compression="zlib", compressionargs={"level": 1}, bigtiff=True,
            )  # fmt: skip
            memory, seconds, found = measure(options.verb, fitted, slide, Path(scratch) / f"out-{side}", count)
            size = f"{slide.stat().st_size / 1e6:.0f} MB"
            row = f"{side:,} x {side:,} | {count**2} | {size} | {memory:.0f} MB | {seconds:.0f} s"
            print(f"| {row} | {found} |", flush=True)
            slide.unlink()


if __name__ == "__main__":
    main()
