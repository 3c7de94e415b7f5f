"""One answer everywhere: the same fitted file and the same photo give the same mask and the same scores by every way.

Each way of asking answers twelve photos, of which one is larger than the studio's page, and is compared with
`Segmenter.load(file).predict(photo)` to the last pixel. A way that gets a step of its own fails here. What an ONNX
graph holds, and what its metadata say of the rest, is compared in `tests/scale/test_export.py`; `emat eval --as-fitted`
in `tests/evaluation/test_evaluator.py`.
"""

import csv
import io
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from emat import Example, Segmenter
from emat.backbone.tiny_vit import TinyViT
from emat.cli import main
from emat.datasets.layouts import open_dataset
from emat.formats.run_lengths import mask_of_counts, unpack
from emat.images import Pixels, read_mask
from emat.inference.prediction import Prediction
from emat.methods.trained_head import save_head
from emat.model import build
from emat.pictures.overlay import draw_overlay, save_jpeg
from emat.refine.mobilesam import MobileSAM
from emat.studio.examples import add_photo
from emat.studio.export import export
from emat.studio.search import Search
from emat.studio.session import new_session
from emat.weights import WeightsSpec, load_weights
from tests.inference.conftest import tiny_head
from tests.integrations.test_label_studio import BRUSH_CONFIG, data_address, predict_request
from tests.scale.conftest import photo_of

__all__ = ["tiny_head"]

LARGE = (90, 2100)  # wider than the studio's page
Labels = dict[str, NDArray[np.uint8]]


@dataclass(frozen=True)
class Fitted:
    """A fitted file, its photos by name, and what the Python interface answers."""

    file: Path
    photos: Mapping[str, Pixels]

    @property
    def answers(self) -> dict[str, Prediction]:
        segmenter = Segmenter.load(self.file, device="cpu")
        return {name: segmenter.predict(photo) for name, photo in self.photos.items()}


def random_mobilesam(spec: WeightsSpec, file: Path | None = None) -> Mapping[str, torch.Tensor]:
    """Weights of the store, but MobileSAM's encoder has random ones."""
    if spec.name != "mobilesam":
        return load_weights(spec, file)
    torch.manual_seed(0)
    return TinyViT().state_dict()


@pytest.fixture(scope="session")
def stack_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head like the default one where MobileSAM's weights are, with random weights."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("heads") / "stack.safetensors"
    metadata = {"method": "emat-prior", "backbone": "efficientnet-lite2+mobilesam", "image_size": "64"}
    save_head(path, build("emat", channels=59).state_dict(), metadata)
    return path


