"""Export: a fitted segmenter, or a head alone, as one ONNX file that runs without emat and without PyTorch.

What is exported is a module whose every step an ONNX graph can hold. `SegmenterGraph` goes the way of
`Segmenter.predict_unrefined` from the bytes of photos to scores and probability maps, by the same functions of
`emat.methods` and `emat.pixel_learner`. The examples and what was learnt from them are constants in it, and so is the
size of photos; the number of photos is free. Post-processing is not in the graph. `HeadGraph` goes from tokens to
logits. What cannot be put into a graph is refused with the reason. `PillowResize` does in a graph what `emat.images`
does with Pillow.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from emat import __version__
from emat.backbone import Backbone, ViT
from emat.backbone.tokens import Grid
from emat.errors import EmatError, needs_extra
from emat.images import Pixels, fitted_size, resize_photo
from emat.images.photos import has_channels
from emat.inference.segmenter import Segmenter
from emat.inference.tiles import MOST_DETAIL
from emat.methods import correlation, training_free
from emat.methods.base import Method
from emat.methods.correlation import CorrelationMethod, ShotEvidence
from emat.methods.prior import PriorMethod, judge_together, scores_by_masks, shifted, with_prior
from emat.methods.prototype import Prototype, unit_patches
from emat.model.encoding import support_mask
from emat.model.plain import PlainForm, plain_compare, plain_forward
from emat.outputs import check_output, whole_file
from emat.pixel_learner.features import pixel_maps, working_size

OPSET = 18
# How far the maps of an exported graph may be from those of `predict`. With MobileSAM's features, whose rounding the
# learner's weights enlarge, 1.3e-4 was seen; without them, 1e-5.
TOLERANCE = 1e-3
SCORE_TOLERANCE = 1e-2  # of scores, which change by a pixel's share of a mask if the pixel falls to the other side
BATCH = "batch"
DEFAULT_SIZE = (400, 400)  # height and width of photos: the size that the learner works at
RULE = (
    "label = the class of the highest map at a pixel among classes whose score >= presence_threshold, if that map >= "
    "mask_threshold; otherwise background. A class that lies on others (not_in_graph) does not compete with them: it "
    "covers them where its map >= mask_threshold"
)
PRECISION = 22  # bits behind the point of Pillow's coefficients
LOWER = 8  # of these bits; sums stay exact as long as a photo is at most 128 times as large as the result


class PillowResize(nn.Module):
    """Resizes photos (B, 3, H, W) of whole numbers from 0 to 255 to `target` (h, w), bit for bit as Pillow does.

    Pillow resizes bytes in two passes, first along the rows, then along the columns. Each pass sums whole numbers,
    which are its coefficients times 2 ** 22, and rounds to bytes. Here a coefficient is split into its upper bits and
    its lowest 8, so that all sums stay below 2 ** 24: products of float32 are then exact, in any runtime.

    Args:
        size: Height and width of the photos.
        target: Height and width of the result.
    """

    def __init__(self, size: tuple[int, int], target: tuple[int, int]) -> None:
        super().__init__()
        self.down = nn.Buffer(_split(size[0], target[0])) if size[0] != target[0] else None
        self.across = nn.Buffer(_split(size[1], target[1])) if size[1] != target[1] else None

    def forward(self, photo: Tensor) -> Tensor:
        """Return whole numbers (B, 3, h, w) as float32."""
        x = photo.float()
        if self.across is not None:
            x = _to_bytes(*(x @ self.across.T).chunk(2, dim=3))
        if self.down is not None:
            x = _to_bytes(*(self.down @ x).chunk(2, dim=2))
        return x


def bilinear_weights(length: int, target: int) -> NDArray[np.float64]:
    """Return the matrix (target, length) of an antialiased bilinear filter, each row adding up to 1."""
    scale = length / target
    reach = max(scale, 1.0)  # wider where it shrinks: that is the antialiasing
    weights = np.zeros((target, length))
    for index in range(target):
        centre = (index + 0.5) * scale
        first, last = max(0, int(centre - reach + 0.5)), min(length, int(centre + reach + 0.5))
        distance = np.abs((np.arange(first, last) - centre + 0.5) / reach)
        row = np.maximum(0.0, 1.0 - distance)
        weights[index, first:last] = row / row.sum()
    return weights


def _split(length: int, target: int) -> Tensor:
    """Pillow's coefficients as whole numbers (2 target, length): the upper bits of all, then the lower ones."""
    whole = np.floor(0.5 + bilinear_weights(length, target) * 2**PRECISION)
    upper = np.floor(whole / 2**LOWER)
    return torch.from_numpy(np.concatenate([upper, whole - upper * 2**LOWER]).astype(np.float32))


