"""What one photo costs: processor seconds of `emat predict` for one photo and for each further one.

    python benchmarks/first_photo.py FITTED PHOTOS

FITTED is a file of `emat fit`, PHOTOS a folder of at least ten photos. Each command runs in a process of its own, so
its figure holds the start of Python and the loading of weights, by which alone a first photo may cost more.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

PHOTOS = 10


def processor_seconds(fitted: Path, photos: list[Path]) -> float:
    """The processor seconds of one `emat predict`, its threads included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "emat", "predict", str(fitted), *map(str, photos), "-o", f"{out}/masks"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fitted", type=Path)
    parser.add_argument("photos", type=Path)
    given = parser.parse_args()
    suffixes = (".jpg", ".jpeg", ".png")
    photos = sorted(path for path in given.photos.iterdir() if path.suffix.lower() in suffixes)[:PHOTOS]
    if len(photos) < PHOTOS:
        parser.error(f"{given.photos} has {len(photos)} photos; {PHOTOS} are needed")
    one, all_ = processor_seconds(given.fitted, photos[:1]), processor_seconds(given.fitted, photos)
    further = (all_ - one) / (PHOTOS - 1)
    print(json.dumps({"one": round(one, 2), "ten": round(all_, 2), "each_further": round(further, 2)}))


if __name__ == "__main__":
    main()
