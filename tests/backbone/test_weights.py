"""The weights of backbones: where they are found, how they are verified, and what their tensors are called."""

import re
import select
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file
from torch import Tensor

from emat.backbone import build_backbone
from emat.backbone.registry import BackboneSpec, find_backbone, recognise
from emat.backbone.weights import (
    backbone_file,
    fetch_weights,
    find_weights,
    load_weights,
    read_backbone,
    store_weights,
    to_public,
)
from emat.errors import EmatError
from emat.tensor_files import digest, read_metadata

TWO_AT_ONCE = """
import sys
from functools import partial
from emat.backbone.registry import IMAGENET_MEAN, IMAGENET_STD, BackboneSpec
from emat.backbone.vit import ViT
from emat.backbone.weights import load_weights
make = partial(ViT, width=24, depth=2, heads=2, patch=14, pos_grid=5)
spec = BackboneSpec("tiny", make, 4, 12, 14, 14, 70, IMAGENET_MEAN, IMAGENET_STD, "", urls=(sys.argv[1],))
print(len(load_weights(spec)))
"""


def test_a_given_file_in_any_known_form_gives_the_same_weights(
    tiny_spec: BackboneSpec, tiny_tensors: dict[str, Tensor], tmp_path: Path
) -> None:
    torch.save(tiny_tensors, tmp_path / "meta.pth")
    torch.save(
        {"teacher": {f"backbone.{k}": v for k, v in tiny_tensors.items()}, "epoch": 3},
        tmp_path / "training.pth",
    )
    save_file(tiny_tensors, tmp_path / "hub.safetensors")
    digests = {digest(load_weights(tiny_spec, path)) for path in tmp_path.iterdir() if path.is_file()}
    assert digests == {digest(tiny_tensors)}


def test_a_file_of_another_network_is_refused_by_name(
    tiny_tensors: dict[str, Tensor], tiny_spec: BackboneSpec, tmp_path: Path
) -> None:
    save_file(tiny_tensors | {"extra": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(EmatError, match=r"x\.safetensors does not hold the weights of tiny: unknown extra"):
        read_backbone(tiny_spec, tmp_path / "x.safetensors")


def test_the_default_backbone_comes_from_its_package_without_a_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EMAT_OFFLINE", "1")
    spec = find_backbone("efficientnet-lite2")
    found = find_weights(spec)
    assert found is not None
    assert (found.origin, found.sha256) == ("package", spec.sha256)
    assert build_backbone("efficientnet-lite2", device="cpu").spec is spec


def test_what_is_stored_is_found_again_and_verified(
    tiny_spec: BackboneSpec, tiny_tensors: dict[str, Tensor], home: Path
) -> None:
    stored = store_weights(tiny_spec, tiny_tensors, "meta.pth", "ab" * 32)
    assert stored.path == home / "backbones" / "tiny.safetensors"
    assert find_weights(tiny_spec) == stored
    loaded = load_weights(tiny_spec)
    assert "mask_token" not in loaded
    assert read_metadata(stored.path)["source_sha256"] == "ab" * 32


def test_weights_that_changed_on_disk_are_refused(tiny_spec: BackboneSpec, tiny_tensors: dict[str, Tensor]) -> None:
    path = store_weights(tiny_spec, tiny_tensors, "meta.pth", "").path
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(EmatError, match="has changed since it was written"):
        load_weights(tiny_spec)


def test_other_weights_than_those_first_trusted_are_refused(
    tiny_spec: BackboneSpec, tiny_tensors: dict[str, Tensor]
) -> None:
    store_weights(tiny_spec, tiny_tensors, "first.pth", "")
    store_weights(tiny_spec, tiny_tensors, "same.safetensors", "")
    with pytest.raises(EmatError, match=r"second\.pth holds other weights for tiny"):
        store_weights(tiny_spec, tiny_tensors | {"cls_token": torch.ones(1, 1, 24)}, "second.pth", "")


def test_a_public_file_is_recognised_by_its_tensors() -> None:
    for name in ("dinov2-s", "dinov2-b-reg", "dino-s8", "efficientnet-lite2"):
        with torch.device("meta"):
            tensors = dict(find_backbone(name).make().state_dict())
        assert recognise(tensors, Path("x.pth")).name == name
    with pytest.raises(EmatError, match="does not fit any of the backbones"):
        recognise({"conv1.weight": torch.zeros(1)}, Path("resnet.pth"))


def test_what_is_fetched_lands_in_the_cache_with_its_source(
    tiny_spec: BackboneSpec, tiny_tensors: dict[str, Tensor], server: Any, home: Path
) -> None:
    server.content = save(tiny_tensors)
    server.breaks_after = [5000]
    spec = replace(tiny_spec, urls=("http://127.0.0.1:1/absent.pth", server.url))
    found = fetch_weights(spec)
    assert found.source == server.url
    assert digest(load_weights(spec)) == found.sha256
    assert sorted(path.name for path in (home / "backbones").iterdir()) == ["tiny.lock", "tiny.safetensors"]


def test_a_fetched_file_of_something_else_leaves_nothing_behind(
    tiny_spec: BackboneSpec, server: Any, home: Path
) -> None:
    with pytest.raises(EmatError, match="no weights for tiny"):
        fetch_weights(replace(tiny_spec, urls=(server.url,)))
    assert [path.name for path in (home / "backbones").iterdir()] == ["tiny.lock"]


def test_two_processes_at_once_fetch_once_and_both_get_the_weights(
    tiny_tensors: dict[str, Tensor], server: Any, home: Path
) -> None:
    server.content = save(tiny_tensors)
    server.delay.clear()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_AT_ONCE, server.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    _until_one_waits(processes)
    server.delay.set()
    assert [p.communicate(timeout=60)[0].strip() for p in processes] == [str(len(tiny_tensors) - 1)] * 2
    assert server.ranges == [None]


def _until_one_waits(processes: list[subprocess.Popen[str]]) -> None:
    """Until one process says that it waits for the other; the lock's holder says nothing before the file comes."""
    streams = [process.stderr for process in processes if process.stderr is not None]
    ready, _, _ = select.select(streams, [], [], 60)
    assert "waiting for another process" in ready[0].readline()


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
    with pytest.raises(EmatError, match="is a stack"):
        build_backbone("efficientnet-lite2+dinov2-s", weights=tmp_path / "x.pth")


def test_weights_are_kept_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAT_HOME", "~/weights")
    assert backbone_file("x") == Path.home() / "weights" / "backbones" / "x.safetensors"


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
