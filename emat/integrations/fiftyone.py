"""A fitted segmenter as a model of FiftyOne.

dataset = fiftyone.Dataset.from_images_dir("photos")
dataset.default_mask_targets = dict(enumerate(segmenter.classes_, start=1))
dataset.apply_model(model_of(segmenter), label_field="emat")
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from emat.errors import needs_extra
from emat.inference.prediction import Prediction
from emat.inference.segmenter import Segmenter


def model_of(segmenter: Segmenter, *, instances: bool = False) -> Any:
    """Return a `fiftyone.core.models.Model` that predicts photos with a segmenter.

    Args:
        segmenter: A fitted segmenter.
        instances: Whether its answers are single objects (`fiftyone.Detections`) and not a label map
            (`fiftyone.Segmentation`).

    Raises:
        EmatError: If the package fiftyone is missing.
    """
    with needs_extra("FiftyOne", "fiftyone"):
        import fiftyone
        from fiftyone.core.models import Model

    class SegmenterModel(Model):  # type: ignore[misc]
        """Reads nothing itself: FiftyOne gives it the pixels of a photo."""

        media_type = "image"
        ragged_batches = True  # photos of several sizes
        transforms = None
        preprocess = False

        def predict(self, arg: NDArray[np.uint8]) -> Any:
            """Predict one photo (H, W, 3)."""
            prediction = segmenter.predict(arg)
            if not instances:
                return fiftyone.Segmentation(mask=prediction.label_map)
            return fiftyone.Detections(detections=[fiftyone.Detection(**fields) for fields in _detections(prediction)])

    return SegmenterModel()


def _detections(prediction: Prediction) -> list[dict[str, Any]]:
    """The single objects of all classes, with boxes as shares of the photo and masks of the boxes."""
    height, width = prediction.label_map.shape
    detections = []
    for name in prediction.classes:
        single = prediction.instances(name)
        for row in single.rows:
            left, top, wide, high = row.box
            mask = single.label_image[top : top + high, left : left + wide] == row.id
            box = [left / width, top / height, wide / width, high / height]
            detections.append({"label": name, "bounding_box": box, "mask": mask, "confidence": row.score})
    return detections
