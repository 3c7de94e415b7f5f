"""Segmenters as ONNX graphs: the same answers as `predict`, in batches, without emat."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from emat import Example, Segmenter
from emat.backbone.registry import find_backbone
from emat.backbone.vit import ViT
from emat.methods.base import Thresholds
from emat.methods.registry import build_method
from emat.model import Shape
from emat.pixel_learner.learner import PixelLearner
from emat.scale.export import TOLERANCE, HeadGraph, SegmenterGraph
from tests.cli.command import run
from tests.raises import raises_code
from tests.scale.conftest import photo_of

SQUARE = {"square": (6, 4, 28, 24)}
EXAMPLE_SCRIPT = Path(__file__).parents[2] / "benchmarks" / "onnx_example.py"


def tiny_dinov2(method: str, *, learns: bool = False) -> Segmenter:
    """A method with random weights on a DINOv2 of two blocks, fitted with two examples."""
    torch.manual_seed(0)
    make = partial(ViT, 24, 2, 2, patch=14, pos_grid=5)
    spec = replace(find_backbone("dinov2-s"), make=make, channels=4, width=12, image_size=56)
    backbone = spec.build()
    for value in backbone.state_dict().values():
        value.normal_(0, 0.3)
    shape = None if method == "prototype" else Shape(support_grid=12)
    built = build_method(method, backbone, image_size=56, shape=shape).requires_grad_(False)
    learner = PixelLearner.of(built, Thresholds()) if learns else None
    return Segmenter(built, Thresholds(), learner=learner).fit([Example(photo_of(n), SQUARE) for n in (0, 1)])


def tiny_stack(method: str, *, learns: bool = False) -> Segmenter:
    """The backbone of the default head where MobileSAM's weights are, with random weights, fitted with one example."""
    torch.manual_seed(0)
    backbone = find_backbone("efficientnet-lite2+mobilesam").build()
    built = build_method(method, backbone, image_size=64).requires_grad_(False)
    learner = PixelLearner.of(built, Thresholds()) if learns else None
    return Segmenter(built, Thresholds(), learner=learner).fit([Example(photo_of(0), SQUARE)])


def assert_same_answers(graph: SegmenterGraph, segmenter: Segmenter) -> None:
    photos = [photo_of(number) for number in range(3, 6)]
    with torch.inference_mode():
        scores, maps = graph(torch.from_numpy(np.stack(photos)))
    for index, photo in enumerate(photos):
        expected = segmenter.predict_unrefined(photo)
        np.testing.assert_allclose(scores[index], list(expected.scores.values()), atol=1e-5)
        np.testing.assert_allclose(maps[index], np.stack(list(expected.maps.values())), atol=1e-4)


@pytest.mark.parametrize(
    ("method", "learns"),
    [("emat", True), ("emat", False), ("emat-prior", True), ("emat-s", False), ("cst", False), ("prototype", True)],
)
def test_the_graph_of_every_method_it_takes_answers_as_predict(method: str, learns: bool) -> None:
    segmenter = tiny_dinov2(method, learns=learns)
    assert_same_answers(SegmenterGraph(segmenter, (48, 64)), segmenter)


@pytest.mark.parametrize(("method", "learns"), [("emat-prior", True), ("emat-prior", False), ("prototype", False)])
def test_the_graph_of_a_stack_of_backbones_answers_as_predict(method: str, learns: bool) -> None:
    segmenter = tiny_stack(method, learns=learns)
    assert_same_answers(SegmenterGraph(segmenter, (48, 64)), segmenter)


def test_the_graph_of_a_stack_of_backbones_takes_any_number_of_photos() -> None:
    graph = SegmenterGraph(tiny_stack("prototype"), (48, 64)).eval()
    batch = {0: torch.export.Dim("batch", min=1)}
    # The first step of an export, which fails where the number of photos is fixed. The whole takes a minute.
    program = torch.export.export(graph, (torch.zeros(2, 48, 64, 3, dtype=torch.uint8),), dynamic_shapes=(batch,))
    assert program.range_constraints


def test_the_graph_of_a_fitted_file_with_its_learner_answers_as_predict(fitted: Segmenter) -> None:
    assert fitted.learnt_ is not None
    assert_same_answers(SegmenterGraph(fitted, (48, 64)), fitted)


@pytest.mark.parametrize("learns", [False, True])
def test_the_graph_scores_classes_that_compete_for_pixels_as_predict(
    learns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    segmenter = tiny_dinov2("emat-prior", learns=learns)
    segmenter.fit([Example(photo_of(n), {"square": (6, 4, 28, 24), "corner": (0, 0, 20, 12)}) for n in (0, 1)])
    alone = segmenter.predict(photo_of(3)).scores
    monkeypatch.setattr("emat.methods.prior.LIKELY", 0.001)  # so low that both classes claim every pixel
    # Classes that competed in cross-validation have presence rules of their own.
    assert (segmenter.predict(photo_of(3)).scores == alone) is learns
    assert_same_answers(SegmenterGraph(segmenter, (48, 64)), segmenter)


def test_an_example_without_a_kept_token_gives_no_foreground(fitted: Segmenter) -> None:
    segmenter = tiny_dinov2("emat-s")
    mask = np.zeros((48, 64), bool)
    mask[20, 31] = True  # between the points at which the grid looks
    segmenter.fit([Example(photo_of(0), {"dot": mask})])
    assert_same_answers(SegmenterGraph(segmenter, (48, 64)), segmenter)


@pytest.mark.parametrize("method", ["emat", "emat-s", "cst"])
def test_the_head_alone_answers_as_the_network(method: str) -> None:
    graph = HeadGraph(tiny_dinov2(method).method)
    query, support = torch.randn(3, 4, 17, 12), torch.randn(3, 4, 17, 12)
    masks = torch.zeros(3, 56, 56)
    masks[0, :20, :30] = 1
    masks[1] = 1  # and the third is empty
    with torch.inference_mode():
        found = graph(query, support, masks)
        out = graph.network(query, support, masks)
    torch.testing.assert_close(found[0], out.masks, atol=1e-4, rtol=1e-4)
    if out.presence is not None:
        torch.testing.assert_close(found[1], out.presence, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "code"),
    [({"tiles": 2}, "cannot-export")],
)
def test_what_cannot_be_in_a_graph_is_refused_with_the_reason(
    fitted: Segmenter, change: dict[str, Any], code: str
) -> None:
    for name, value in change.items():
        setattr(fitted, name, value)
    with raises_code(code):
        SegmenterGraph(fitted, (48, 64))


