"""Heads by name or file: the one that comes with the package, the published ones, what was trained or imported here.

A method that needs no training goes by its own name: its head is empty.

A head file says all that is needed to predict with it: its method and channels, the backbone and image size it was
trained with (`backbone`, `image_size`), and the thresholds that suit it (`threshold`, or `presence_threshold` and
`mask_threshold` apart).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from emat.backbone import Backbone
from emat.backbone.home import head_file
from emat.backbone.registry import find_backbone
from emat.errors import EmatError
from emat.inference.methods import METHODS, build_method
from emat.method import PAPER_THRESHOLD, Method, Thresholds
from emat.model.checkpoint import head_tensors, identify
from emat.tensor_files import read_metadata, read_tensors

DEFAULT_HEAD = "default"
PUBLISHED_BACKBONE = "dinov2-s"
PUBLISHED = tuple(f"emat-{benchmark}-fold{fold}" for benchmark in ("pascal", "coco") for fold in range(4))


@dataclass(frozen=True)
class Head:
    """A trained head and what it was trained for."""

    method: str
    backbone: str
    image_size: int
    thresholds: Thresholds
    tensors: Mapping[str, Tensor]

    def build(self, device: str | torch.device | None = None, backbone: Backbone | None = None) -> Method:
        """The method, ready to predict on `device`; with `backbone`, on that one, which must be the head's own."""
        method = build_method(self.method, backbone or self.backbone, image_size=self.image_size, device=device)
        method.load_trained_weights(self.tensors)
        return method.requires_grad_(False).eval()

    def metadata(self) -> dict[str, str]:
        """What `head_from` needs beside the tensors."""
        return {
            "method": self.method,
            "backbone": self.backbone,
            "image_size": str(self.image_size),
            "presence_threshold": repr(self.thresholds.presence),
            "mask_threshold": repr(self.thresholds.mask),
        }


def find_head(name: str | Path) -> Path:
    """The file of a head: `name` is a file, "default", a published head, or one that was trained or imported here."""
    if Path(name).is_file():
        return Path(name)
    if str(name) == DEFAULT_HEAD:
        return bundled_head()
    kept = head_file(str(name)) if Path(name).name == str(name) else Path(name)
    if kept.is_file():
        return kept
    if str(name) in PUBLISHED:
        raise EmatError(
            f"the published head {name} is not on this machine; download its .ckpt and run "
            f"`emat weights import FILE.ckpt --as {name}`"
        )
    raise EmatError(f"{name} is neither a file nor a head here; heads are {', '.join(known_heads())}")


def bundled_head() -> Path:
    """The file of the head that comes with the package."""
    path = Path(str(resources.files("emat") / "heads" / f"{DEFAULT_HEAD}.safetensors"))
    if not path.is_file():
        raise EmatError(f"the default head is missing at {path}; install emat again")
    return path


def known_heads() -> list[str]:
    """The names that `load_head` takes here."""
    kept = sorted(path.stem for path in head_file("any").parent.glob("*.safetensors"))
    return [DEFAULT_HEAD, *kept, *(name for name in METHODS if is_training_free(name))]


def is_training_free(name: str | Path) -> bool:
    """Whether `name` is a method that needs no head."""
    return str(name) in METHODS and not METHODS[str(name)].needs_training


def load_head(name: str | Path, backbone: str | None = None, method: str | None = None) -> Head:
    """The head `name`; `backbone` and `method` are for a file that does not say them.

    CST and its relatives look alike, so that only `method` tells them apart in a published checkpoint.
    """
    metadata = head_metadata(name)
    stated = metadata.get("method")
    if method is not None and stated not in (None, method):
        raise EmatError(f"{name} is a head of the method {stated}, not {method}; leave the method away")
    chosen = {"method": stated or method or "", "backbone": backbone or metadata.get("backbone", "")}
    tensors = {} if is_training_free(name) else head_tensors(read_tensors(find_head(name)))
    return head_from(tensors, {**metadata, **chosen}, name)


def head_metadata(name: str | Path) -> dict[str, str]:
    """What the file of the head `name` says of it; a pickled checkpoint says nothing."""
    if is_training_free(name):
        return {"method": str(name), "backbone": METHODS[str(name)].default_backbone}
    path = find_head(name)
    published = {"backbone": PUBLISHED_BACKBONE} if str(name) in PUBLISHED else {}
    return published | (read_metadata(path) if _is_safetensors(path) else {})


def head_from(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], path: str | Path) -> Head:
    """The head with these tensors, which came from `path`."""
    method = metadata.get("method") or identify(tensors)
    if method not in METHODS:
        raise EmatError(f"{path} holds a head of method {method!r}, which is none of {', '.join(METHODS)}")
    if not metadata.get("backbone"):
        raise EmatError(
            f"{path} does not say which backbone its head was trained with; name it by --backbone, or in Python by "
            "backbone='dinov2-s'"
        )
    backbone = find_backbone(metadata["backbone"])
    both = metadata.get("threshold", str(PAPER_THRESHOLD))
    try:
        return Head(
            method=method,
            backbone=backbone.name,
            image_size=int(metadata.get("image_size", backbone.image_size)),
            thresholds=Thresholds(
                float(metadata.get("presence_threshold", both)), float(metadata.get("mask_threshold", both))
            ),
            tensors=tensors,
        )
    except ValueError as error:
        raise EmatError(f"{path} has metadata that cannot be read ({error}); fetch or save it again") from None


def _is_safetensors(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(9)[8:9] == b"{"


def head_of(method: Method, thresholds: Thresholds) -> Head:
    """The head inside a method that was built here."""
    backbone = getattr(method, "backbone", None)
    if method.name not in METHODS or not isinstance(backbone, Backbone) or backbone.spec is None:
        raise EmatError(f"a segmenter with the method {method.name!r} cannot be saved; use one of {', '.join(METHODS)}")
    return Head(method.name, backbone.spec.name, method.preparation.image_size, thresholds, method.trained_weights())
