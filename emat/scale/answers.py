"""A prediction as plain data: what the HTTP server answers and what bulk prediction writes, class by class."""

import io
from dataclasses import asdict, dataclass
from typing import Any

from PIL import Image

from emat.formats.run_lengths import counts_of_mask, pack
from emat.images import VOC_PALETTE
from emat.inference.prediction import Prediction


@dataclass(frozen=True)
class ClassAnswer:
    """What was found of one class in one photo."""

    name: str
    score: float
    present: bool
    area: int  # pixels
    size: tuple[int, int]  # height and width of the photo
    counts: str  # COCO's compressed run lengths of the mask

    @property
    def segmentation(self) -> dict[str, Any]:
        """The mask as COCO writes it."""
        return {"size": list(self.size), "counts": self.counts}


def class_answers(prediction: Prediction) -> list[ClassAnswer]:
    """Return what was found of every class, in the order of the classes."""
    size = (prediction.photo.shape[0], prediction.photo.shape[1])
    answers = []
    for name in prediction.classes:
        mask = prediction.mask(name)
        area = int(mask.sum())
        answers.append(ClassAnswer(name, prediction.scores[name], area > 0, area, size, pack(counts_of_mask(mask))))
    return answers


def as_json(prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as JSON holds it: the photo's size and, for each class, score, presence, area and mask."""
    height, width = prediction.photo.shape[:2]
    classes = []
    for answer in class_answers(prediction):
        entry = asdict(answer) | {"segmentation": answer.segmentation, "share": answer.area / (height * width)}
        del entry["size"], entry["counts"]
        classes.append(entry)
    return {"width": width, "height": height, "classes": classes}


def as_png(prediction: Prediction) -> bytes:
    """Return the label map as an indexed PNG: 0 is background, i the i-th class."""
    image = Image.fromarray(prediction.label_map, "P")
    image.putpalette(VOC_PALETTE.tobytes())
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()