def _to_bytes(upper: Tensor, lower: Tensor) -> Tensor:
    """Round sums to bytes, half up. What is left of the lower bits after the carry cannot change the result."""
    total = upper + torch.floor(lower / 2**LOWER)
    bits = PRECISION - LOWER
    return torch.floor((total + 2 ** (bits - 1)) / 2**bits).clamp(0, 255)


class SegmenterGraph(nn.Module):
    """Photos (B, H, W, 3) of bytes to scores (B, N) and probability maps (B, N, h, w).

    Args:
        segmenter: A fitted segmenter, on the CPU.
        size: Height and width of the photos.

    Raises:
        EmatError: If a part of the segmenter cannot be put into a graph.
    """

    def __init__(self, segmenter: Segmenter, size: tuple[int, int]) -> None:
        super().__init__()
        check_method(segmenter.method)
        if segmenter.tiles_ is not None:
            raise EmatError(
                "cannot-export",
                "tiles are cut by the size of each photo and cannot be in a graph; export with --tiles none",
            )
        self.method, self.thresholds, self.learner = segmenter.method, segmenter.thresholds, segmenter.learner
        self.ways = [
            [example.encodings[name] for example in segmenter.examples_ if name in example.encodings]
            for name in segmenter.classes_
        ]
        self.learnt = segmenter.learnt_
        # Read here, because a graph cannot choose by the values of tensors.
        self.choices = [] if self.learnt is None else [self.learnt.choice(way) for way in range(len(self.ways))]
        self.rivals = segmenter.rivals_
        self.size, self.detail = size, fitted_size(size, MOST_DETAIL)
        preparation = self.method.preparation
        self.square = (preparation.image_size, preparation.image_size)
        self.to_square = PillowResize(size, self.square)
        self.to_working = PillowResize(size, working_size(size, segmenter.working_side))
        self.mean = nn.Buffer(torch.tensor(preparation.mean).view(3, 1, 1))
        self.std = nn.Buffer(torch.tensor(preparation.std).view(3, 1, 1))
        self.backbone = backbone_of(self.method)
        # A part of the learner and perhaps of no backbone; as a module of the graph, its weights are parameters.
        self.encoder = None if self.learner is None else self.learner.encoder

    def forward(self, photo: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores (B, N) and maps (B, N, h, w) of photos (B, H, W, 3)."""
        bytes_first = photo.permute(0, 3, 1, 2)
        answers = self._head_answers((self.to_square(bytes_first) / 255 - self.mean) / self.std)
        scored = all(score is not None for score, _ in answers) or self.learnt is not None
        probabilities = torch.stack([probability for _, probability in answers], dim=1)
        if self.learnt is not None and self.learner is not None:
            maps = pixel_maps(self.to_working(bytes_first) / 255, self.learner.backbone, self.learner.encoder)
            logits = self.learnt.classifier.logits(maps)
            logits = F.interpolate(logits, self.detail, mode="bilinear", align_corners=False)
            scores, probabilities = self.learner.mix(
                [score for score, _ in answers], probabilities, logits, self.choices, self.thresholds, self.rivals
            )
        else:
            # A method that only segments is scored by its surest pixel, as in `Decision.certainty`.
            scores = torch.stack([one.amax(dim=(1, 2)) if score is None else score for score, one in answers], dim=1)
            if isinstance(self.method, PriorMethod) and scored:
                scores = shifted(scores, self.method.rule.score_bias)
        if isinstance(self.method, PriorMethod) and scored:
            ways = [not choice.competed for choice in self.choices] if self.choices else None
            scores = scores_by_masks(scores, probabilities, ways)
        return scores, probabilities

    def _head_answers(self, pixels: Tensor) -> list[tuple[Tensor | None, Tensor]]:
        """The head's score (B,) and map (B, h, w) of every class, from prepared pixels (B, 3, S, S)."""
        tokens = self.backbone.tokens_from(self.backbone.encode_maps(pixels), self.square)  # (B, C, 1 + T, d)
        grid, method = self.backbone.grid(*self.square), self.method
        if isinstance(method, Prototype):
            patches = unit_patches(tokens[:, method.channels], grid)
            return [training_free.join_shots(method.compare(patches, way), self.detail) for way in self.ways]
        assert isinstance(method, CorrelationMethod)
        query = F.normalize(tokens[:, method.channels, 1:], dim=-1)
        if not isinstance(method, PriorMethod):
            ways = [[self._trained(query, support, grid) for support in supports] for supports in self.ways]
            return [correlation.join_shots(way, self.detail) for way in ways]
        patches = unit_patches(tokens[:, method.prior_channels], grid)
        ways = [
            [
                with_prior(self._trained(query, support.encoding, grid), patches, support, method.rule)
                for support in supports
            ]
            for supports in self.ways
        ]
        # As in `PixelLearner.answer`: a class that competed in cross-validation is judged by itself.
        beside = judge_together(ways)
        judged = [
            judge_together([ways[c]])[0] if self.choices and self.choices[c].competed else beside[c]
            for c in range(len(ways))
        ]
        return [correlation.join_shots(way, self.detail) for way in judged]

    def _trained(self, query: Tensor, support: Any, grid: tuple[int, int]) -> ShotEvidence:
        """What the network says of unit vectors (B, C, T, d)."""
        assert isinstance(self.method, CorrelationMethod)
        presence, masks = plain_compare(self.method.network, query, support, grid)
        return ShotEvidence(None if presence is None else presence.softmax(dim=1)[:, 1], masks)


class HeadGraph(nn.Module):
    """Query tokens and supports to logits: the network alone, for any classes and examples.

    Args:
        method: A method of EMAT's family.

    Raises:
        EmatError: If the method has no such network.
    """

    def __init__(self, method: Method) -> None:
        super().__init__()
        if not isinstance(method, CorrelationMethod):
            raise EmatError(
                "cannot-export", f"the method {method.name} has no head of EMAT's family; export the whole segmenter"
            )
        self.network = method.network
        self.side = method.preparation.image_size
        self.grid = method.backbone.grid(self.side, self.side)
        self.form = PlainForm.of(self.network.form, dense=True)

    def forward(self, query: Tensor, support: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Compare tokens (B, C, 1 + T, d) of queries and supports; masks (B, H, W) are the class above 0."""
        weights, mask = dict(self.network.named_parameters()), support_mask(mask, self.side)
        presence, masks = plain_forward(self.form, weights, query, support, mask)
        return (masks,) if presence is None else (masks, presence)


def check_method(method: Method) -> None:
    """Raise an EmatError if the method cannot be put into a graph."""
    if not isinstance(method, (CorrelationMethod, Prototype)):
        raise EmatError(
            "cannot-export",
            f"the method {method.name} cannot be exported: its steps depend on values; EMAT, CST and prototype can",
        )


def backbone_of(method: Method) -> Backbone:
    """The backbone of a method."""
    backbone: Any = getattr(method, "backbone", None)
    assert isinstance(backbone, Backbone)
    return backbone


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
            maps differ by more than 1e-3 or scores by more than 0.01.
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
        outputs = _run(unfinished, {name: value.numpy() for name, value in inputs.items()})
        with torch.inference_mode():
            out = network(query, support, mask, query_grid=graph.grid, support_grid=graph.grid)
        expected = [out.masks] if out.presence is None else [out.masks, out.presence]
        return max(float(np.abs(one - other.numpy()).max()) for one, other in zip(outputs, expected, strict=True))

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
        name: {"refine": rule.refine, "smallest_share_of_photo": rule.smallest, "lies_on": rule.lies_on}
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
    outputs: list[NDArray[np.float32]] = session.run(None, dict(inputs))
    return outputs


def _shapes(values: Any) -> dict[str, list[int | str]]:
    return {
        value.name: [side.dim_param or side.dim_value for side in value.type.tensor_type.shape.dim] for value in values
    }


def _packages() -> None:
    with needs_extra("export", "export"):
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401


@contextmanager
def _fixed_positions(backbone: Backbone) -> Iterator[None]:
    """Inside the block, position embeddings of ViTs are resized outside of the graph, where bicubic means the same."""
    vits = [part for part in backbone.modules() if isinstance(part, ViT)]
    for vit in vits:
        vit.__dict__["_positions"] = _remembered(vit._positions)
    try:
        yield
    finally:
        for vit in vits:
            del vit.__dict__["_positions"]


def _remembered(resize: Callable[[Grid, Tensor], Tensor]) -> Callable[[Grid, Tensor], Tensor]:
    """Resize once for each grid: in the run before the export, so that the result is a constant of the graph."""
    resized: dict[Grid, Tensor] = {}

    def positions(grid: Grid, embeddings: Tensor) -> Tensor:
        if grid not in resized:
            resized[grid] = resize(grid, embeddings).detach().clone()
        return resized[grid]

    return positions


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
