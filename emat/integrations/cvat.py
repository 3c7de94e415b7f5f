"""A fitted segmenter as an auto-annotation function of CVAT's SDK.

    cvat-cli --server-host http://localhost:8080 --auth USER task auto-annotate 123 \\
        --function-module emat.integrations.cvat -p segmenter=str:pets.emat

Labels are matched by name. Masks become CVAT's masks, or polygons if CVAT asks for those.
"""

from pathlib import Path
from typing import Any

from PIL import Image

from emat.errors import EmatError, needs_extra
from emat.formats.regions import outline, trace_regions
from emat.formats.writing import WriteOptions
from emat.inference.segmenter import Segmenter


class CvatFunction:
    """What CVAT calls: `spec` lists the classes, `detect` finds them in one frame.

    Args:
        segmenter: A fitted segmenter.

    Raises:
        EmatError: If the package `cvat-sdk` is missing.
    """

    def __init__(self, segmenter: Segmenter) -> None:
        with needs_extra("CVAT", "cvat"):
            import cvat_sdk.auto_annotation as auto_annotation
            import cvat_sdk.masks as masks
        self._make, self._masks = auto_annotation, masks
        self.segmenter = segmenter
        labels = [
            auto_annotation.label_spec(name, number, type="mask") for number, name in enumerate(segmenter.classes_)
        ]
        # With these types, CVAT says before the first frame if a label of the task can hold neither masks nor polygons.
        self.spec = auto_annotation.DetectionFunctionSpec(labels=labels)

    def detect(self, context: Any, image: Image.Image) -> list[Any]:
        """Return the shapes of the classes that are present in a frame.

        Args:
            context: CVAT's `DetectionFunctionContext`: the confidence that counts, and whether polygons are wanted.
            image: The frame.
        """
        prediction = self.segmenter.predict(image)
        shapes = []
        for number, name in enumerate(prediction.classes):
            enough = context.conf_threshold is None or prediction.scores[name] >= context.conf_threshold
            if name not in prediction.present or not enough:
                continue
            mask = prediction.mask(name)
            if not context.conv_mask_to_poly:
                shapes.append(self._make.mask(number, self._masks.encode_mask(mask)))
                continue
            for region in trace_regions(mask):
                shapes.append(self._make.polygon(number, outline(region, WriteOptions.tolerance).ravel().tolist()))
        return shapes


def create(segmenter: str, device: str = "auto") -> CvatFunction:
    """Load a fitted segmenter for CVAT; `cvat-cli` calls this with the parameters that it was given by -p.

    Args:
        segmenter: A file that `emat fit` wrote.
        device: "auto", "cpu", "cuda" or "mps".

    Raises:
        EmatError: If the file is missing or has no examples.
    """
    if not Path(segmenter).is_file():
        raise EmatError("no-such-file", f"{segmenter} does not exist; make it with `emat fit EXAMPLES -o {segmenter}`")
    loaded = Segmenter.load(segmenter, device=device)
    if not loaded.classes_:
        raise EmatError("not-fitted", f"{segmenter} is a head without examples; teach it some with `emat fit`")
    return CvatFunction(loaded)
