"""Packs the published fold lists into `fold_lists.json.xz`, which the fixture `fold_lists` unpacks for the tests.

    python tests/data/pack.py LISTS

LISTS is the folder of the published lists: `pascal/val/fold0.txt`, `coco/val/fold0.pkl` and so on.
"""

import json
import lzma
import sys
from pathlib import Path
from typing import Any

from emat.datasets.fold_lists import find_fold_lists, read_fold_list

HERE = Path(__file__).parent
SIZES = ("0-5", "5-10", "10-15")  # "0-15" is these three together


def main(lists: Path) -> None:
    """Read every list under `lists` and write the packed file."""
    read = {(found.dataset, found.split, found.fold): found for found in map(read_fold_list, find_fold_lists(lists))}
    packed: list[dict[str, Any]] = []
    for (dataset, split, fold), fold_list in read.items():
        if split not in ("train", "val"):
            continue
        sizes = {
            entry: i for i, size in enumerate(SIZES) if split == "val" for entry in read[dataset, size, fold].entries
        }
        packed.append(
            {
                "dataset": dataset,
                "split": split,
                "fold": fold,
                "prefix": (prefix := _common_prefix([name for name, _ in fold_list.entries])),
                "suffix": ".jpg" if dataset == "coco" else "",
                "names": " ".join(name.removeprefix(prefix).removesuffix(".jpg") for name, _ in fold_list.entries),
                "classes": _runs([class_id for _, class_id in fold_list.entries]),
                "sizes": _runs([sizes.get(entry, -1) for entry in fold_list.entries]),
            }
        )
    _write("fold_lists.json.xz", packed)


def _common_prefix(names: list[str]) -> str:
    first, last = min(names), max(names)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:same]


def _runs(values: list[int]) -> list[list[int]]:
    """[5, 5, 7] as [[5, 2], [7, 1]]."""
    runs: list[list[int]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    return runs


def _write(name: str, content: object) -> None:
    text = json.dumps(content, separators=(",", ":"))
    path = HERE / name
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
