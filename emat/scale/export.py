"""Export: a fitted segmenter, or a head alone, as one ONNX file that runs without emat and without PyTorch."""

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from emat import __version__
from emat.backbone import Backbone, ViT
from emat.errors import EmatError, needs_extra
from emat.images import Pixels, resize_photo
from emat.images.photos import has_channels
from emat.inference.segmenter import Segmenter
from emat.outputs import check_output, whole_file
from emat.scale.graph import HeadGraph, SegmenterGraph, backbone_of, check_method

OPSET = 18
TOLERANCE = 1e-4  # how far an exported graph may be from `predict`
SCORE_TOLERANCE = 1e-2  # of scores, which change by a pixel's share of a mask if the pixel falls to the other side
BATCH = "batch"
DEFAULT_SIZE = (400, 400)  # height and width of photos: the size that the learner works at
RULE = (
    "label = the class of the highest map at a pixel among classes whose score >= presence_threshold, if that map >= "
    "mask_threshold; otherwise background"
)


@dataclass(frozen=True)
class ExportedFile:
    """What was written."""

    path: Path
    bytes: int
    difference: float  # the largest one between the graph in onnxruntime and the segmenter, of maps
    inputs: dict[str, list[int | str]]
    outputs: dict[str, list[int | str]]


def export_segmenter(segmenter: Segmenter, path: Path, size: tuple[int, int] = DEFAULT_SIZE) -> ExportedFile:
    """Write a fitted segmenter as an ONNX graph, and check that it gives what the segmenter gives.

    The graph takes `photo` (batch, H, W, 3) of bytes and gives `scores` (batch, N) and `maps` (batch, N, h, w).
    Examples and learner are in it. Its metadata hold the names of the classes, the thresholds and what post-processing
    (`emat.inference.postprocessing`) would do with the maps: refinement and small objects are not in the graph.

    Args:
        segmenter: What to export; it stays as it is.
        path: The file, such as "pets.onnx".
        size: Height and width of the photos that the graph takes.

    Raises:
        EmatError: If a part cannot be exported, packages are missing, the file cannot be written, or the graph's
            maps differ by more than 1e-4 or scores by more than 0.01.
    """
    _packages()
    check_output(path)
    if min(size) < 1:
        raise EmatError(
            "bad-number", f"the photo size is {size[1]} x {size[0]}; both sides must be at least 1 pixel, as in 400x300"
        )
    if segmenter.device.type != "cpu":
        raise EmatError("unknown-device", "a segmenter is exported on the CPU; load it with device='cpu'")
    if any(example.working is not None and has_channels(example.working.photo) for example in segmenter.examples_):
        raise EmatError(
            "cannot-export",
            "this segmenter learnt from more than three channels; fit it with three, as in --channels 0,1,2",
        )
    graph = SegmenterGraph(segmenter, size).eval()
    photos = _samples(segmenter, size)
    metadata = {
        "classes": json.dumps(list(segmenter.classes_)),
        "presence_threshold": repr(segmenter.thresholds.presence),
        "mask_threshold": repr(segmenter.thresholds.mask),
        "rule": RULE,
        "not_in_graph": json.dumps(_not_in_graph(segmenter)),
        "photo_size": json.dumps(list(size)),
        **_origin(segmenter),
    }

    def check(unfinished: Path) -> float:
        scores, maps = _run(unfinished, {"photo": np.stack(photos)})
        expected = [segmenter.predict_unrefined(photo) for photo in photos]
        true_scores = np.array([list(one.scores.values()) for one in expected])
        true_maps = np.array([list(one.maps.values()) for one in expected])
        of_scores, of_maps = float(np.abs(scores - true_scores).max()), float(np.abs(maps - true_maps).max())
        return max(of_maps, of_scores if of_scores > SCORE_TOLERANCE else 0.0)

    with _fixed_positions(backbone_of(segmenter.method)):
        inputs = {"photo": torch.from_numpy(np.stack(photos))}
        return _write(graph, inputs, ("scores", "maps"), metadata, path, check)


