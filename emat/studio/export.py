"""Masks of all questions in one zip, in the format of an annotation tool."""

import tempfile
import zipfile
from pathlib import Path

from emat.errors import EmatError
from emat.formats.writing import open_writer
from emat.studio.answers import label_map
from emat.studio.session import Session

FORMATS = {
    "png": "Indexed PNG masks",
    "coco": "COCO JSON",
    "labelme": "LabelMe JSON",
    "yolo": "YOLO segmentation",
}


def export_masks(session: Session, format: str, folder: Path) -> Path:
    """Write `masks-<format>.zip` into `folder`: a mask at its own size for every photo that has an answer."""
    if format not in FORMATS:
        raise EmatError(f"there is no format {format!r}; choose one of {', '.join(FORMATS.values())}")
    with session.lock:
        names = [shown.name for shown in session.classes]
        answered = [q for q in session.questions.values() if q.prediction is not None or q.corrected is not None]
    if not answered:
        raise EmatError("there are no masks yet; drop photos in step 3 first")
    numbers = {name: number for number, name in enumerate(names, start=1)}
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"masks-{format}.zip"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        with open_writer(format, Path(scratch) / "out", names) as writer:
            for question in answered:
                writer.write(question.photo.name, label_map(session, question, numbers, question.photo.size))
        pack(Path(scratch) / "out", place)
    return place


def pack(folder: Path, place: Path) -> None:
    """All files below `folder` in a zip, under names relative to it."""
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.write(file, file.relative_to(folder).as_posix())
