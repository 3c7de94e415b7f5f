"""Support encodings as named tensors, so that they can be kept in a file and moved between devices.

A method's support encoding is a dataclass whose fields are tensors, tuples of tensors, or None.
"""

from collections.abc import Mapping
from dataclasses import fields
from types import NoneType
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from emat.baselines.hyper_correlation import HyperFeatures
from emat.baselines.panet import Sums
from emat.baselines.pfenet import Support
from emat.baselines.prototype import Prototypes
from emat.errors import EmatError
from emat.model import SupportEncoding

# By the name that a file calls them. A name in a file can lead to nothing but these.
KINDS: dict[str, type[Any]] = {
    "correlation": SupportEncoding,
    "prototypes": Prototypes,
    "sums": Sums,
    "support": Support,
    "hyper-features": HyperFeatures,
}


def kind_of(encoding: Any) -> str:
    """What a file calls this kind of encoding."""
    for kind, form in KINDS.items():
        if type(encoding) is form:
            return kind
    raise EmatError(f"examples that are kept as {type(encoding).__name__} cannot be saved")


def pack(encoding: Any) -> dict[str, Tensor]:
    """The tensors of an encoding: a field's name, with a number where it holds several; none for None."""
    tensors: dict[str, Tensor] = {}
    for field in fields(encoding):
        value = getattr(encoding, field.name)
        if isinstance(value, Tensor):
            tensors[field.name] = value
        elif value is not None:
            tensors.update({f"{field.name}.{place}": part for place, part in enumerate(value)})
    return tensors


def unpack(kind: str, tensors: Mapping[str, Tensor]) -> Any:
    """The encoding that `pack` took apart; ValueError where a tensor is missing that it must have."""
    form = KINDS[kind]
    values: dict[str, Tensor | tuple[Tensor, ...] | None] = {}
    for field in fields(form):
        several = [name for name in tensors if name.startswith(f"{field.name}.")]
        if field.name in tensors:
            values[field.name] = tensors[field.name]
        elif several:
            values[field.name] = tuple(tensors[f"{field.name}.{place}"] for place in range(len(several)))
        elif NoneType in get_args(get_type_hints(form)[field.name]):
            values[field.name] = None
        else:
            raise ValueError(f"no {field.name}")
    return form(**values)


def moved_to(device: torch.device, encoding: Any) -> Any:
    """The same encoding on `device`."""
    return unpack(kind_of(encoding), {name: value.to(device) for name, value in pack(encoding).items()})
