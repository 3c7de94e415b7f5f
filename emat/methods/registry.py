"""The registry of methods: prediction, evaluation and training look up a method here by its name.

To add a method, write one file with a subclass of `Method` and add one line to `METHODS`. A separate package adds its
method through the entry point group `emat.methods` instead; it names a subclass of `Method` whose constructor takes
(backbone, image size or None), or a `MethodEntry`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from emat.backbone import Backbone, build_backbone
from emat.backbone.registry import DEFAULT_BACKBONE
from emat.errors import EmatError
from emat.methods.asnet import ASNet
from emat.methods.base import Method
from emat.methods.correlation import CorrelationMethod, NetworkMethod, channel_slice
from emat.methods.frost import Frost
from emat.methods.gf_sam import GFSAM
from emat.methods.hsnet import HSNet
from emat.methods.insid3 import Insid3
from emat.methods.matcher import Matcher
from emat.methods.panet import PANet
from emat.methods.persam import PerSAM
from emat.methods.pfenet import PFENet
from emat.methods.prior import PriorMethod
from emat.methods.promi import ProMi
from emat.methods.prototype import Prototype
from emat.methods.whitened import WhitenedPrototype
from emat.model import FORMS, Shape, build
from emat.plugins import METHOD_GROUP, load_plugin, plugin_names, plugin_problem


@dataclass(frozen=True)
class MethodEntry:
    """How a method is built."""

    make: Callable[..., Method]  # (backbone, image size or None for the backbone's own)
    default_backbone: str = DEFAULT_BACKBONE
    needs_training: bool = True
    heads_of: str | None = None  # another method whose heads it can use as they are
    has_shape: bool = False  # whether `make` also takes the sizes of its network, as shape=


def _correlation(
    form: str, kind: type[CorrelationMethod], backbone: Backbone, image_size: int | None, shape: Shape
) -> Method:
    chosen = channel_slice(shape, backbone.channels)
    return kind(backbone, build(form, chosen.stop - chosen.start, shape), image_size)


METHODS: dict[str, MethodEntry] = {
    # emat, cst and their variants
    **{form: MethodEntry(partial(_correlation, form, NetworkMethod), has_shape=True) for form in FORMS},
    "emat-prior": MethodEntry(partial(_correlation, "emat", PriorMethod), has_shape=True, heads_of="emat"),
    "panet": MethodEntry(PANet, "resnet50", needs_training=False),
    "pfenet": MethodEntry(PFENet, "resnet50"),
    "hsnet": MethodEntry(HSNet, "resnet50"),
    "asnet": MethodEntry(ASNet, "resnet50"),
    **{
        kind.name: MethodEntry(kind, needs_training=False)
        for kind in (Prototype, ProMi, WhitenedPrototype, Frost, Insid3, PerSAM, Matcher, GFSAM)
    },
}


def method_names() -> list[str]:
    """Return the names of all methods, those of installed packages last."""
    return list(dict.fromkeys([*METHODS, *plugin_names(METHOD_GROUP)]))


def find_method(name: str) -> MethodEntry:
    """Look up a method by its name.

    Raises:
        EmatError: If there is no such method, or the package that adds it is broken.
    """
    if name in METHODS:
        return METHODS[name]
    if name not in plugin_names(METHOD_GROUP):
        raise EmatError("unknown-method", f"there is no method {name!r}; choose one of {', '.join(method_names())}")
    plugin = load_plugin(METHOD_GROUP, name)
    if isinstance(plugin, MethodEntry):
        return plugin
    if isinstance(plugin, type) and issubclass(plugin, Method):
        return MethodEntry(plugin)
    raise plugin_problem(METHOD_GROUP, name, "a subclass of emat.methods.base.Method or a MethodEntry", plugin)


def is_training_free(name: str) -> bool:
    """Whether `name` is a method that needs no training; False also for names that are not methods."""
    return name in method_names() and not find_method(name).needs_training


def training_free_methods() -> list[str]:
    """Return the names of the methods that need no training; packages that cannot be imported are left out."""
    names = []
    for name in method_names():
        try:
            if is_training_free(name):
                names.append(name)
        except EmatError:
            continue  # reported as soon as the method itself is asked for
    return names


def build_method(
    name: str,
    backbone: str | Backbone | None = None,
    *,
    image_size: int | None = None,
    device: str | torch.device | None = None,
    shape: Shape | None = None,
) -> Method:
    """Build a method in evaluation mode; its trainable part has random weights.

    Args:
        name: One of `method_names()`.
        backbone: A name, by default the method's own; or a backbone, which is then shared and stays on its device.
        image_size: Side of the square that photos are resized to; by default the backbone's.
        device: "cpu", "cuda", "mps" or "auto"; ignored if `backbone` is not a name.
        shape: Sizes of the network that differ from the published ones; only EMAT, CST and their variants have them.

    Raises:
        EmatError: If the method or backbone does not exist, they do not fit, or there are no weights.
    """
    entry = find_method(name)
    if isinstance(backbone, Backbone):
        extractor = backbone
    else:
        extractor = build_backbone(backbone or entry.default_backbone, device=device)
    if not entry.has_shape and shape not in (None, Shape()):
        raise EmatError(
            "unsupported-method",
            f"the method {name} has no network whose support grid, widths or channels could be chosen",
        )
    options = {"shape": shape or Shape()} if entry.has_shape else {}
    return entry.make(extractor, image_size, **options).to(next(extractor.parameters()).device).eval()
