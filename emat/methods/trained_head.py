"""Trained heads: what a head file holds, what it was trained on, and where it is found.

A head is the trained part of a method. Its file is a safetensors file whose metadata say everything that is needed to
use it: the method (`method`), the backbone and image size it was trained with (`backbone`, `image_size`), and the
thresholds that suit it (`threshold`, or `presence_threshold` and `mask_threshold`). Files of a training run also say
which classes were trained (`classes`) and with which options (`settings`). A public checkpoint has no metadata; its
method shows from the names and shapes of its tensors.

A head is given as a file or by name. "default" comes with the package. A published head is called by its archive and
fold, such as "emat-coco-fold0", and is here once `emat weights fetch emat-coco` brought it. Others were imported or
trained on this machine. "best" is the first of `BEST_ORDER` that is here together with its backbone's weights, and
"default" where none is. A method that needs no training goes by its own name and has no tensors.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from emat.backbone import Backbone
from emat.backbone.registry import find_backbone
from emat.backbone.weights import find_weights
from emat.errors import EmatError
from emat.files import emat_home
from emat.methods import registry
from emat.methods.base import PAPER_THRESHOLD, Method, Thresholds
from emat.methods.registry import build_method, find_method, method_names, training_free_methods
from emat.model.network import FORMS, PUBLISHED_SHAPE, Shape, build, load_public, without_prefix
from emat.tensor_files import read_metadata, read_tensors, shapes_of, write_tensors

DEFAULT_HEAD = "default"
BEST_HEAD = "best"
PUBLISHED_BACKBONE = "dinov2-s"
FOLDS = range(4)

# Strongest first. COCO's heads saw 60 classes in training and PASCAL's 15, and the paper reports EMAT above CST* on
# both benchmarks. The folds of one benchmark differ only in the classes that they were not trained on.
PUBLISHED_ARCHIVES = ("emat-coco", "emat-pascal", "cst-coco", "cst-pascal")
PUBLISHED = tuple(f"{archive}-fold{fold}" for archive in PUBLISHED_ARCHIVES for fold in FOLDS)
BEST_ORDER = PUBLISHED
SMALLEST_SIDE, LARGEST_SIDE = 8, 4096  # pixels that a photo is resized to
NO_HEAD = "these tensors are not an EMAT or CST head; a public .ckpt holds one under 'learner.'"


@dataclass(frozen=True)
class TrainedHead:
    """A trained head and what it was trained for."""

    method: str
    backbone: str
    image_size: int
    thresholds: Thresholds
    tensors: Mapping[str, Tensor]  # empty for a method that is used without training
    shape: Shape = PUBLISHED_SHAPE  # sizes of its network that differ from the published ones

    def build(self, device: str | torch.device | None = None, backbone: Backbone | None = None) -> Method:
        """Build the method with these weights, ready to predict.

        Args:
            device: "cpu", "cuda", "mps" or "auto".
            backbone: An instance of the head's own backbone to share; by default a new one is built.

        Raises:
            EmatError: If the weights do not fit the method and backbone.
        """
        method = build_method(
            self.method, backbone or self.backbone, image_size=self.image_size, device=device, shape=self.shape
        )
        if self.tensors or find_method(self.method).needs_training:
            method.load_trained_weights(self.tensors)
        return method.requires_grad_(False).eval()

    def metadata(self) -> dict[str, str]:
        """Return the metadata from which `head_from` makes the same head."""
        return {
            "method": self.method,
            "backbone": self.backbone,
            "image_size": str(self.image_size),
            "presence_threshold": repr(self.thresholds.presence),
            "mask_threshold": repr(self.thresholds.mask),
            **shape_metadata(self.shape),
        }


# Heads on this machine


@dataclass(frozen=True)
class HeadState:
    """A head file in EMAT_HOME."""

    name: str
    path: Path
    method: str
    channels: str
    source: str


def heads_here() -> list[HeadState]:
    """Return every head in EMAT_HOME, sorted by name; files that are not heads are left out."""
    heads = []
    for path in sorted(head_file("any").parent.glob("*.safetensors")):
        try:
            metadata = read_metadata(path)
        except EmatError:
            continue
        method, channels, source = (metadata.get(key, "unknown") for key in ("method", "channels", "source"))
        heads.append(HeadState(path.stem, path, method, channels, source))
    return heads


def is_training_free(name: str | Path) -> bool:
    """Whether `name` is a method that is used without a head."""
    return registry.is_training_free(str(name))


# Reading and writing


def load_head(name: str | Path, backbone: str | None = None, method: str | None = None) -> TrainedHead:
    """Load a head.

    Args:
        name: What `find_head` takes, or a method that needs no training.
        backbone: The backbone's name, needed if the file does not say it.
        method: The method's name, needed for a public checkpoint of a method whose tensors look like CST's.

    Raises:
        EmatError: If the head is not found, is damaged, or is one of another method.
    """
    metadata = head_metadata(name)
    stated = metadata.get("method")
    if method is not None and stated not in (None, method) and not share_heads(stated, method):
        raise EmatError(f"{name} is a head of the method {stated}, not {method}; leave out --method")
    chosen = {"method": method or stated or "", "backbone": backbone or metadata.get("backbone", "")}
    tensors = {} if is_training_free(name) else read_tensors(find_head(name))
    return head_from(_head_tensors(tensors, chosen["method"]), {**metadata, **chosen}, name)


def head_metadata(name: str | Path) -> dict[str, str]:
    """Return the metadata of a head's file; a public checkpoint has none."""
    if is_training_free(name):
        return {"method": str(name), "backbone": find_method(str(name)).default_backbone}
    path = find_head(name)
    published = {"backbone": PUBLISHED_BACKBONE} if str(name) in PUBLISHED else {}
    return published | (read_metadata(path) if _is_safetensors(path) else {})


