"""Heads by name or file: the one that comes with the package, the published ones, what was trained or imported here.

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

from emat.backbone import build_backbone
from emat.backbone.home import head_file
from emat.backbone.registry import find_backbone
from emat.device import choose_device
from emat.errors import EmatError
from emat.inference.prediction import Thresholds
from emat.method import PAPER_THRESHOLD, Method
from emat.model import FORMS, build, load_public
from emat.model.checkpoint import head_tensors, identify
from emat.model.few_shot import CorrelationMethod
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

    def build(self, device: str | torch.device | None = None) -> CorrelationMethod:
        """The method, ready to predict on `device`."""
        extractor = build_backbone(self.backbone, device=choose_device(device))
        network = build(self.method, extractor.channels)
        load_public(network, self.tensors)
        network.to(next(extractor.parameters()).device)
        method = CorrelationMethod(extractor, network, self.image_size)
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
    """The names that `find_head` finds here."""
    return [DEFAULT_HEAD, *sorted(path.stem for path in head_file("any").parent.glob("*.safetensors"))]


def load_head(name: str | Path, backbone: str | None = None) -> Head:
    """The head `name`; `backbone` only where its file does not say which it was trained with."""
    path = find_head(name)
    tensors = read_tensors(path)
    metadata = read_metadata(path) if _is_safetensors(path) else {}
    stated = metadata.get("backbone") or (PUBLISHED_BACKBONE if str(name) in PUBLISHED else None)
    return head_from(head_tensors(tensors), {**metadata, "backbone": backbone or stated or ""}, path)


def head_from(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], path: Path) -> Head:
    """The head with these tensors, which came from `path`."""
    method = metadata.get("method") or identify(tensors)
    if method not in FORMS:
        raise EmatError(f"{path} holds a head of method {method!r}, which is none of {', '.join(FORMS)}")
    if not metadata.get("backbone"):
        raise EmatError(f"{path} does not say which backbone its head was trained with; name it: backbone='dinov2-s'")
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
    if not isinstance(method, CorrelationMethod) or method.backbone.spec is None:
        raise EmatError(f"a segmenter with the method {method.name!r} cannot be saved; methods are {', '.join(FORMS)}")
    return Head(
        method=method.network.method,
        backbone=method.backbone.spec.name,
        image_size=method.preparation.image_size,
        thresholds=thresholds,
        tensors=method.network.state_dict(),
    )
