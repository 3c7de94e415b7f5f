"""The tensors in a file of a backbone's weights: what they are called, and whether they are all there.

Public files of a ViT use different names for its tensors: `to_public` translates all of them to Meta's own. Of
MobileSAM's file it takes the image encoder, with its batch norms folded. Where the files come from and how they are
kept is the matter of `emat.weights`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from emat.backbone.base import used_tensors
from emat.backbone.mobilesam import ENCODER
from emat.backbone.tiny_vit import folded
from emat.errors import EmatError
from emat.tensor_files import misfits, read_tensors, shapes_of

if TYPE_CHECKING:
    from emat.backbone.registry import BackboneSpec

# What training code wraps around a network; stripped as often as it appears.
WRAPPERS = ("module.", "_orig_mod.", "backbone.", "model.", "dinov2.", "dinov2_with_registers.", "vit.")

BLOCK = r"^(?:encoder\.)?layers?\.(\d+)\."
RULES: tuple[tuple[str, str], ...] = (
    (r"^embeddings\.(cls_token|mask_token|register_tokens)$", r"\1"),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^storage_tokens$", "register_tokens"),  # what DINOv3's own files call them
    (r"^embeddings\.patch_embeddings\.(?:projection\.)?", "patch_embed.proj."),
    (r"^layernorm\.", "norm."),
    (BLOCK + r"(?:norm1|layernorm_before)\.", r"blocks.\1.norm1."),
    (BLOCK + r"(?:norm2|layernorm_after)\.", r"blocks.\1.norm2."),
    (BLOCK + r"attention\.(?:output\.dense|o_proj)\.", r"blocks.\1.attn.proj."),
    (BLOCK + r"attention\.(?:attention\.query|q_proj)\.", r"blocks.\1.attn.q."),
    (BLOCK + r"attention\.(?:attention\.key|k_proj)\.", r"blocks.\1.attn.k."),
    (BLOCK + r"attention\.(?:attention\.value|v_proj)\.", r"blocks.\1.attn.v."),
    (BLOCK + r"layer_scale([12])\.lambda1$", r"blocks.\1.ls\2.gamma"),
    (BLOCK + r"(?:mlp\.(?:fc1|up_proj)|intermediate\.dense)\.", r"blocks.\1.mlp.fc1."),
    (BLOCK + r"(?:mlp\.(?:fc2|down_proj)|output\.dense)\.", r"blocks.\1.mlp.fc2."),
)


def read_backbone(spec: "BackboneSpec", path: Path) -> dict[str, Tensor]:
    """Read the tensors of `spec` from a file of any known format and naming."""
    return backbone_tensors(spec, to_public(read_tensors(path)), path)


def backbone_tensors(spec: "BackboneSpec", tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return those of `tensors`, which have their public names, that `spec` needs; EmatError if they do not fit."""
    expected = expected_shapes(spec)
    if wrong := misfits(shapes_of(used_tensors(tensors)), expected):
        raise EmatError("weights-do-not-fit", f"{path} does not hold the weights of {spec.name}: {wrong}")
    return {name: tensors[name] for name in expected}


def expected_shapes(spec: "BackboneSpec") -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor that the weights of `spec` must hold."""
    with torch.device("meta"):
        return spec.make().shapes()


def to_public(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the backbone's tensors of a file to Meta's names; names without a rule stay as they are.

    >>> list(to_public({"encoder.layer.3.layer_scale1.lambda1": torch.ones(2)}))
    ['blocks.3.ls1.gamma']
    """
    if encoder := {name.removeprefix(ENCODER): value for name, value in tensors.items() if name.startswith(ENCODER)}:
        return folded(encoder)
    unwrapped = {name.removeprefix("module."): value for name, value in tensors.items()}
    if any(name.startswith("backbone.") for name in unwrapped):  # other tensors belong to heads
        unwrapped = {name: value for name, value in unwrapped.items() if name.startswith("backbone.")}
    return _masked_bias(_join_qkv({_public_name(name): value for name, value in unwrapped.items()}))


def _public_name(name: str) -> str:
    while wrapper := next((w for w in WRAPPERS if name.startswith(w)), None):
        name = name.removeprefix(wrapper)
    for pattern, replacement in RULES:
        renamed, count = re.subn(pattern, replacement, name)
        if count:
            return renamed
    return name


def _join_qkv(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Join query, key and value projections to the one matrix of Meta's files, where all three are given.

    DINOv3's keys have no bias, which is one of zeros.
    """
    joined = dict(tensors)
    for name, value in tensors.items():
        if name.endswith(".attn.q.bias") and name.replace(".q.", ".v.") in tensors:
            joined.setdefault(name.replace(".q.", ".k."), torch.zeros_like(value))
    tensors = dict(joined)
    for name in tensors:
        if ".attn.q." not in name:
            continue
        parts = [name.replace(".attn.q.", f".attn.{letter}.") for letter in "qkv"]
        if all(part in tensors for part in parts):
            joined[name.replace(".attn.q.", ".attn.qkv.")] = torch.cat([joined.pop(part) for part in parts])
    return joined


def _masked_bias(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Apply the masks of DINOv3's own files, 0 for the biases of keys, and leave out what follows from a rule."""
    masked = {}
    for name, value in tensors.items():
        if name.endswith(".attn.qkv.bias_mask") or name == "rope_embed.periods":
            continue
        mask = tensors.get(f"{name}_mask") if name.endswith(".attn.qkv.bias") else None
        masked[name] = value if mask is None else torch.where(mask == 1, value, 0)
    return masked