def test_a_method_whose_steps_depend_on_values_is_refused() -> None:
    with raises_code("cannot-export", "panet"):
        SegmenterGraph(Segmenter(build_method("panet", find_backbone("resnet50").build())), (48, 64))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Segmenter, Path]:
    """A tiny DINOv2 with a learner, as a file."""
    pytest.importorskip("onnx", reason="export needs the extra `export`")
    pytest.importorskip("onnxruntime", reason="export needs the extra `export`")
    from emat.scale.export import export_segmenter

    segmenter = tiny_dinov2("emat", learns=True)
    path = tmp_path_factory.mktemp("export") / "tiny.onnx"
    written = export_segmenter(segmenter, path, (48, 64))
    assert written.difference < TOLERANCE
    assert written.inputs == {"photo": ["batch", 48, 64, 3]}
    return segmenter, path


def test_onnxruntime_answers_as_predict_in_any_batch(exported: tuple[Segmenter, Path]) -> None:
    import onnxruntime

    segmenter, path = exported
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for numbers in ([7], [8, 9, 10]):
        scores, maps = session.run(None, {"photo": np.stack([photo_of(number) for number in numbers])})
        for index, number in enumerate(numbers):
            expected = segmenter.predict_unrefined(photo_of(number))
            np.testing.assert_allclose(scores[index], list(expected.scores.values()), atol=1e-4)
            np.testing.assert_allclose(maps[index], np.stack(list(expected.maps.values())), atol=TOLERANCE)
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["classes"]) == ["square"]
    assert float(metadata["mask_threshold"]) == segmenter.thresholds.mask
    assert json.loads(metadata["not_in_graph"]) == {
        name: {"refine": rule.refine, "smallest_share_of_photo": rule.smallest, "lies_on": list(rule.lies_on)}
        for name, rule in segmenter.rules_.items()
    }


@pytest.mark.slow
def test_the_default_head_with_its_learner_is_written(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="export needs the extra `export`")
    pytest.importorskip("onnxruntime", reason="export needs the extra `export`")
    from emat.scale.export import export_segmenter

    # With the stack of backbones where MobileSAM's weights are.
    segmenter = Segmenter.load("default", device="cpu").fit([Example(photo_of(n), SQUARE) for n in (0, 1)])
    assert segmenter.learnt_ is not None
    written = export_segmenter(segmenter, tmp_path / "default.onnx", (48, 64))
    assert written.difference < 1e-4
    assert written.inputs == {"photo": ["batch", 48, 64, 3]}


def test_the_head_alone_is_written_for_any_batch(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="export needs the extra `export`")
    pytest.importorskip("onnxruntime", reason="export needs the extra `export`")
    from emat.scale.export import export_head

    written = export_head(tiny_dinov2("emat"), tmp_path / "head.onnx")
    assert written.difference < 1e-4
    assert written.inputs["query"] == ["batch", 4, 17, 12]
    assert set(written.outputs) == {"masks", "presence"}


def test_the_example_runs_it_without_torch_and_emat(exported: tuple[Segmenter, Path], tmp_path: Path) -> None:
    segmenter, path = exported
    Image.fromarray(photo_of(8)).save(tmp_path / "photo.png")
    banned = "import sys; sys.modules['torch'] = sys.modules['emat'] = None; import runpy; "
    code = f"{banned}runpy.run_path({str(EXAMPLE_SCRIPT)!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "photo.png"), str(tmp_path / "labels.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "square" in done.stdout
    labels = np.array(Image.open(tmp_path / "labels.png"))
    expected = segmenter.predict_unrefined(photo_of(8))
    drawn = (expected.probability("square") >= 0.5) & (expected.scores["square"] >= 0.5)
    assert (labels.astype(bool) == drawn).mean() > 0.999


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("default", "-o", "x.onnx"), "not-fitted"),
        (("FILE", "-o", "x.onnx", "--photo-size", "640"), "unclear-option"),
        (("default", "-o", "x.onnx", "--head-only", "--photo-size", "9x9"), "conflicting-options"),
    ],
)
def test_what_the_user_can_fix_is_one_sentence(words: tuple[str, ...], code: str, fitted_file: Path) -> None:
    assert run("export", *(fitted_file if word == "FILE" else word for word in words)) == code
    assert not Path("x.onnx").exists()
