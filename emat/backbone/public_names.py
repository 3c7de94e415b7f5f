"""The names that public files give a ViT's tensors, brought to one: Meta's own.

Hugging Face's files have their own, with query, key and value apart, and transformers 5 renamed some again.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

# What training code wraps around a network; stripped as often as it appears.
WRAPPERS = ("module.", "_orig_mod.", "backbone.", "model.", "dinov2.", "dinov2_with_registers.", "vit.")

BLOCK = r"^(?:encoder\.)?layers?\.(\d+)\."
RULES: tuple[tuple[str, str], ...] = (
    (r"^embeddings\.(cls_token|mask_token|register_tokens)$", r"\1"),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^layernorm\.", "norm."),
    (BLOCK + r"(?:norm1|layernorm_before)\.", r"blocks.\1.norm1."),
    (BLOCK + r"(?:norm2|layernorm_after)\.", r"blocks.\1.norm2."),
    (BLOCK + r"attention\.(?:output\.dense|o_proj)\.", r"blocks.\1.attn.proj."),
    (BLOCK + r"attention\.(?:attention\.query|q_proj)\.", r"blocks.\1.attn.q."),
    (BLOCK + r"attention\.(?:attention\.key|k_proj)\.", r"blocks.\1.attn.k."),
    (BLOCK + r"attention\.(?:attention\.value|v_proj)\.", r"blocks.\1.attn.v."),
    (BLOCK + r"layer_scale([12])\.lambda1$", r"blocks.\1.ls\2.gamma"),
    (BLOCK + r"(?:mlp\.fc1|intermediate\.dense)\.", r"blocks.\1.mlp.fc1."),
    (BLOCK + r"(?:mlp\.fc2|output\.dense)\.", r"blocks.\1.mlp.fc2."),
)


def to_public(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The backbone's tensors of a file under Meta's names; names that no rule knows stay as they are.

    >>> list(to_public({"encoder.layer.3.layer_scale1.lambda1": torch.ones(2)}))
    ['blocks.3.ls1.gamma']
    """
    unwrapped = {name.removeprefix("module."): value for name, value in tensors.items()}
    if any(name.startswith("backbone.") for name in unwrapped):  # beside it are heads, which are not ours
        unwrapped = {name: value for name, value in unwrapped.items() if name.startswith("backbone.")}
    return _join_qkv({_public_name(name): value for name, value in unwrapped.items()})


def _public_name(name: str) -> str:
    while wrapper := next((w for w in WRAPPERS if name.startswith(w)), None):
        name = name.removeprefix(wrapper)
    for pattern, replacement in RULES:
        renamed, count = re.subn(pattern, replacement, name)
        if count:
            return renamed
    return name


def _join_qkv(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Query, key and value projections as the one matrix of Meta's files, where all three are there."""
    joined = dict(tensors)
    for name in tensors:
        if ".attn.q." not in name:
            continue
        parts = [name.replace(".attn.q.", f".attn.{letter}.") for letter in "qkv"]
        if all(part in tensors for part in parts):
            joined[name.replace(".attn.q.", ".attn.qkv.")] = torch.cat([joined.pop(part) for part in parts])
    return joined