def head_from(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], path: str | Path) -> TrainedHead:
    """Make a head from the tensors and metadata of a file; `path` is what errors call the file."""
    method = metadata.get("method") or identify(tensors)
    if method not in method_names():
        raise EmatError(
            f"{path} holds a head of the method {method!r}, which this emat does not have; its methods are "
            f"{', '.join(method_names())}"
        )
    if not metadata.get("backbone"):
        raise EmatError(
            f"{path} does not say which backbone its head was trained with; name it with --backbone, or in Python with "
            "backbone='dinov2-s'"
        )
    backbone = find_backbone(metadata["backbone"])
    both = metadata.get("threshold", str(PAPER_THRESHOLD))
    try:
        size = int(metadata.get("image_size", backbone.image_size))
        if not SMALLEST_SIDE <= size <= LARGEST_SIDE:
            raise ValueError(f"an image size of {size}, which is {SMALLEST_SIDE} to {LARGEST_SIDE}")
        return TrainedHead(
            method=method,
            backbone=backbone.name,
            image_size=size,
            thresholds=Thresholds(
                float(metadata.get("presence_threshold", both)), float(metadata.get("mask_threshold", both))
            ),
            tensors=tensors,
            shape=_shape_from(metadata),
        )
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise EmatError(f"{path} has metadata that cannot be read ({error}); fetch or save it again") from None


def head_of(method: Method, thresholds: Thresholds) -> TrainedHead:
    """Return the head inside a method that was built here.

    Raises:
        EmatError: If the method or its backbone is not in a registry, so that nobody could load the head again.
    """
    backbone = getattr(method, "backbone", None)
    if method.name not in method_names() or not isinstance(backbone, Backbone) or backbone.spec is None:
        known = ", ".join(method_names())
        raise EmatError(f"a segmenter with the method {method.name!r} cannot be saved; use one of {known}")
    size = method.preparation.image_size
    return TrainedHead(method.name, backbone.spec.name, size, thresholds, method.trained_weights(), method.shape)


def shape_metadata(shape: Shape) -> dict[str, str]:
    """Return what a head file says about the sizes of its network: nothing if they are the published ones."""
    chosen = {name: value for name, value in asdict(shape).items() if value is not None}
    return {"shape": json.dumps(chosen)} if chosen else {}


def _shape_from(metadata: Mapping[str, str]) -> Shape:
    chosen = json.loads(metadata.get("shape", "{}"))
    pairs = {name: tuple(map(int, chosen[name])) for name in ("widths", "channels") if name in chosen}
    if any(len(pair) != 2 for pair in pairs.values()):
        raise ValueError(f"shape {metadata['shape']}")
    grid = chosen.get("support_grid")
    return Shape(None if grid is None else int(grid), pairs.get("widths"), pairs.get("channels"))  # type: ignore[arg-type]


