"""YOLO segmentation: a text file for each photo, with the class number and the outline of one object on each line."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from emat.errors import EmatError
from emat.files import is_number, read_text, without_suffix
from emat.formats.class_names import VOID_NAME, number_classes, read_class_names, tidy_name, without_repeats
from emat.formats.drawing import Drawing, DrawnObject, LabelMap
from emat.formats.regions import outline
from emat.formats.writing import WriteOptions, Writer
from emat.images import Pixels
from emat.outputs import write_text

NUMBERS_OF_A_BOX = 4
FEWEST_NUMBERS = 6


def read_yolo(path: Path, photo: str, size: tuple[int, int], classes: Sequence[str]) -> Drawing:
    """Read the objects of one photo.

    Args:
        path: The text file. If it does not exist, there are no objects.
        photo: The name of the photo.
        size: Its height and width.
        classes: The class names; class number 0 is `classes[0]`.

    Raises:
        EmatError: The file cannot be read, or a line is not an outline.
    """
    height, width = size
    named = [name for name in classes if name != VOID_NAME]
    lines = read_text(path).splitlines() if path.exists() else []
    objects = [
        _object(line, f"{path}, line {number}", size, named)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    return Drawing(photo, height, width, tuple(objects))


def _object(line: str, where: str, size: tuple[int, int], classes: Sequence[str]) -> DrawnObject:
    try:
        first, *rest = line.split()
        number, fractions = int(first), [float(word) for word in rest]
    except ValueError:
        raise EmatError("bad-annotation", f"{where}: {line[:60]!r} is not a class number and fractions") from None
    if len(fractions) == NUMBERS_OF_A_BOX:
        raise EmatError("bad-outline", f"{where} is a box instead of an outline; export the labels for segmentation")
    if len(fractions) < FEWEST_NUMBERS or len(fractions) % 2:
        raise EmatError(
            "bad-outline", f"{where} has {len(fractions)} coordinates; an outline has at least three x y pairs"
        )
    if not all(-1 <= fraction <= 2 for fraction in fractions):
        raise EmatError(
            "bad-outline", f"{where} has coordinates beyond the photo; they are fractions from 0 to 1, not pixels"
        )
    if not 0 <= number < len(classes):
        raise EmatError("unknown-class", f"{where} has class {number}, but there are classes 0 to {len(classes) - 1}")
    scale = (size[1], size[0])  # x by the width, y by the height
    outline = [fraction * scale[i % 2] for i, fraction in enumerate(fractions)]
    return DrawnObject(classes[number], [outline])


class YoloWriter(Writer):
    """Writes `labels/<name>.txt` for the photo `images/<name>`, and `data.yaml`. Every region is a line.

    YOLO does not have void, so void pixels are written as background. Holes are joined to the outline by a cut, as
    `emat.formats.regions` explains.
    """

    format = "yolo"
    files = ("data.yaml",)

    def __init__(self, out: Path, classes: Sequence[str], options: WriteOptions) -> None:
        if options.shapes == "masks":
            raise EmatError("unknown-choice", "YOLO files can only have polygons; write coco or labelme for masks")
        super().__init__(out, classes, options)

    def result_path(self, name: str) -> str:
        """Return the path of the text file: `labels` replaces the last folder `images`, as in YOLO tools."""
        *folders, file = self.photo_path(name).split("/")
        folders[len(folders) - 1 - folders[::-1].index("images")] = "labels"
        return "/".join([*folders, f"{without_suffix(file)}.txt"])

    def _begin(self) -> None:
        names = [f"  {number}: {json.dumps(name, ensure_ascii=False)}" for name, number in self._named()]
        write_text(self.out / "data.yaml", "\n".join(["train: images", "val: images", "names:", *names]) + "\n")

    def _write(self, name: str, label_map: LabelMap, photo: Pixels | None, photo_file: Path | None) -> dict[str, Any]:
        number_of = dict(self._named())
        size = np.array([label_map.shape[1], label_map.shape[0]])
        lines = []
        for index, region in ((index, part) for index, regions in self._traced(label_map) for part in regions):
            fractions = outline(region, self.options.tolerance) / size
            words = (f"{fraction:.6f}".rstrip("0").rstrip(".") for fraction in fractions.ravel().tolist())
            lines.append(f"{number_of[self.classes[index - 1]]} {' '.join(words)}\n")
        write_text(self.out / self.result_path(name), "".join(lines))
        return {}

    def _named(self) -> list[tuple[str, int]]:
        """Return the class names with YOLO's numbers, which start at 0."""
        return [(name, i) for i, name in enumerate(name for name in self.classes if name != VOID_NAME)]


def read_yolo_names(path: Path) -> tuple[str, ...]:
    """Read the class names of a `data.yaml`, whose `names` is a list or mapping, or of a `classes.txt`.

    Raises:
        EmatError: The file cannot be read, has no class names, or does not name every class number once.
    """
    if path.suffix not in (".yaml", ".yml"):
        return read_class_names(path)
    text = read_text(path)
    try:
        # Nodes instead of values: a name such as `no` or `1e3` is a name, and a number that occurs twice is seen.
        names = _names_in(yaml.compose(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise EmatError("bad-syntax", f"{path} is not YAML ({reason}); correct it or export it again") from None
    except EmatError as error:
        raise EmatError(error.code, f"{path}: {error}") from None
    if not names:
        raise EmatError(
            "no-classes", f"{path} has no class list; it needs names: [cat, dog], or one name on each line below names:"
        )
    return number_classes(without_repeats(names, str(path)))


def _names_in(document: Any) -> list[str]:
    """Return the values of `names`: a sequence, or a mapping from the class number to the name."""
    if not isinstance(document, yaml.MappingNode):
        return []
    values = [value for key, value in document.value if key.value == "names"]
    if len(values) > 1:
        raise EmatError("given-twice", "names is there twice; remove one of them")
    if not values:
        return []
    if isinstance(values[0], yaml.SequenceNode):
        return [_text(item) for item in values[0].value]
    if not isinstance(values[0], yaml.MappingNode):
        raise EmatError("bad-annotation", "names must be a list of names or a mapping from numbers to names")
    numbered: dict[int, str] = {}
    for key, value in values[0].value:
        number = _text(key)
        if not is_number(number):
            raise EmatError("class-numbers", f"names has the key {number!r}, which is not a class number")
        if int(number) in numbered:
            raise EmatError(
                "given-twice", f"names has class {number} twice: {numbered[int(number)]!r} and {_text(value)!r}"
            )
        numbered[int(number)] = _text(value)
    if sorted(numbered) != list(range(len(numbered))):
        raise EmatError(
            "class-numbers", f"names has the class numbers {sorted(numbered)[:9]}; they must be 0, 1, 2 without gaps"
        )
    return [numbered[number] for number in range(len(numbered))]


def _text(node: Any) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise EmatError("bad-class-name", "names must hold plain text")
    return tidy_name(str(node.value))
