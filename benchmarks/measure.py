"""What measuring costs beside prediction, and how near its numbers are to known shapes and to scikit-image.

    python benchmarks/measure.py                                    1000 made photos of cells
    python benchmarks/measure.py --photos 200 --properties all      fewer photos, every property
    python benchmarks/measure.py --fitted FITTED --folder PHOTOS    your own

Photos of a folder are taken in turn until there are as many as asked for. Prediction and measuring are timed for each
photo; the share that measuring adds is what counts, since other work on the machine falls on both.
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emat import Example, Segmenter
from emat.inference.photos import find_photos
from emat.measure import MeasureOptions, Scene, measure
from emat.measure.centre_line import measure_line
from emat.measure.properties import DEFAULT_GROUPS, object_rows, read_groups


def shape_errors() -> dict[str, float]:
    """The error of each measure on a disc and a ring, in percent."""
    y, x = np.mgrid[:500, :500]
    distance = np.hypot(y - 250.13, x - 250.13)
    shapes = {
        "disc": (distance < 100, {"area": math.pi * 100**2, "perimeter": 2 * math.pi * 100, "feret_max": 200}),
        "ring": (
            (distance >= 95) & (distance < 105),
            {"area": math.pi * 2000, "skeleton_length": 2 * math.pi * 100, "width_mean": 10},
        ),
    }
    errors = {}
    for name, (mask, known) in shapes.items():
        scene = Scene.of_label_map(np.zeros((500, 500, 3), np.uint8), mask.astype(np.uint8), ["a"], touching="together")
        (row,) = object_rows(scene, read_groups("size,skeleton"))
        for key, value in known.items():
            errors[f"{name}: {key}"] = 100 * (float(row[key] or 0) / value - 1)
    return errors


def line_errors() -> dict[str, float]:
    """The largest errors on lines that are 300 pixels long, of several widths and at twelve angles.

    The true mean width is the number of pixels for each pixel of length: few widths can be drawn exactly.
    """
    y, x = np.mgrid[:500, :500] - 250.13
    worst: dict[str, float] = {}
    angles = (0, 5, 13, 22.5, 30, 45, 70, 90, 110, 135, 157.5, 175)
    for width, degrees in itertools.product((1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 40), angles):
        angle = math.radians(degrees)
        along, across = x * math.cos(angle) + y * math.sin(angle), -x * math.sin(angle) + y * math.cos(angle)
        line = (np.abs(along) <= 150) & (np.abs(across) <= width / 2)
        found, drawn = measure_line(line), float(line.sum()) / 300
        errors = {
            "length, %": 100 * (found.length / 300 - 1),
            "mean width, %": 100 * (found.width_mean / drawn - 1),
            "largest width, pixels": found.width_max - drawn,
        }
        worst |= {name: max(worst.get(name, 0.0), abs(error)) for name, error in errors.items()}
    return worst


def made_photo(seed: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """A photo (240, 320, 3) of 12 light cells on a dark ground, and their mask."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:240, :320]
    mask = np.zeros((240, 320), bool)
    for _ in range(12):
        row, column, long, short = *random.uniform((15, 15), (225, 305)), *random.uniform(8, 18, 2)
        angle = random.uniform(0, math.pi)
        along = (x - column) * math.cos(angle) + (y - row) * math.sin(angle)
        across = -(x - column) * math.sin(angle) + (y - row) * math.cos(angle)
        mask |= (along / long) ** 2 + (across / short) ** 2 < 1
    photo = np.where(mask[..., None], (150, 170, 120), (45, 40, 60)) + random.normal(0, 9, (240, 320, 3))
    return photo.clip(0, 255).astype(np.uint8), mask


def regionprops_errors(scene: Scene) -> dict[str, float]:
    """The largest difference to scikit-image's own `regionprops` over the objects of a scene, in percent."""
    from skimage.measure import regionprops

    names = {
        "area": "area",
        "equivalent_diameter": "equivalent_diameter_area",
        "perimeter": "perimeter_crofton",
        "major_axis": "axis_major_length",
        "minor_axis": "axis_minor_length",
        "feret_max": "feret_diameter_max",
        "solidity": "solidity",
    }
    (labels,) = scene.objects.values()
    rows = object_rows(scene, read_groups("size,shape"))
    worst = dict.fromkeys(names, 0.0)
    for row, region in zip(rows, regionprops(labels), strict=True):
        for own, other in names.items():
            worst[own] = max(worst[own], abs(100 * (float(row[own] or 0) / float(region[other]) - 1)))
    return worst


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--fitted", type=Path, help="a fitted file; by default one is fitted to three made photos")
    options.add_argument("--folder", help="photos; by default made ones")
    options.add_argument("--photos", type=int, default=1000)
    options.add_argument("--properties", default=",".join(DEFAULT_GROUPS))
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    groups = read_groups(chosen.properties)
    if chosen.fitted is None:
        shown = [made_photo(10**6 + number) for number in range(3)]
        segmenter = Segmenter.load("default").fit([Example(photo, {"cell": mask}) for photo, mask in shown])
    else:
        segmenter = Segmenter.load(chosen.fitted)
    photos: Iterable[tuple[str, Path | NDArray[np.uint8]]]
    if chosen.folder is None:
        photos = ((f"{number}.png", made_photo(number)[0]) for number in range(chosen.photos))
    else:
        files = itertools.islice(itertools.cycle(find_photos([chosen.folder])), chosen.photos)
        photos = ((file.name, file.path) for file in files)
    predicting = measuring = 0.0
    objects = 0
    for number, (name, photo) in enumerate(photos):
        began = time.process_time()
        prediction = segmenter.predict(photo)
        prediction.label_map  # noqa: B018 - it is made when it is first asked for
        between = time.process_time()
        found = measure(Scene.of_prediction(prediction, name), MeasureOptions(groups=groups))
        ended = time.process_time()
        if number:  # the first one loads libraries
            predicting += between - began
            measuring += ended - between
            objects += len(found.objects)
    answer: dict[str, Any] = {
        "photos": chosen.photos,
        "objects": objects,
        "seconds_predicting": predicting,
        "seconds_measuring": measuring,
        "percent_more": 100 * measuring / max(predicting, 1e-9),
        "errors_percent": shape_errors(),
        "largest_errors_of_lines": line_errors(),
        "differences_percent": regionprops_errors(found.scene),
    }
    if chosen.json:
        print(json.dumps(answer))
        return
    print(f"{chosen.photos} photos, {objects} objects, properties {', '.join(groups)} (seconds of processor time)")
    print(f"prediction {predicting:.1f} s, measuring {measuring:.1f} s: {answer['percent_more']:.1f} % more")
    print("error on shapes of known size:")
    for name, error in answer["errors_percent"].items():
        print(f"  {name}: {error:+.2f} %")
    print("largest errors on lines at twelve angles:")
    for name, error in answer["largest_errors_of_lines"].items():
        print(f"  {name}: {error:.2f}")
    print("largest difference to scikit-image's regionprops on the objects of the last photo:")
    for name, error in answer["differences_percent"].items():
        print(f"  {name}: {error:.2f} %")


if __name__ == "__main__":
    main()