def save_head(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write an EMAT or CST head; its method and channels are added to the metadata unless they are given."""
    own = without_prefix(tensors)
    write_tensors(path, own, {"method": identify(own), "channels": str(_channels(own)), **metadata})


def identify(tensors: Mapping[str, Tensor]) -> str:
    """Return the method that an EMAT or CST head belongs to, from the names and shapes of its tensors.

    CST, its larger form and the ablation `emat-me` have the same tensors: all of them are reported as "cst".

    Raises:
        EmatError: If the tensors are not such a head; the message says what is missing from the closest one.
    """
    own = without_prefix(tensors)
    given, channels = shapes_of(own), _channels(own)
    closest: tuple[int, str] = (len(given), "")
    for method in FORMS:
        expected = shapes_of(build(method, channels).state_dict())
        if expected == given:
            return method
        closest = min(closest, (len(set(expected.items()) ^ set(given.items())), method))
    if not closest[1]:
        raise EmatError(NO_HEAD)
    load_public(build(closest[1], channels), tensors)  # always raises, and says what does not fit
    raise AssertionError(closest)


def _channels(tensors: Mapping[str, Tensor]) -> int:
    for name in ("attn.kv.weight", "attn.qkv.weight"):
        weight = tensors.get(f"corrtransformer.0.{name}")
        if weight is not None and weight.ndim == 4 and weight.shape[1] > 0:
            return weight.shape[1]
    raise EmatError(NO_HEAD)


def _head_tensors(tensors: Mapping[str, Tensor], method: str) -> dict[str, Tensor]:
    """Only EMAT's and CST's names have the public prefix removed: in the other methods it is a part of the name."""
    return without_prefix(tensors) if method in ("", *FORMS) else dict(tensors)


def share_heads(stated: str | None, wanted: str) -> bool:
    """Say whether a head of the method `stated` is also a head of the method `wanted`, as it is."""
    own = {name: find_method(name).heads_of or name for name in (stated, wanted) if name in method_names()}
    return len(own) == 2 and own[stated] == own[wanted]  # type: ignore[index]


def _is_safetensors(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(9)[8:9] == b"{"


# Names of heads, and the files that they stand for


def head_file(name: str) -> Path:
    """Return the file in EMAT_HOME that an imported or trained head is kept in."""
    return emat_home() / "heads" / f"{name}.safetensors"


def find_head(name: str | Path) -> Path:
    """Return the file of a head.

    Args:
        name: A file, "default", "best", the name of a published head, or of one that was trained or imported here.

    Raises:
        EmatError: If there is no such head on this machine.
    """
    if Path(name).is_file():
        return Path(name)
    if str(name) == BEST_HEAD:
        name = best_head()
        _say_once(f"the best head on this machine is {name}")
    if str(name) == DEFAULT_HEAD:
        return bundled_head()
    kept = head_file(str(name)) if Path(name).name == str(name) else Path(name)
    if kept.is_file():
        return kept
    if str(name) in PUBLISHED:
        archive = str(name).rpartition("-")[0]
        raise EmatError(f"the published head {name} is not on this machine; run `emat weights fetch {archive}`")
    raise EmatError(f"{name} is neither a file nor a head here; heads are {', '.join(known_heads())}")


def best_head() -> str:
    """Return the name of the strongest head whose weights, and whose backbone's weights, are on this machine."""
    if find_weights(find_backbone(PUBLISHED_BACKBONE)) is None:
        return DEFAULT_HEAD
    return next((name for name in BEST_ORDER if head_file(name).is_file()), DEFAULT_HEAD)


def bundled_head() -> Path:
    """Return the file of the head that comes with the package."""
    path = Path(str(resources.files("emat") / "heads" / f"{DEFAULT_HEAD}.safetensors"))
    if not path.is_file():
        raise EmatError(f"the default head is missing at {path}; install emat again")
    return path


def known_heads() -> list[str]:
    """Return the names that `load_head` accepts on this machine."""
    kept = sorted(path.stem for path in head_file("any").parent.glob("*.safetensors"))
    return [DEFAULT_HEAD, *kept, *training_free_methods()]


@cache
def _say_once(line: str) -> None:
    """A head's name is looked up several times while it is loaded."""
    print(f"emat: {line}", file=sys.stderr, flush=True)
