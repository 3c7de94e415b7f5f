import re

import torch
from torch import Tensor

from emat.backbone.public_names import to_public
from emat.tensor_files import digest


def as_hugging_face(
    tensors: dict[str, Tensor], renames: dict[str, str], qkv: tuple[str, str, str]
) -> dict[str, Tensor]:
    """The same weights as a file of the hub names them."""
    renamed: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if ".attn.qkv." in name:
            for part, target in zip(value.chunk(3), qkv, strict=True):
                renamed[re.sub(r"blocks\.(\d+)\.attn\.qkv", rf"encoder.layer.\1.{target}", name)] = part
            continue
        for pattern, replacement in renames.items():
            name = re.sub(pattern, replacement, name)
        renamed[name] = value
    return renamed


SHARED_NAMES = {
    r"^(cls_token|mask_token|register_tokens)$": r"embeddings.\1",
    r"^pos_embed$": "embeddings.position_embeddings",
    r"^patch_embed\.proj": "embeddings.patch_embeddings.projection",
    r"^norm\.": "layernorm.",
    r"\.ls([12])\.gamma": r".layer_scale\1.lambda1",
    r"^blocks\.": "encoder.layer.",
}
OLD = SHARED_NAMES | {r"\.attn\.proj": ".attention.output.dense"}
OLD_QKV = ("attention.attention.query", "attention.attention.key", "attention.attention.value")
NEW = SHARED_NAMES | {r"\.attn\.proj": ".attention.o_proj"}
NEW_QKV = ("attention.q_proj", "attention.k_proj", "attention.v_proj")


def test_hugging_faces_old_and_new_names_become_metas(tiny_tensors: dict[str, Tensor]) -> None:
    for renames, qkv in ((OLD, OLD_QKV), (NEW, NEW_QKV)):
        theirs = as_hugging_face(tiny_tensors, renames, qkv)
        assert not set(theirs) & set(tiny_tensors)
        assert digest(to_public(theirs)) == digest(tiny_tensors)


def test_dino_v1_as_hugging_faces_vit_names_it() -> None:
    names = [
        "vit.embeddings.cls_token",
        "encoder.layer.0.layernorm_before.weight",
        "layers.11.layernorm_after.bias",
        "encoder.layer.0.attention.output.dense.weight",
        "encoder.layer.0.intermediate.dense.weight",
        "encoder.layer.0.output.dense.weight",
        "layers.11.mlp.fc2.weight",
    ]
    assert list(to_public({name: torch.zeros(1) for name in names})) == [
        "cls_token",
        "blocks.0.norm1.weight",
        "blocks.11.norm2.bias",
        "blocks.0.attn.proj.weight",
        "blocks.0.mlp.fc1.weight",
        "blocks.0.mlp.fc2.weight",
        "blocks.11.mlp.fc2.weight",
    ]


def test_of_a_checkpoint_with_heads_only_the_backbone_is_taken(tiny_tensors: dict[str, Tensor]) -> None:
    for prefix in ("backbone.", "module.backbone."):
        wrapped = {prefix + name: value for name, value in tiny_tensors.items()}
        wrapped |= {"head.mlp.0.weight": torch.zeros(2), "learner.x": torch.zeros(1)}
        assert digest(to_public(wrapped)) == digest(tiny_tensors)


def test_names_of_other_networks_stay_as_they_are() -> None:
    assert list(to_public({"_blocks.0._bn1.weight": torch.zeros(1)})) == ["_blocks.0._bn1.weight"]
