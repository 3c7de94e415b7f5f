"""Check a whole data set for faults that would stop later work, and say what to do about each."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from emat.datasets.dataset import Dataset, class_fractions
from emat.errors import EmatError
from emat.formats.class_names import check_class_name
from emat.images import same_scale, size_in_words

EXAMPLES_SHOWN = 3  # shown for each kind of finding
NAMES_AT_ONCE = 256  # names given to the threads at a time, so that a check that is interrupted ends soon


FAULTS = {  # and what to do about each
    "missing photo": "add the photos, or remove their masks and list entries",
    "missing mask": "add the masks, or remove the photos and list entries",
    "unreadable photo": "fetch or export these files again, or remove them with their masks",
    "unreadable mask": "save these masks again as indexed or greyscale PNG, or correct the annotation",
    "mask of another size": "save the mask at its photo's size, or the photo without EXIF rotation",
    "unwritable class name": "rename these classes; `emat fit` and `emat convert` refuse them",
    "unknown class id": "correct the masks, or name these ids in classes.txt",
}
NO_FAULTS = {
    "no class in mask": "nothing: such photos are never drawn into a task",
    "class without photo": "nothing, unless a fold needs the class",
    "no photos at all": "nothing for task work; fitting and evaluation need the photos",
}


@dataclass(frozen=True)
class Inspection:
    """What was found for one photo: the classes in its mask, and the findings as (kind, detail)."""

    name: str
    classes: tuple[int, ...]
    findings: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Finding:
    """All cases of one kind."""

    kind: str
    count: int
    examples: tuple[str, ...]  # the first few
    fault: bool  # whether it must be corrected
    advice: str  # what to do about it


@dataclass(frozen=True)
class Report:
    """The result of a check: counts, photos of each class, and findings with faults first."""

    dataset: str
    kind: str
    photos: int
    masks: int
    photos_of_class: dict[str, int]
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        """Whether no fault was found."""
        return not any(finding.fault for finding in self.findings)


def inspect_all(dataset: Dataset, *, decode: bool = True) -> Iterator[Inspection]:
    """Inspect every photo and mask of a data set, on all cores.

    Args:
        dataset: The data set.
        decode: Whether to decode photos in full. Otherwise only their headers are read, which is faster.

    Yields:
        An inspection for each name, in the order of `dataset.names`.
    """
    gone = frozenset(missing.name for missing in dataset.missing() if missing.what == "photo")
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow decodes without holding Python's lock
        for start in range(0, len(dataset.names), NAMES_AT_ONCE):
            names = dataset.names[start : start + NAMES_AT_ONCE]
            yield from pool.map(
                lambda name: _inspect(dataset, name, dataset.has_photos and name not in gone, decode), names
            )


def report(dataset: Dataset, inspections: Iterable[Inspection]) -> Report:
    """Sum up the inspections of a data set, and add the photos and masks that are missing."""
    advice = {**FAULTS, **NO_FAULTS}
    cases: dict[str, list[str]] = {kind: [] for kind in advice}
    for missing in dataset.missing():
        cases[f"missing {missing.what}"].append(missing.name)
    photos_of_class = Counter(dict.fromkeys(range(1, len(dataset.classes) + 1), 0))
    for inspection in inspections:
        photos_of_class.update(inspection.classes)
        for kind, detail in inspection.findings:
            cases[kind].append(detail)
    cases["unwritable class name"] = [repr(name) for name in dataset.classes if not _can_be_written(name)]
    cases["class without photo"] = [dataset.classes[c - 1] for c, n in photos_of_class.items() if n == 0]
    if not dataset.has_photos:
        cases["no photos at all"] = [str(dataset.root)]
    findings = [
        Finding(kind, len(details), tuple(details[:EXAMPLES_SHOWN]), kind in FAULTS, advice[kind])
        for kind, details in cases.items()
        if details
    ]
    without_photo = len(cases["missing photo"]) if dataset.has_photos else len(dataset.names)
    return Report(
        dataset.name,
        dataset.kind,
        len(dataset.names) - without_photo,
        len(dataset.names),
        {dataset.classes[c - 1]: n for c, n in photos_of_class.items()},
        tuple(findings),
    )


def _inspect(dataset: Dataset, name: str, has_photo: bool, decode: bool) -> Inspection:
    findings: list[tuple[str, str]] = []
    size = shape = None
    present: tuple[int, ...] = ()
    if has_photo:
        try:
            size = dataset.image(name).shape[:2] if decode else dataset.image_size(name)
        except EmatError as error:
            findings.append(("unreadable photo", str(error)))
    try:
        mask = dataset.stored_mask(name)
        shape, present = mask.shape, tuple(class_fractions(mask))
    except EmatError as error:
        findings.append(("unreadable mask", str(error)))
    resized = dataset.masks_root != dataset.root and size and shape and same_scale(size, shape)
    if size and shape and size != shape and not resized:
        turned = " (turned by a quarter)" if size == shape[::-1] else ""
        both = f"mask {size_in_words(shape)}, photo {size_in_words(size)}"
        findings.append(("mask of another size", f"{name}: {both}{turned}"))
    unknown = [number for number in present if number > len(dataset.classes)]
    if unknown:
        findings.append(("unknown class id", f"{name}: {', '.join(map(str, unknown))}"))
    if shape and not present:
        findings.append(("no class in mask", name))
    return Inspection(name, tuple(c for c in present if c <= len(dataset.classes)), tuple(findings))


def _can_be_written(class_name: str) -> bool:
    try:
        check_class_name(class_name)
    except EmatError:
        return False
    return True