@pytest.fixture(params=["no-weights", "tiles", "mobilesam", "stack"])
def fitted(
    request: pytest.FixtureRequest, tiny_head: Path, stack_head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Fitted:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("emat.backbone.registry.load_weights", random_mobilesam)
    with_sam = request.param == "mobilesam"
    if with_sam:
        torch.manual_seed(0)
        monkeypatch.setattr("emat.refine.mobilesam._loaded", [MobileSAM().eval().requires_grad_(False)])
    segmenter = Segmenter.load(
        stack_head if request.param == "stack" else tiny_head,
        device="cpu",
        tiles=2 if request.param == "tiles" else "fitted",
        refine="mobilesam" if with_sam else "auto",
    )
    corners = [(6 + (7 * n) % 30, 4 + n % 20) for n in range(2)]
    examples = [Example(photo_of(n), {"square": (x, y, x + 22, y + 20)}) for n, (x, y) in enumerate(corners)]
    examples.append(Example(photo_of(2), {"corner": (0, 0, 9, 9)}))
    segmenter.fit(examples).save(tmp_path / "shapes.emat")
    slow = request.param in ("mobilesam", "stack")  # MobileSAM takes a second for a photo
    photos = {f"{n:02}.png": photo_of(n) for n in (range(3, 5) if slow else range(3, 14))}
    return Fitted(tmp_path / "shapes.emat", photos if slow else photos | {"large.png": photo_of(14, LARGE)})


def assert_same(labels: Labels, expected: Mapping[str, Prediction]) -> None:
    assert labels.keys() == expected.keys()
    for name, prediction in expected.items():
        assert np.array_equal(labels[name], prediction.label_map), name


def by_class(photo: Pixels, classes: tuple[str, ...], masks: Mapping[str, NDArray[np.bool_]]) -> NDArray[np.uint8]:
    labels = np.zeros(photo.shape[:2], np.uint8)
    for name, mask in masks.items():
        labels[mask] = 1 + classes.index(name)
    return labels


def test_all_ways_agree(fitted: Fitted, tmp_path: Path) -> None:
    expected = fitted.answers
    assert any(prediction.present for prediction in expected.values()), "there is something to agree on"
    ways: list[Callable[[Fitted, Path], tuple[Labels, dict[str, dict[str, float]]]]] = [
        command_line,
        measurements,
        server,
        label_studio,
        studio,
    ]
    for way in ways:
        labels, scores = way(fitted, tmp_path / way.__name__)
        assert_same(labels, expected)
        for name, found in scores.items():
            assert found == pytest.approx(expected[name].scores, abs=6e-5), (way.__name__, name)


def command_line(fitted: Fitted, folder: Path) -> tuple[Labels, dict[str, dict[str, float]]]:
    """Masks as PNG, after COCO and overlays of the same run were compared with them."""
    run("predict", fitted, folder, "--format", "png,coco,overlay")
    out = folder / "out"
    with (out / "scores.csv").open() as file:
        rows = {row["photo"]: row for row in csv.DictReader(file)}
    scores = {name: {c: float(row[c]) for c in ("square", "corner")} for name, row in rows.items()}
    labels = {name: read_mask(out / "masks" / name) for name in fitted.photos}
    coco = open_dataset(out / "annotations.json")
    for name, photo in fitted.photos.items():
        assert np.array_equal(coco.mask(name), labels[name]), name
        drawn = draw_overlay(photo, labels[name], {1: "square", 2: "corner"})
        save_jpeg(drawn, folder / "expected.jpg")
        assert (out / name).with_suffix(".jpg").read_bytes() == (folder / "expected.jpg").read_bytes()
    return labels, scores


def measurements(fitted: Fitted, folder: Path) -> tuple[Labels, dict[str, dict[str, float]]]:
    """Masks of `emat measure`, after the areas in its table were compared with them."""
    pytest.importorskip("skimage", reason="measurements need the extra `measure`")
    run("measure", fitted, folder, "--format", "csv,png")
    labels = {name: read_mask(folder / "out" / "masks" / name) for name in fitted.photos}
    with (folder / "out" / "photos.csv").open() as file:
        for row in csv.DictReader(file):
            number = 1 + ("square", "corner").index(row["class"])
            assert int(row["area_px"]) == int((labels[row["photo"]] == number).sum())
    return labels, {}


def run(verb: str, fitted: Fitted, folder: Path, *options: str) -> None:
    (folder / "photos").mkdir(parents=True)
    for name, photo in fitted.photos.items():
        Image.fromarray(photo).save(folder / "photos" / name)
    with pytest.raises(SystemExit) as ended:
        main([verb, str(fitted.file), str(folder / "photos"), "-o", str(folder / "out"), "--device", "cpu", *options])
    assert ended.value.code == 0


def server(fitted: Fitted, folder: Path) -> tuple[Labels, dict[str, dict[str, float]]]:
    pytest.importorskip("fastapi", reason="the server needs the extra `serve`")
    from fastapi.testclient import TestClient

    from emat.scale.serve import build_app

    labels, scores = {}, {}
    loaded = Segmenter.load(fitted.file, device="cpu")
    with TestClient(build_app(loaded), base_url="http://127.0.0.1:8000") as client:
        for name, photo in fitted.photos.items():
            data = io.BytesIO()
            Image.fromarray(photo).save(data, "PNG")
            answer = client.post("/predict", content=data.getvalue(), headers={"content-type": "image/png"}).json()
            size = (answer["height"], answer["width"])
            masks = {c["name"]: mask_of_counts(unpack(c["segmentation"]["counts"]), size) for c in answer["classes"]}
            labels[name] = by_class(photo, loaded.classes_, masks)
            scores[name] = {c["name"]: c["score"] for c in answer["classes"]}
    return labels, scores


def label_studio(fitted: Fitted, folder: Path) -> tuple[Labels, dict[str, dict[str, float]]]:
    pytest.importorskip("fastapi", reason="the server needs the extra `serve`")
    from fastapi.testclient import TestClient

    from emat.integrations.label_studio import masks_of
    from emat.scale.requests import ServeOptions
    from emat.scale.serve import build_app

    labels: Labels = {}
    loaded = Segmenter.load(fitted.file, device="cpu")
    app = build_app(loaded, ServeOptions(label_studio=True))
    with TestClient(app, base_url="http://127.0.0.1:9090") as client:
        for name, photo in fitted.photos.items():
            answer = client.post("/predict", json=predict_request(data_address(photo), BRUSH_CONFIG)).json()
            masks = masks_of(answer["results"][0]["result"])
            labels[name] = by_class(photo, loaded.classes_, masks)
    return labels, {}


def studio(fitted: Fitted, folder: Path) -> tuple[Labels, dict[str, dict[str, float]]]:
    session = new_session(Segmenter.load(fitted.file, device="cpu"), folder)
    for name, photo in fitted.photos.items():
        data = io.BytesIO()
        Image.fromarray(photo).save(data, "PNG")
        add_photo(session, data.getvalue(), name)
    search = Search(session)
    search.start()
    search.wait()
    with zipfile.ZipFile(export(session, ["png", "scores"], folder)) as archive:
        labels = {name: read_mask(archive.read(f"masks/{name}")) for name in fitted.photos}
        rows = {row["photo"]: row for row in csv.DictReader(io.StringIO(archive.read("scores.csv").decode()))}
    return labels, {name: {c: float(row[c]) for c in ("square", "corner")} for name, row in rows.items()}


def test_cvat_agrees(fitted: Fitted) -> None:
    pytest.importorskip("cvat_sdk", reason="CVAT needs the extra `cvat`, which is not part of `all`")
    from cvat_sdk.masks import decode_mask

    from emat.integrations.cvat import create
    from tests.integrations.test_cvat import context

    function = create(str(fitted.file), device="cpu")
    for name, prediction in fitted.answers.items():
        photo = fitted.photos[name]
        shapes = function.detect(context(), Image.fromarray(photo))
        height, width = photo.shape[:2]
        masks = {
            function.spec.labels[shape.label_id].name: decode_mask(shape.points, image_width=width, image_height=height)
            for shape in shapes
        }
        assert np.array_equal(by_class(photo, prediction.classes, masks), prediction.label_map)


def test_a_widget_of_napari_agrees(tiny_head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from emat.integrations.napari import find_labels

    monkeypatch.setenv("EMAT_HOME", str(tmp_path))
    painted = np.zeros(photo_of(0).shape[:2], np.int32)
    painted[4:24, 6:28] = 7
    shown = Example(photo_of(0), {"7": painted == 7})
    expected = Segmenter.load(tiny_head, device="cpu").fit([shown]).predict(photo_of(3)).label_map
    labels = find_labels(photo_of(0), painted, photo_of(3), model=str(tiny_head))
    assert np.array_equal(labels, np.where(expected > 0, 7, 0))


def test_a_model_of_fiftyone_agrees(fitted: Fitted) -> None:
    pytest.importorskip("fiftyone", reason="FiftyOne needs the extra `fiftyone`, which is not part of `all`")
    from emat.integrations.fiftyone import model_of

    model = model_of(Segmenter.load(fitted.file, device="cpu"))
    assert_same({name: model.predict(photo).mask for name, photo in fitted.photos.items()}, fitted.answers)


@pytest.mark.slow
@pytest.mark.parametrize("fitted", ["no-weights", "tiles", "mobilesam"], indirect=True)  # its processes load weights
def test_ray_agrees(fitted: Fitted, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="bulk prediction needs the extra `ray`, which is not part of `all`")
    from emat.scale.ray_predict import BulkOptions, RayOptions, predict_in_bulk

    for name, photo in fitted.photos.items():
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.fromarray(photo).save(tmp_path / "photos" / name)
    out = tmp_path / "out"
    predict_in_bulk(fitted.file, [str(tmp_path / "photos")], str(out), RayOptions(), BulkOptions(formats=("png",)))
    assert_same({name: read_mask(out / "masks" / name) for name in fitted.photos}, fitted.answers)


def test_a_loaded_file_never_decides_again(fitted: Fitted, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Segmenter.load(fitted.file, device="cpu")

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("predict must not decide anything")

    for name in ("decide_refinements", "decide_tiles", "decide_smallest"):
        monkeypatch.setattr(f"emat.inference.segmenter.{name}", refused)
    monkeypatch.setattr(Segmenter, "_fit_to", refused)
    monkeypatch.setattr(type(loaded.method), "encode_example", refused)  # of tiles too, which the file holds
    loaded.predict(next(iter(fitted.photos.values())))