def export_head(segmenter: Segmenter, path: Path) -> ExportedFile:
    """Write the head of a segmenter, fitted or not, as an ONNX graph from tokens to logits.

    The graph takes tokens `query` and `support` (batch, C, 1 + T, d) of its backbone and `mask` (batch, S, S), which is
    above 0 where the support shows the class. It gives `masks` (batch, 2, 2h, 2w) and, if the method tells presence,
    `presence` (batch, 2): logits of background and foreground, of absent and present.

    Raises:
        EmatError: As `export_segmenter`.
    """
    _packages()
    check_output(path)
    check_method(segmenter.method)
    graph = HeadGraph(segmenter.method).eval()
    network, backbone = graph.network, backbone_of(segmenter.method)
    side = segmenter.method.preparation.image_size
    generator = torch.Generator().manual_seed(0)
    count = 1 + graph.grid[0] * graph.grid[1]
    query, support = (torch.randn(2, network.channels, count, backbone.width, generator=generator) for _ in range(2))
    mask = torch.zeros(2, side, side)
    mask[0, : side // 2, : side // 3] = 1
    mask[1, side // 2 :] = 1
    inputs = {"query": query, "support": support, "mask": mask}
    names = ("masks", "presence") if network.form.class_token else ("masks",)

    def check(unfinished: Path) -> float:
        found = _run(unfinished, {name: value.numpy() for name, value in inputs.items()})
        with torch.inference_mode():
            out = network(query, support, mask, query_grid=graph.grid, support_grid=graph.grid)
        expected = [out.masks] if out.presence is None else [out.masks, out.presence]
        return max(float(np.abs(one - other.numpy()).max()) for one, other in zip(found, expected, strict=True))

    return _write(graph, inputs, names, _origin(segmenter), path, check)


def _origin(segmenter: Segmenter) -> dict[str, str]:
    method = segmenter.method
    preparation, spec = method.preparation, backbone_of(method).spec
    return {
        "emat": __version__,
        "method": method.name,
        "backbone": "" if spec is None else spec.name,
        "image_size": str(preparation.image_size),
        "mean": json.dumps(list(preparation.mean)),
        "std": json.dumps(list(preparation.std)),
    }


def _not_in_graph(segmenter: Segmenter) -> dict[str, Any]:
    """What post-processing does with the maps afterwards, which a graph cannot hold."""
    return {
        name: {"refine": rule.refine, "smallest_share_of_photo": rule.smallest}
        for name, rule in segmenter.rules_.items()
    }


def _samples(segmenter: Segmenter, size: tuple[int, int]) -> list[Pixels]:
    """Two photos to check the graph with: an example's small picture if there is one, and noise."""
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    pictures = [example.thumbnail.photo for example in segmenter.examples_ if example.thumbnail is not None]
    return [resize_photo(pictures[0], size) if pictures else noise[::-1].copy(), noise]


def _write(
    graph: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: tuple[str, ...],
    metadata: Mapping[str, str],
    path: Path,
    check: Any,
) -> ExportedFile:
    import onnx

    with torch.no_grad():
        graph(*inputs.values())  # finds constants, such as resized position embeddings, outside of the graph
        with _quiet():
            program = torch.onnx.export(
                graph,
                tuple(inputs.values()),
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_shapes=tuple({0: torch.export.Dim(BATCH, min=1)} for _ in inputs),
                opset_version=OPSET,
                dynamo=True,
                optimize=True,
                verbose=False,
            )
    assert program is not None
    model = program.model_proto
    if any(shape[0] != BATCH for shape in _shapes(model.graph.input).values()):
        raise EmatError(
            "cannot-export",
            "this segmenter cannot be exported for a free number of photos; its backbone fixes the number",
        )
    onnx.helper.set_model_props(model, dict(metadata))
    model.producer_name, model.producer_version = "emat", __version__
    with whole_file(path) as unfinished:
        onnx.save(model, str(unfinished))
        difference = check(unfinished)
        if not difference <= TOLERANCE:
            raise EmatError(
                "export-differs",
                f"the exported graph differs from the segmenter by {difference:.1e}, more than {TOLERANCE}; it was not "
                "kept. Please report this with the versions that `emat doctor` shows",
            )
        bytes_ = unfinished.stat().st_size
    return ExportedFile(path, bytes_, difference, _shapes(model.graph.input), _shapes(model.graph.output))


def _run(path: Path, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float32]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found: list[NDArray[np.float32]] = session.run(None, dict(inputs))
    return found


def _shapes(values: Any) -> dict[str, list[int | str]]:
    return {
        value.name: [each.dim_param or each.dim_value for each in value.type.tensor_type.shape.dim] for value in values
    }


def _packages() -> None:
    with needs_extra("export", "export"):
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401


@contextmanager
def _fixed_positions(backbone: Backbone) -> Iterator[None]:
    """Inside the block, a ViT's position embeddings are resized outside of the graph, where bicubic means the same."""
    if not isinstance(backbone, ViT):
        yield
        return
    known: dict[tuple[int, int], Tensor] = {}
    resize = backbone._positions

    def positions(grid: tuple[int, int], embeddings: Tensor) -> Tensor:
        if grid not in known:  # found in the run before the export
            known[grid] = resize(grid, embeddings).detach().clone()
        return known[grid]

    backbone.__dict__["_positions"] = positions
    try:
        yield
    finally:
        del backbone.__dict__["_positions"]


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter reports its progress and every optional step that it skipped; nobody can act on that."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
