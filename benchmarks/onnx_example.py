"""Run an exported segmenter with onnxruntime, NumPy and Pillow alone: neither emat nor PyTorch is needed.

python onnx_example.py pets.onnx photo.jpg labels.png
"""

import json
import sys
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def main(model: str, photo: str, out: str) -> None:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    facts: dict[str, Any] = session.get_modelmeta().custom_metadata_map
    classes = json.loads(facts["classes"])
    height, width = json.loads(facts["photo_size"])

    image = ImageOps.exif_transpose(Image.open(photo)).convert("RGB")
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    scores, maps = session.run(None, {"photo": pixels[None]})  # (1, N) and (1, N, h, w)

    likely = scores[0] >= float(facts["presence_threshold"])
    shown = np.where(likely[:, None, None], maps[0], 0.0)
    labels = np.where(shown.max(axis=0) >= float(facts["mask_threshold"]), 1 + shown.argmax(axis=0), 0)
    for number, name in enumerate(classes, start=1):
        print(f"{name}: score {scores[0, number - 1]:.2f}, {(labels == number).mean():.1%} of the photo")
    Image.fromarray(labels.astype(np.uint8)).resize(image.size, Image.Resampling.NEAREST).save(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
