"""Backbones: pixels in, tokens out; by name from the registry, with weights from a chain of sources."""

from emat.backbone.base import Backbone
from emat.backbone.registry import BackboneSpec, build_backbone
from emat.backbone.tokens import Tokens
from emat.backbone.vit import ViT

__all__ = ["Backbone", "BackboneSpec", "Tokens", "ViT", "build_backbone"]
