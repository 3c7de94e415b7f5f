"""The one table of methods: everything that predicts, evaluates or trains asks here for a method by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from emat.backbone import Backbone, build_backbone
from emat.backbone.registry import DEFAULT_BACKBONE
from emat.baselines.asnet import ASNet
from emat.baselines.hsnet import HSNet
from emat.baselines.panet import PANet
from emat.baselines.pfenet import PFENet
from emat.baselines.prototype import Prototype
from emat.errors import EmatError
from emat.method import Method
from emat.model import FORMS, build
from emat.model.few_shot import CorrelationMethod


@dataclass(frozen=True)
class MethodEntry:
    """How a method is made of a backbone and an image size (None: the backbone's own), and the backbone it is for."""

    make: Callable[[Backbone, int | None], Method]
    default_backbone: str
    needs_training: bool = True


def _correlation(form: str, backbone: Backbone, image_size: int | None) -> Method:
    return CorrelationMethod(backbone, build(form, backbone.channels), image_size)


METHODS: dict[str, MethodEntry] = {
    **{form: MethodEntry(partial(_correlation, form), DEFAULT_BACKBONE) for form in FORMS},
    **{kind.name: MethodEntry(kind, "resnet50") for kind in (PANet, PFENet, HSNet, ASNet)},
    Prototype.name: MethodEntry(Prototype, DEFAULT_BACKBONE, needs_training=False),
}


def build_method(
    name: str,
    backbone: str | Backbone | None = None,
    *,
    image_size: int | None = None,
    device: str | torch.device | None = None,
) -> Method:
    """The method `name`, its trainable part freshly initialised, in evaluation mode, on `device`.

    `backbone` and `image_size` default to what the method and its backbone were made for. A backbone in place of its
    name is shared with whoever has it, and stays on its device.
    """
    if name not in METHODS:
        raise EmatError(f"there is no method {name!r}; choose one of {', '.join(METHODS)}")
    entry = METHODS[name]
    if isinstance(backbone, Backbone):
        extractor = backbone
    else:
        extractor = build_backbone(backbone or entry.default_backbone, device=device)
    return entry.make(extractor, image_size).to(next(extractor.parameters()).device).eval()
