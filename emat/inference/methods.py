"""The one table of methods: everything that predicts, evaluates or trains asks here for a method by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from emat.backbone import build_backbone
from emat.backbone.registry import DEFAULT_BACKBONE
from emat.errors import EmatError
from emat.method import Method
from emat.model import FORMS, build
from emat.model.few_shot import CorrelationMethod


@dataclass(frozen=True)
class MethodEntry:
    """How a method is made, and the backbone it takes unless another is asked for."""

    make: Callable[[str, int | None, str | torch.device | None], Method]  # backbone, image size, device
    default_backbone: str


def _correlation(form: str, backbone: str, image_size: int | None, device: str | torch.device | None) -> Method:
    extractor = build_backbone(backbone, device=device)
    network = build(form, extractor.channels).to(next(extractor.parameters()).device)
    return CorrelationMethod(extractor, network, image_size)


METHODS: dict[str, MethodEntry] = {form: MethodEntry(partial(_correlation, form), DEFAULT_BACKBONE) for form in FORMS}


def build_method(
    name: str,
    backbone: str | None = None,
    *,
    image_size: int | None = None,
    device: str | torch.device | None = None,
) -> Method:
    """The method `name`, its trainable part freshly initialised, on `device`.

    `backbone` and `image_size` default to what the method and its backbone were made for.
    """
    if name not in METHODS:
        raise EmatError(f"there is no method {name!r}; choose one of {', '.join(METHODS)}")
    entry = METHODS[name]
    return entry.make(backbone or entry.default_backbone, image_size, device)
