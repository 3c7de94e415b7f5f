"""The masks that the page shows and exports: predictions at the thresholds of each class, or what the user painted."""

import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from emat.errors import EmatError
from emat.formats.drawing import LabelMap
from emat.formats.writing import open_writer
from emat.images import resize_map, resize_mask
from emat.methods.base import Thresholds
from emat.methods.label_map import make_label_map
from emat.refine.fringes import absorb_fringes
from emat.studio.session import Session, StudioQuery


def thresholds_of(session: Session, name: str) -> Thresholds:
    """Return the thresholds of class `name`: the segmenter's own, unless the user moved the slider."""
    usual = session.segmenter.thresholds
    moved = session.thresholds.get(name)
    return usual if moved is None else moved_thresholds(usual, moved)


def moved_thresholds(usual: Thresholds, mask: float) -> Thresholds:
    """Return both thresholds for a slider that sets the mask threshold; the presence threshold moves along with it.

    >>> moved_thresholds(Thresholds(0.5, 0.5), 0.3)
    Thresholds(presence=0.3, mask=0.3)
    """
    if mask <= usual.mask:
        presence = usual.presence * mask / usual.mask if usual.mask else 0.0
    else:
        presence = 1 - (1 - usual.presence) * (1 - mask) / (1 - usual.mask)
    return Thresholds(round(presence, 4), mask)


def is_present(session: Session, query: StudioQuery, name: str) -> bool:
    """Say whether class `name` counts as present in the photo of `query`."""
    if query.corrected is not None:
        return name in query.corrected
    if query.prediction is None or name not in query.prediction.scores:
        return False
    return query.prediction.scores[name] >= thresholds_of(session, name).presence


def label_map(session: Session, query: StudioQuery, numbers: Mapping[str, int], size: tuple[int, int]) -> LabelMap:
    """Return the label map of `query` at `size` (H, W): `numbers` gives the value of each class, 0 is the background.

    As in `Prediction`, a pixel belongs to the likeliest class that is present and whose probability reaches its
    threshold.
    """
    labels = np.zeros(size, np.uint8)
    if query.corrected is not None:
        for name, mask in query.corrected.items():
            if name in numbers:
                labels[resize_mask(mask.astype(np.uint8), size) > 0] = numbers[name]
        return labels
    if query.prediction is None:
        return labels
    all_maps = query.prediction.maps
    names = [name for name in all_maps if name in numbers and is_present(session, query, name)]
    if not names:
        return labels
    maps = (resize_map(all_maps[name], size) for name in names)
    own = [thresholds_of(session, name).mask for name in names]
    return absorb_fringes(make_label_map(maps, own, [numbers[name] for name in names]))


FORMATS = {
    "png": "Indexed PNG masks",
    "coco": "COCO JSON",
    "labelme": "LabelMe JSON",
    "yolo": "YOLO segmentation",
}


def export_masks(session: Session, format: str, folder: Path) -> Path:
    """Write `masks-<format>.zip` into `folder`, with the label map of every photo that has one, at the photo's size."""
    if format not in FORMATS:
        raise EmatError(f"there is no format {format!r}; choose one of {', '.join(FORMATS.values())}")
    with session.lock:
        names = [shown.name for shown in session.classes]
        predicted = [q for q in session.queries.values() if q.prediction is not None or q.corrected is not None]
    if not predicted:
        raise EmatError("there are no masks yet; drop photos in step 3 first")
    numbers = {name: number for number, name in enumerate(names, start=1)}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"masks-{format}.zip"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        with open_writer(format, Path(scratch) / "out", names) as writer:
            for query in predicted:
                writer.write(query.photo.name, label_map(session, query, numbers, query.photo.size))
        pack(Path(scratch) / "out", path)
    return path


def pack(folder: Path, path: Path) -> None:
    """Put all files below `folder` into a zip file, under names relative to `folder`."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(each for each in folder.rglob("*") if each.is_file()):
            archive.write(file, file.relative_to(folder).as_posix())
