"""Time of one photo by the segmenter, by onnxruntime and by OpenVINO, as processor time, and how far they differ.

python benchmarks/export.py pets.emat pets.onnx
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from emat import Segmenter
from emat.images import resize_photo
from emat.pictures.demo import demo_photos


def seconds(call: Callable[[], Any], repeats: int) -> float:
    call()
    began = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - began) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("segmenter", type=Path)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    segmenter = Segmenter.load(asked.segmenter, device="cpu")
    session = onnxruntime.InferenceSession(str(asked.graph), providers=["CPUExecutionProvider"])
    height, width = json.loads(session.get_modelmeta().custom_metadata_map["photo_size"])
    photo = resize_photo(np.array(next(iter(demo_photos().examples)).read().photo), (height, width))
    expected = np.stack(list(segmenter.predict(photo).maps.values()))
    inputs = {"photo": photo[None]}
    print(f"{asked.graph}: {asked.graph.stat().st_size / 1e6:.1f} MB, photos of {width} x {height}")
    print(f"predict       {seconds(lambda: segmenter.predict(photo), asked.repeats):.3f} s of processor time")
    found = session.run(None, inputs)[1][0]
    taken = seconds(lambda: session.run(None, inputs), asked.repeats)
    print(f"onnxruntime   {taken:.3f} s, maps within {np.abs(found - expected).max():.1e}")
    try:
        import openvino
    except ImportError:
        print("openvino      not installed")
        return
    for precision, hint in (("its default", {}), ("float32", {"INFERENCE_PRECISION_HINT": "f32"})):
        compiled = openvino.Core().compile_model(str(asked.graph), "CPU", {"INFERENCE_NUM_THREADS": 1, **hint})
        found = compiled([photo[None]])[1][0]
        taken = seconds(lambda: compiled([photo[None]]), asked.repeats)  # noqa: B023 - called at once
        print(f"openvino      {taken:.3f} s in {precision} precision, maps within {np.abs(found - expected).max():.1e}")


if __name__ == "__main__":
    main()
