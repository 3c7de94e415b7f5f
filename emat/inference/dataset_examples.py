"""Examples from a data set: photos with masks of its classes, and photos that show none of them.

A photo shows nothing if its annotation is there and empty: a mask of background, a COCO image without annotations, an
empty YOLO file, a LabelMe file without shapes. Photos without any annotation can be put into a folder `nothing/`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from emat.datasets.dataset import Dataset
from emat.datasets.folders import NOTHING
from emat.errors import EmatError
from emat.formats.class_names import tidy_name
from emat.images import VOID
from emat.inference.example import Example
from emat.inference.photos import PhotoFile, find_photos

MOST_EMPTY = 20  # photos that show no class; a few are enough to tell from when on a class is present


def wanted_classes(dataset: Dataset, only: str | None) -> tuple[str, ...]:
    """The classes that `only` lists, separated by commas; all of them if it is None.

    Raises:
        EmatError: If the data set has no such class.
    """
    if only is None:
        return dataset.classes
    names = tuple(dict.fromkeys(tidy_name(name) for name in only.split(",")))
    if unknown := sorted(set(names) - set(dataset.classes)):
        raise EmatError(
            "unknown-class", f"{dataset.root} has no class {unknown[0]!r}; its classes are {', '.join(dataset.classes)}"
        )
    return names


def examples_of(
    dataset: Dataset, names: Iterable[str], wanted: Sequence[str], shots: int | None, empty: int = MOST_EMPTY
) -> Iterator[Example]:
    """Make examples of the photos of a data set, reading each when it is asked for.

    Void pixels are undecided, and so are those of classes that are not wanted or of which there are enough examples. A
    photo that shows a class of which there are enough says nothing about it.

    Args:
        dataset: The data set.
        names: Names of its photos, in the order to look at them.
        wanted: The classes to show.
        shots: Stop when there are so many examples of every class; None for all.
        empty: At most so many photos that show nothing, those of the folder `nothing/` first.
    """
    nothing = photos_of_nothing(dataset)[:empty]
    yield from (Example(photo.path, {}, name=f"{NOTHING}/{photo.name}") for photo in nothing)
    empty -= len(nothing)
    taken: Counter[str] = Counter()
    for name in names:
        label_map = dataset.mask(name)
        values = np.unique(label_map).tolist()
        if unknown := [value for value in values if value > len(dataset.classes) and value != VOID]:
            raise EmatError(
                "unknown-class",
                f"the mask of {name} has the value {unknown[0]}, but there are {len(dataset.classes)} classes; "
                "name the others too, or correct the mask",
            )
        shown = {c: 1 + index for index, c in enumerate(dataset.classes) if 1 + index in values and 1 + index != VOID}
        chosen = [c for c in shown if c in wanted and (shots is None or taken[c] < shots)]
        undecided = np.isin(label_map, [VOID, *(value for c, value in shown.items() if c not in chosen)])
        if chosen:
            taken.update(chosen)
            masks = {c: label_map == shown[c] for c in chosen}
            # It shows these too, so it does not lack them.
            enough = [c for c in shown if c in wanted and c not in chosen]
            yield Example(dataset.image(name), masks, name=name, void=undecided, undecided=enough)
        elif not shown and empty and not undecided.all() and _is_annotated(dataset, name):
            empty -= 1
            yield Example(dataset.image(name), {}, name=name, void=undecided)
        if shots is not None and all(taken[c] >= shots for c in wanted):
            return


def photos_of_nothing(dataset: Dataset) -> list[PhotoFile]:
    """The photos in the folder `nothing/` of a data set, unless that is the name of a class."""
    folder = Path(dataset.root) / NOTHING
    if not folder.is_dir() or NOTHING in dataset.classes:
        return []
    return find_photos([str(folder)])


def _is_annotated(dataset: Dataset, name: str) -> bool:
    """Whether there is a file that says what the photo shows. In a YOLO data set, a photo without one may not have been
    looked at yet.
    """
    return dataset.kind != "yolo" or dataset.mask_file(name) is not None
