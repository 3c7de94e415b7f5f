"""Looking through a whole data set for what would go wrong later, and saying what to do about it."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from emat.datasets.class_areas import class_fractions
from emat.datasets.dataset import Dataset
from emat.errors import EmatError

EXAMPLES = 3
BATCH = 256  # names handed to the threads at once, so that an interrupted check ends soon


@dataclass(frozen=True)
class Kind:
    """A kind of finding: what to do about it, and whether it must be done."""

    advice: str
    fault: bool = True


KINDS: dict[str, Kind] = {
    "missing photo": Kind("add the photos, or remove their masks and list entries"),
    "missing mask": Kind("add the masks, or remove the photos and list entries"),
    "unreadable photo": Kind("fetch or export these files again, or remove them with their masks"),
    "unreadable mask": Kind("save these masks again as indexed or greyscale PNG, or correct the annotation"),
    "mask of another size": Kind("save the mask at its photo's size, or the photo upright without EXIF rotation"),
    "unknown class id": Kind("correct the masks, or name these ids in classes.txt"),
    "no class in mask": Kind("nothing: such photos are never drawn into a task", fault=False),
    "class without photo": Kind("nothing, unless a fold needs the class", fault=False),
    "no photos at all": Kind("nothing for task work; fitting and evaluation need the photos", fault=False),
}


@dataclass(frozen=True)
class Inspection:
    """What one name showed: the classes in its mask, and findings as (kind, detail)."""

    name: str
    classes: tuple[int, ...]
    findings: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Finding:
    """All cases of one kind; `examples` are the first few, in words."""

    kind: str
    count: int
    examples: tuple[str, ...]

    @property
    def fault(self) -> bool:
        """Whether the user must do something."""
        return KINDS[self.kind].fault

    @property
    def advice(self) -> str:
        """What to do."""
        return KINDS[self.kind].advice


@dataclass(frozen=True)
class Report:
    """Outcome of a check: counts, photos per class, findings with faults first."""

    dataset: str
    kind: str
    photos: int
    masks: int
    photos_of_class: dict[str, int]
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing must be done."""
        return not any(finding.fault for finding in self.findings)


def inspect_all(dataset: Dataset, *, decode: bool = True) -> Iterator[Inspection]:
    """Every name's inspection, in order, on all cores; without `decode` only headers of photos are read."""
    gone = frozenset(missing.name for missing in dataset.missing() if missing.what == "photo")
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow decodes without holding Python's lock
        for start in range(0, len(dataset.names), BATCH):
            names = dataset.names[start : start + BATCH]
            yield from pool.map(
                lambda name: _inspect(dataset, name, dataset.has_photos and name not in gone, decode), names
            )


def report(dataset: Dataset, inspections: Iterable[Inspection]) -> Report:
    """Sum up `inspections` and add what the names of files alone tell."""
    cases: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for missing in dataset.missing():
        cases[f"missing {missing.what}"].append(missing.name)
    photos_of_class = Counter(dict.fromkeys(range(1, len(dataset.classes) + 1), 0))
    for inspection in inspections:
        photos_of_class.update(inspection.classes)
        for kind, detail in inspection.findings:
            cases[kind].append(detail)
    cases["class without photo"] = [dataset.classes[c - 1] for c, n in photos_of_class.items() if n == 0]
    if not dataset.has_photos:
        cases["no photos at all"] = [str(dataset.root)]
    found = [Finding(kind, len(c), tuple(c[:EXAMPLES])) for kind, c in cases.items() if c]
    without_photo = len(cases["missing photo"]) if dataset.has_photos else len(dataset.names)
    return Report(
        dataset.name,
        dataset.kind,
        len(dataset.names) - without_photo,
        len(dataset.names),
        {dataset.classes[c - 1]: n for c, n in photos_of_class.items()},
        tuple(found),
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
        mask = dataset.mask(name)
        shape, present = mask.shape, tuple(class_fractions(mask))
    except EmatError as error:
        findings.append(("unreadable mask", str(error)))
    if size and shape and size != shape:
        turned = " (turned by a quarter)" if size == shape[::-1] else ""
        findings.append(("mask of another size", f"{name}: mask {_size(shape)}, photo {_size(size)}{turned}"))
    unknown = [number for number in present if number > len(dataset.classes)]
    if unknown:
        findings.append(("unknown class id", f"{name}: {', '.join(map(str, unknown))}"))
    if shape and not present:
        findings.append(("no class in mask", name))
    return Inspection(name, tuple(c for c in present if c <= len(dataset.classes)), tuple(findings))


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]} x {shape[0]}"
