"""Files that emat wrote before its modules were reorganised still load and give the same answers."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from emat import Segmenter
from emat.methods.base import Thresholds
from emat.methods.trained_head import Training, load_head, training_of

FILES = Path(__file__).parent / "earlier_files"
ANSWERS = json.loads((FILES / "answers.json").read_text())


def unpacked(name: str, folder: Path) -> Path:
    path = folder / name
    path.write_bytes(gzip.decompress((FILES / f"{name}.gz").read_bytes()))
    return path


def photo_by_rule(height: int, width: int) -> NDArray[np.uint8]:
    y, x = np.mgrid[:height, :width]
    return np.stack([(x * 5) % 256, (y * 7) % 256, ((x + y) * 3) % 256], -1).astype(np.uint8)


@pytest.mark.parametrize("method", ["emat-s", "prototype"])
def test_a_fitted_segmenter_loads_and_predicts_as_before(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path))  # without MobileSAM's weights, which would refine the masks
    segmenter = Segmenter.load(unpacked(f"{method}.emat", tmp_path), device="cpu")
    prediction, expected = segmenter.predict(photo_by_rule(45, 35)), ANSWERS[method]
    assert segmenter.method.name == method
    assert segmenter.classes_ == ("cat", "dog")
    assert [example.name for example in segmenter.examples_] == ["a.jpg", "b.jpg"]
    assert segmenter.thresholds == Thresholds(*expected["thresholds"])
    assert prediction.scores == pytest.approx(expected["scores"], abs=1e-3)
    means = {name: float(map_.mean()) for name, map_ in prediction.maps.items()}
    assert means == pytest.approx(expected["mean_probability"], abs=1e-3)
    pixels = {name: int(prediction.mask(name).sum()) for name in prediction.classes}
    assert pixels == pytest.approx(expected["pixels"], abs=3)


def test_an_imported_public_head_loads(tmp_path: Path) -> None:
    head = load_head(unpacked("imported.safetensors", tmp_path))
    assert (head.method, head.backbone, head.image_size) == ("emat-s", "efficientnet-lite2", 48)
    assert head.thresholds == Thresholds(presence=0.4, mask=0.3)
    assert head.build("cpu").name == "emat-s"


def test_a_head_of_a_training_run_loads_and_says_what_it_was_trained_on(tmp_path: Path) -> None:
    path = unpacked("trained.safetensors", tmp_path)
    assert load_head(path).build("cpu").preparation.image_size == 48
    assert training_of(path) == Training(fold=1, kept_apart=True, classes=frozenset({"bus", "pottedplant"}))
