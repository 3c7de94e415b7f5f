"""The tensors in files of backbones' weights: what they are called, and which backbone a file belongs to."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from emat.backbone import build_backbone
from emat.backbone.registry import BackboneSpec, find_backbone, recognise
from emat.backbone.weights import read_backbone, to_public
from emat.errors import EmatError
from emat.tensor_files import digest
from emat.weights import find_weights, keep_weights, load_weights
from tests.raises import raises_code


def test_a_given_file_in_any_known_form_gives_the_same_weights(
    tiny_spec: BackboneSpec, tiny_tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    torch.save(tiny_tensors, tmp_path / "meta.pth")
    torch.save(
        {"teacher": {f"backbone.{k}": v for k, v in tiny_tensors.items()}, "epoch": 3},
        tmp_path / "training.pth",
    )
    save_file(tiny_tensors, tmp_path / "hub.safetensors")
    digests = {digest(load_weights(tiny_spec.weights, path)) for path in tmp_path.iterdir() if path.is_file()}
    needed = {name: value for name, value in tiny_tensors.items() if name != "mask_token"}
    assert digests == {digest(needed)}
    kept = keep_weights(tiny_spec.weights, tmp_path / "meta.pth", "meta.pth")
    assert digest(load_weights(tiny_spec.weights)) == kept.sha256 == digest(needed)


def test_a_file_of_another_network_is_refused_by_name(
    tiny_tensors: dict[str, Tensor], tiny_spec: BackboneSpec, tmp_path: Path
) -> None:
    save_file(tiny_tensors | {"extra": torch.zeros(1)}, tmp_path / "x.safetensors")
    with raises_code("weights-do-not-fit", "x.safetensors", "tiny", "unknown extra"):
        read_backbone(tiny_spec, tmp_path / "x.safetensors")


def test_the_default_backbone_comes_from_its_package_without_a_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EMAT_OFFLINE", "1")
    spec = find_backbone("efficientnet-lite2")
    found = find_weights(spec.weights)
    assert found is not None
    assert (found.origin, [found.sha256], found.known_checksum) == ("package", [*spec.weights.pins], True)
    assert build_backbone("efficientnet-lite2", device="cpu").spec is spec


def test_a_public_file_is_recognised_by_its_tensors() -> None:
    for name in ("dinov2-s", "dinov2-b-reg", "dino-s8", "efficientnet-lite2"):
        with torch.device("meta"):
            tensors = dict(find_backbone(name).make().state_dict())
        assert recognise(tensors, Path("x.pth")).name == name
    with raises_code("weights-do-not-fit"):
        recognise({"conv1.weight": torch.zeros(1)}, Path("resnet.pth"))


def test_nothing_reachable_is_one_sentence_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_OFFLINE", "1")
    with pytest.raises(EmatError) as caught:
        build_backbone("dinov2-s")
    message = str(caught.value)
    assert "no weights for dinov2-s" in message
    assert "huggingface.co/facebook/dinov2-small" in message
    assert "emat weights import FILE" in message
    assert "\n" not in message


def test_one_file_cannot_fill_a_stack(tmp_path: Path) -> None:
    with raises_code("stack-of-backbones"):
        build_backbone("efficientnet-lite2+dinov2-s", weights=tmp_path / "x.pth")


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


def test_dinov3s_own_file_has_other_names_and_a_mask_for_the_biases_of_keys() -> None:
    bias, mask = torch.full((9,), torch.nan), torch.ones(9)
    mask[3:6] = 0
    bias[mask == 1] = 2.0
    theirs = {
        "storage_tokens": torch.ones(1, 4, 3),
        "rope_embed.periods": torch.ones(4),
        "blocks.0.attn.qkv.bias": bias,
        "blocks.0.attn.qkv.bias_mask": mask,
    }
    ours = to_public(theirs)
    assert set(ours) == {"register_tokens", "blocks.0.attn.qkv.bias"}
    assert ours["blocks.0.attn.qkv.bias"].tolist() == [2, 2, 2, 0, 0, 0, 2, 2, 2]


def test_weights_behind_a_licence_say_where_to_accept_it() -> None:
    with raises_code("weights-missing") as raised:
        load_weights(find_backbone("dinov3-s").weights)
    assert "dinov3-vits16-pretrain-lvd1689m" in str(raised.value)
    assert "emat weights import model.safetensors --as dinov3-s" in str(raised.value)
