"""What is on this machine: each backbone's weights, checked, and the heads that were imported or trained."""

from dataclasses import dataclass
from pathlib import Path

from emat.backbone.home import head_file
from emat.backbone.registry import BACKBONES, BackboneSpec
from emat.backbone.weights import find_weights, verified
from emat.errors import EmatError
from emat.tensor_files import read_metadata


@dataclass(frozen=True)
class BackboneState:
    """Whether a backbone's weights are here, and whether they are what they should be."""

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


@dataclass(frozen=True)
class HeadState:
    """A trained head in EMAT_HOME."""

    name: str
    path: Path
    method: str
    channels: str
    source: str


def backbone_state(spec: BackboneSpec, largest_checked: int | None = None) -> BackboneState:
    """The state of one backbone's weights; files over `largest_checked` bytes are not read whole."""
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


def backbone_states(largest_checked: int | None = None) -> list[BackboneState]:
    """The state of every backbone of the registry, in its order."""
    return [backbone_state(spec, largest_checked) for spec in BACKBONES.values()]


def heads_here() -> list[HeadState]:
    """Every head in EMAT_HOME, by name; files that are none are passed over."""
    heads = []
    for path in sorted(head_file("any").parent.glob("*.safetensors")):
        try:
            metadata = read_metadata(path)
        except EmatError:
            continue
        method, channels, source = (metadata.get(key, "unknown") for key in ("method", "channels", "source"))
        heads.append(HeadState(path.stem, path, method, channels, source))
    return heads
