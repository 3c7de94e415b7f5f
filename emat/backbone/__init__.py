"""Backbones: frozen networks that turn pixels into tokens.

`registry` lists them and builds one by its name. `base` is their interface and `tokens` their output. The networks are
`vit` (DINO and DINOv2), `efficientnet`, `resnet` and `mobilesam`, whose encoder is `tiny_vit`. `weights` knows what
their tensors are called in public files.
"""

from emat.backbone.base import Backbone
from emat.backbone.registry import BackboneSpec, build_backbone
from emat.backbone.tokens import Tokens
from emat.backbone.vit import ViT

__all__ = ["Backbone", "BackboneSpec", "Tokens", "ViT", "build_backbone"]
