"""Trained heads: what a head file holds, where it is found, how checkpoints are imported, and what was trained.

A head is the trained part of a method. Its file is a safetensors file whose metadata say everything that is needed to
use it: the method (`method`), the backbone and image size it was trained with (`backbone`, `image_size`), and the
thresholds that suit it (`threshold`, or `presence_threshold` and `mask_threshold`). Files of a training run also say
which classes were trained (`classes`) and with which options (`settings`). A public checkpoint has no metadata; its
method shows from the names and shapes of its tensors.

A head is given as a file or by name. "default" comes with the package. A published head is called by its archive and
fold, such as "emat-coco-fold0", and is here once `emat weights fetch emat-coco` brought it. Others were imported or
trained on this machine. "best" is the first of `PUBLISHED` that is here together with its backbone's weights, and
"default" where none is. A method that needs no training goes by its own name and has no tensors.

The authors publish one archive a method and benchmark, with a checkpoint for each fold. A checkpoint holds a head and
the backbone beside it; both are stored, and only tensors are read. The authors publish no checksums: the first archive
is trusted and its SHA-256 is recorded, and an archive with another one is refused from then on.

`Training` says what a head was trained on, so that an evaluation is fair to it, and a training run can start from it
(`StartingHead`).
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from emat.archives import ArchiveMember, archive_members, take_member
from emat.backbone import Backbone
from emat.backbone.mobilesam import find_mobilesam
from emat.backbone.registry import BACKBONES, DEFAULT_BACKBONE, BackboneSpec, find_backbone, recognise
from emat.backbone.weights import backbone_tensors, to_public
from emat.errors import EmatError
from emat.files import emat_home, file_sha256, open_input, read_json
from emat.methods import registry
from emat.methods.base import PAPER_THRESHOLD, Method, Thresholds
from emat.methods.registry import build_method, find_method, method_names, training_free_methods
from emat.model.network import FORMS, PUBLISHED_SHAPE, Shape, build, load_public, without_prefix
from emat.outputs import temporary_folder, write_text
from emat.tasks.training_tasks import class_key
from emat.tensor_files import digest, read_metadata, read_tensors, shapes_of, write_tensors
from emat.weights import MOBILESAM, WeightsSpec, fetch_file, find_weights, keep_tensors, say_once

DEFAULT_HEAD = "default"  # where MobileSAM's weights are on this machine, the head that uses them, else the light one
LIGHT_HEAD = "default-light"  # for EfficientNet-Lite2 alone, whose weights install with emat
BEST_HEAD = "best"
PUBLISHED_BACKBONE = "dinov2-s"
FOLDS = range(4)

# Strongest first. COCO's heads saw 60 classes in training and PASCAL's 15, and the paper reports EMAT above CST* on
# both benchmarks. The folds of one benchmark differ only in the classes that they were not trained on.
PUBLISHED_ARCHIVES = ("emat-coco", "emat-pascal", "cst-coco", "cst-pascal")
PUBLISHED = tuple(f"{archive}-fold{fold}" for archive in PUBLISHED_ARCHIVES for fold in FOLDS)
HOST = "https://tudatalib.ulb.tu-darmstadt.de"
BITSTREAMS = {
    "emat-pascal": "43b39fee-dc45-4854-b296-cdd6cd9a8991",
    "emat-coco": "7c4fabd6-583a-4ade-ba55-adbdcdee198a",
    "cst-pascal": "f888213a-9033-465e-995c-0dd0822df653",
    "cst-coco": "f7981cd7-7d11-4a74-8b6c-478f0b3b1250",
}
CHECKPOINT = re.compile(r"(?:.*/)?fold-([0-3])/best\.ckpt")
HEAD = "learner."  # what the public checkpoints call the trained part
SMALLEST_SIDE, LARGEST_SIDE = 8, 4096  # pixels that a photo is resized to
NO_HEAD = "these tensors are not an EMAT or CST head; a public .ckpt holds one under 'learner.'"


@dataclass(frozen=True)
class TrainedHead:
    """A trained head and what it was trained for."""

    method: str
    backbone: str
    image_size: int
    thresholds: Thresholds
    tensors: Mapping[str, Tensor]  # empty for a method that is used without training
    shape: Shape = PUBLISHED_SHAPE  # sizes of its network that differ from the published ones

    def build(self, device: str | torch.device | None = None, backbone: Backbone | None = None) -> Method:
        """Build the method with these weights, ready to predict.

        Args:
            device: "cpu", "cuda", "mps" or "auto".
            backbone: An instance of the head's own backbone to share; by default a new one is built.

        Raises:
            EmatError: If the weights do not fit the method and backbone.
        """
        method = build_method(
            self.method, backbone or self.backbone, image_size=self.image_size, device=device, shape=self.shape
        )
        if self.tensors or find_method(self.method).needs_training:
            method.load_trained_weights(self.tensors)
        return method.requires_grad_(False).eval()

    def metadata(self) -> dict[str, str]:
        """Return the metadata from which `head_from` makes the same head."""
        return {
            "method": self.method,
            "backbone": self.backbone,
            "image_size": str(self.image_size),
            "presence_threshold": repr(self.thresholds.presence),
            "mask_threshold": repr(self.thresholds.mask),
            **shape_metadata(self.shape),
        }


# Heads on this machine


@dataclass(frozen=True)
class HeadState:
    """A head file in EMAT_HOME."""

    name: str
    path: Path
    method: str
    channels: str
    source: str


def heads_here() -> list[HeadState]:
    """Return every head in EMAT_HOME, sorted by name; files that are not heads are left out."""
    heads = []
    for path in sorted(head_file("any").parent.glob("*.safetensors")):
        try:
            metadata = read_metadata(path)
        except EmatError:
            continue
        method, channels, source = (metadata.get(key, "unknown") for key in ("method", "channels", "source"))
        heads.append(HeadState(path.stem, path, method, channels, source))
    return heads


def is_training_free(name: str | Path) -> bool:
    """Whether `name` is a method that is used without a head."""
    return registry.is_training_free(str(name))


# Reading and writing


def load_head(name: str | Path, backbone: str | None = None, method: str | None = None) -> TrainedHead:
    """Load a head.

    Args:
        name: What `find_head` takes, or a method that needs no training.
        backbone: The backbone's name, needed if the file does not say it.
        method: The method's name, needed for a public checkpoint of a method whose tensors look like CST's.

    Raises:
        EmatError: If the head is not found, is damaged, or is one of another method.
    """
    if str(name) == DEFAULT_HEAD and backbone == DEFAULT_BACKBONE:
        name = LIGHT_HEAD  # the other one is for a stack
    tensors, metadata = _read_head(name)
    stated = metadata.get("method")
    if method is not None and stated not in (None, method) and not share_heads(stated, method):
        raise EmatError("wrong-head", f"{name} is a head of the method {stated}, not {method}; leave out --method")
    chosen = {"method": method or stated or "", "backbone": backbone or metadata.get("backbone", "")}
    return head_from(_head_tensors(tensors, chosen["method"]), {**metadata, **chosen}, name)


def head_metadata(name: str | Path) -> dict[str, str]:
    """Return the metadata of a head's file; of a public checkpoint, the backbone that is in it."""
    if is_training_free(name):
        return {"method": str(name), "backbone": find_method(str(name)).default_backbone}
    path = find_head(name)
    if not _is_safetensors(path):
        return _read_head(name)[1]
    return ({"backbone": PUBLISHED_BACKBONE} if str(name) in PUBLISHED else {}) | read_metadata(path)


def _read_head(name: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and metadata of a head; the backbone of a public checkpoint is recognised by its tensors."""
    if is_training_free(name):
        return {}, head_metadata(name)
    path = find_head(name)
    tensors = read_tensors(path)
    if not _is_safetensors(path):
        try:
            backbone = _backbone_in(tensors, path)
        except EmatError:  # of another program; the user may say what it is like
            backbone = None
        return tensors, {"backbone": backbone[0].name} if backbone else {}
    metadata = head_metadata(name)
    if "digest" in metadata and metadata["digest"] != digest(tensors):
        raise EmatError("changed-file", f"{path} has changed since it was imported; import it again with --overwrite")
    return tensors, metadata


def head_from(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], path: str | Path) -> TrainedHead:
    """Make a head from the tensors and metadata of a file; `path` is what errors call the file."""
    method = metadata.get("method") or identify(tensors)
    if method not in method_names():
        raise EmatError(
            "unknown-method",
            f"{path} holds a head of the method {method!r}, which this emat does not have; its methods are "
            f"{', '.join(method_names())}",
        )
    if not metadata.get("backbone"):
        raise EmatError(
            "missing-option",
            f"{path} does not say which backbone its head was trained with; name it with --backbone, or in Python with "
            "backbone='dinov2-s'",
        )
    backbone = find_backbone(metadata["backbone"])
    both = metadata.get("threshold", str(PAPER_THRESHOLD))
    try:
        size = int(metadata.get("image_size", backbone.image_size))
        if not SMALLEST_SIDE <= size <= LARGEST_SIDE:
            raise ValueError(f"an image size of {size}, which is {SMALLEST_SIDE} to {LARGEST_SIDE}")
        return TrainedHead(
            method=method,
            backbone=backbone.name,
            image_size=size,
            thresholds=Thresholds(
                float(metadata.get("presence_threshold", both)), float(metadata.get("mask_threshold", both))
            ),
            tensors=tensors,
            shape=_shape_from(metadata),
        )
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise EmatError(
            "damaged-file", f"{path} has metadata that cannot be read ({error}); fetch or save it again"
        ) from None


def head_of(method: Method, thresholds: Thresholds) -> TrainedHead:
    """Return the head inside a method that was built here.

    Raises:
        EmatError: If the method or its backbone is not in a registry, so that nobody could load the head again.
    """
    backbone = getattr(method, "backbone", None)
    if method.name not in method_names() or not isinstance(backbone, Backbone) or backbone.spec is None:
        names = ", ".join(method_names())
        raise EmatError(
            "unknown-method", f"a segmenter with the method {method.name!r} cannot be saved; use one of {names}"
        )
    size = method.preparation.image_size
    return TrainedHead(method.name, backbone.spec.name, size, thresholds, method.trained_weights(), method.shape)


def shape_metadata(shape: Shape) -> dict[str, str]:
    """Return what a head file says about the sizes of its network: nothing if they are the published ones."""
    chosen = {name: value for name, value in asdict(shape).items() if value is not None}
    return {"shape": json.dumps(chosen)} if chosen else {}


def _shape_from(metadata: Mapping[str, str]) -> Shape:
    chosen = json.loads(metadata.get("shape", "{}"))
    pairs = {name: tuple(map(int, chosen[name])) for name in ("widths", "channels") if name in chosen}
    if any(len(pair) != 2 for pair in pairs.values()):
        raise ValueError(f"shape {metadata['shape']}")
    grid = chosen.get("support_grid")
    return Shape(None if grid is None else int(grid), pairs.get("widths"), pairs.get("channels"))  # type: ignore[arg-type]


def save_head(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write an EMAT or CST head; its method and channels are added to the metadata unless they are given."""
    weights = without_prefix(tensors)
    write_tensors(path, weights, {"method": identify(weights), "channels": str(_channels(weights)), **metadata})


def identify(tensors: Mapping[str, Tensor]) -> str:
    """Return the method that an EMAT or CST head belongs to, from the names and shapes of its tensors.

    CST, its larger form and the ablation `emat-me` have the same tensors: all of them are reported as "cst".

    Raises:
        EmatError: If the tensors are not such a head; the message says what is missing from the closest one.
    """
    weights = without_prefix(tensors)
    given, channels = shapes_of(weights), _channels(weights)
    closest: tuple[int, str] = (len(given), "")
    for method in FORMS:
        expected = shapes_of(build(method, channels).state_dict())
        if expected == given:
            return method
        closest = min(closest, (len(set(expected.items()) ^ set(given.items())), method))
    if not closest[1]:
        raise EmatError("weights-do-not-fit", NO_HEAD)
    load_public(build(closest[1], channels), tensors)  # always raises, and says what does not fit
    raise AssertionError(closest)


def _channels(tensors: Mapping[str, Tensor]) -> int:
    for name in ("attn.kv.weight", "attn.qkv.weight"):
        weight = tensors.get(f"corrtransformer.0.{name}")
        if weight is not None and weight.ndim == 4 and weight.shape[1] > 0:
            return weight.shape[1]
    raise EmatError("weights-do-not-fit", NO_HEAD)


def _head_tensors(tensors: Mapping[str, Tensor], method: str) -> dict[str, Tensor]:
    """Only EMAT's and CST's names have the public prefix removed: in the other methods it is a part of the name."""
    return without_prefix(tensors) if method in ("", *FORMS) else dict(tensors)


def share_heads(stated: str | None, wanted: str) -> bool:
    """Say whether a head of the method `stated` is also a head of the method `wanted`, as it is."""
    own = {name: find_method(name).heads_of or name for name in (stated, wanted) if name in method_names()}
    return len(own) == 2 and own[stated] == own[wanted]  # type: ignore[index]


def _is_safetensors(path: Path) -> bool:
    with open_input(path) as file:
        return file.read(9)[8:9] == b"{"


# Names of heads, and the files that they stand for


def head_file(name: str) -> Path:
    """Return the file in EMAT_HOME that an imported or trained head is kept in."""
    return _head_weights(name).path


def _head_weights(name: str) -> WeightsSpec:
    return WeightsSpec(name, f"heads/{name}.safetensors")


def find_head(name: str | Path) -> Path:
    """Return the file of a head.

    Args:
        name: A file, "default", "default-light", "best", the name of a published head, or of one that was trained or
            imported here.

    Raises:
        EmatError: If there is no such head on this machine.
    """
    if Path(name).is_file():
        return Path(name)
    if str(name) == BEST_HEAD:
        name = best_head()
        say_once(f"the best head on this machine is {name}")
    if str(name) in (DEFAULT_HEAD, LIGHT_HEAD):
        return bundled_head(str(name))
    kept = head_file(str(name)) if Path(name).name == str(name) else Path(name)
    if kept.is_file():
        return kept
    if str(name) in PUBLISHED:
        archive = str(name).rpartition("-")[0]
        raise EmatError(
            "weights-missing", f"the published head {name} is not on this machine; run `emat weights fetch {archive}`"
        )
    if str(name) in BACKBONES:
        raise EmatError(
            "unknown-head",
            f"{name} is a backbone, not a head; give a head or the method prototype, with backbone {name}",
        )
    raise EmatError("unknown-head", f"{name} is neither a file nor a head here; heads are {', '.join(known_heads())}")


def best_head() -> str:
    """Return the name of the strongest head whose weights, and whose backbone's weights, are on this machine."""
    if find_weights(find_backbone(PUBLISHED_BACKBONE).weights) is None:
        return DEFAULT_HEAD
    return next((name for name in PUBLISHED if head_file(name).is_file()), DEFAULT_HEAD)


def bundled_head(name: str = DEFAULT_HEAD) -> Path:
    """Return the file of a head that comes with the package: `DEFAULT_HEAD` or `LIGHT_HEAD`."""
    stem = "default-mobilesam" if name == DEFAULT_HEAD and find_mobilesam() is not None else "default"
    path = Path(str(resources.files("emat") / "heads" / f"{stem}.safetensors"))
    if not path.is_file():
        raise EmatError("weights-missing", f"the default head is missing at {path}; install emat again")
    return path


def known_heads() -> list[str]:
    """Return the names that `load_head` accepts on this machine."""
    kept = sorted(path.stem for path in head_file("any").parent.glob("*.safetensors"))
    return [DEFAULT_HEAD, LIGHT_HEAD, *kept, *training_free_methods()]


# Importing checkpoints, and the archives of the authors


def archive_weights(name: str) -> WeightsSpec:
    """Return what the store knows one of `PUBLISHED_ARCHIVES` by.

    Of the addresses, the first is the published link. It may answer with a page that only a browser can follow; the
    second is where the archive's software keeps the content of the same file.
    """
    urls = (
        f"{HOST}/bitstreams/{BITSTREAMS[name]}/download",
        f"{HOST}/server/api/core/bitstreams/{BITSTREAMS[name]}/content",
    )
    advice = f"open {urls[0]} in a browser, bring the file here and run `emat weights import FILE --as {name}`"
    return WeightsSpec(name, f"heads/{name}.archive.json", urls=urls, advice=advice)


def fetch_archive(name: str, tell: Callable[[str], None], sha256: str | None = None) -> list[Path]:
    """Fetch the heads of a published archive, unless all of them are here.

    Args:
        name: One of `PUBLISHED_ARCHIVES`.
        tell: Called with a line for each head and for the backbone.
        sha256: The checksum that the archive must have; by default the one that was recorded first.

    Returns:
        The files of the heads.

    Raises:
        EmatError: If the archive is out of reach, is not the one that was recorded, or does not hold the heads.
    """

    def here() -> list[Path] | None:
        files = [head_file(f"{name}-fold{fold}") for fold in FOLDS]
        complete = all(path.is_file() for path in files) and find_weights(find_backbone(PUBLISHED_BACKBONE).weights)
        return files if complete else None

    return fetch_file(
        archive_weights(name), here, lambda file, source: import_archive(file, name, tell, source), sha256
    )


def import_archive(path: Path, name: str, tell: Callable[[str], None], source: str | None = None) -> list[Path]:
    """Take the heads, and the backbone, out of a published archive that is on this machine.

    Args:
        path: The archive, a zip or a tar.
        name: One of `PUBLISHED_ARCHIVES`.
        tell: Called with a line for each head and for the backbone.
        source: Where it came from; by default its file name.

    Returns:
        The files of the heads.

    Raises:
        EmatError: If it is damaged, is not the archive that was recorded first, or lacks the checkpoint of a fold.
    """
    mark, record = file_sha256(path), archive_weights(name).path
    if (first := recorded_sha256(name)) not in (None, mark):
        raise EmatError(
            "wrong-checksum",
            f"it has SHA-256 {mark[:12]}… and the archive that was trusted first has {str(first)[:12]}…; delete "
            f"{record} if the new one is right",
        )
    method = name.partition("-")[0]  # CST's own: its larger form has the same tensors
    checkpoints = _read_checkpoints(path)
    for tensors in checkpoints.values():  # before anything is stored
        _head_in(tensors, path, method)
    source = source or path.name
    # First, so that a killed process does not leave heads without the checksum that later archives must have.
    write_text(record, json.dumps({"sha256": mark, "bytes": path.stat().st_size, "source": source}))
    return [
        store_checkpoint(path, tensors, f"{name}-fold{fold}", method, source, mark, tell)
        for fold, tensors in checkpoints.items()
    ]


def recorded_sha256(name: str) -> str | None:
    """Return the SHA-256 of the archive that was trusted first; None if none was."""
    path = archive_weights(name).path
    try:
        return str(read_json(path)["sha256"]) if path.is_file() else None
    except (EmatError, KeyError, TypeError):
        raise EmatError("damaged-file", f"{path} is damaged; delete it to trust the next archive") from None


def name_for(file: Path, given: str | None) -> str:
    """Return the name that the head of a checkpoint is stored under: `given`, or the file's or its folder's name.

    Published checkpoints are all called `best.ckpt`, in folders such as `emat-coco/fold-0`.

    Raises:
        EmatError: If the name means something else already, or cannot be the name of a file.
    """
    taken = {BEST_HEAD, DEFAULT_HEAD, LIGHT_HEAD, MOBILESAM.name, *method_names(), *PUBLISHED_ARCHIVES}
    folder = file.absolute().parent
    published = f"{folder.parent.name}-{folder.name.replace('-', '')}"
    of_folder = published if published in PUBLISHED else folder.name
    named = [file.stem, of_folder] if given is None else [given]
    usable = next((name for name in named if re.fullmatch(r"\w[\w.-]*", name) and name not in taken), None)
    if usable is None:
        raise EmatError(
            "bad-head-name",
            f"{' and '.join(map(repr, named))} cannot be the name of a head: use letters, digits, dots and dashes, and "
            f"not {BEST_HEAD}, {DEFAULT_HEAD} or the name of a method, as in --as pascal-fold0",
        )
    return usable


def store_checkpoint(
    file: Path,
    tensors: dict[str, Tensor],
    name: str,
    method: str | None,
    source: str,
    source_sha256: str,
    tell: Callable[[str], None],
    overwrite: bool = False,
) -> Path:
    """Store the head of a public checkpoint under a name, and the backbone in it.

    Args:
        file: The checkpoint, as errors call it.
        tensors: Its tensors; those of the head start with "learner.".
        name: The name of the head.
        method: Its method; by default what its tensors say. CST's forms have equal tensors.
        source: Where it came from.
        source_sha256: The checksum of the file that it came in.
        tell: Called with a line for the head and one for the backbone.
        overwrite: Whether to replace another head of this name.

    Returns:
        The file of the head.

    Raises:
        EmatError: If the tensors are not a head of that method, or another head has the name.
    """
    head, method = _head_in(tensors, file, method)
    said = {"method": method, "channels": str(_channels(head))}
    if name in PUBLISHED:
        said["backbone"] = PUBLISHED_BACKBONE
        said["image_size"] = str(find_backbone(PUBLISHED_BACKBONE).image_size)
        said["settings"] = json.dumps({"fold": int(name[-1])})  # says which classes it was not trained on
    beside = None
    try:
        if backbone := _backbone_in(tensors, file, said.get("backbone")):
            spec, public = backbone
            kept = keep_tensors(spec.weights, backbone_tensors(spec, public, file), source, source_sha256)
            said["backbone"] = spec.name
            beside = f"{spec.name}: verified, {kept.path}"
    except EmatError as error:  # the head works with the same weights from another source
        beside = f"its backbone was not imported: {error}"
    stored = keep_tensors(_head_weights(name), head, source, source_sha256, said, overwrite)
    tell(f"{name}: a head of method {method}, {stored.path}")
    if beside is not None:
        tell(beside)
    return stored.path


def _head_in(tensors: Mapping[str, Tensor], file: Path, method: str | None) -> tuple[dict[str, Tensor], str]:
    """The tensors of the head in a checkpoint, and its method."""
    head = {key.removeprefix(HEAD): value for key, value in tensors.items() if key.startswith(HEAD)}
    identified = identify(head)
    if method is not None and shapes_of(build(method, 8).state_dict()) != shapes_of(build(identified, 8).state_dict()):
        raise EmatError("wrong-head", f"{file} has a head of the method {identified}, not of {method}")
    return head, method or identified


def _backbone_in(
    tensors: Mapping[str, Tensor], file: Path, name: str | None = None
) -> tuple[BackboneSpec, dict[str, Tensor]] | None:
    """The backbone in a checkpoint, and its tensors under their public names; None if there is nothing but a head."""
    rest = {key: value for key, value in tensors.items() if not key.startswith(HEAD)}
    if len(rest) in (0, len(tensors)):
        return None
    public = to_public(rest)
    return recognise(public, file, name), public


def _read_checkpoints(path: Path) -> dict[int, dict[str, Tensor]]:
    """The tensors of every fold's checkpoint. The backbone, which all of them hold, is kept with the first alone."""
    read: dict[int, dict[str, Tensor]] = {}
    first = None
    with temporary_folder(emat_home()) as folder:
        for fold, member in _checkpoints(path).items():
            file = folder / f"fold-{fold}.ckpt"
            take_member(path, member, file)
            tensors = read_tensors(file)
            file.unlink()  # each has 90 MB
            head = {key: value for key, value in tensors.items() if key.startswith(HEAD)}
            mark = digest({key: value for key, value in tensors.items() if key not in head})
            if first not in (None, mark):
                raise EmatError(
                    "unsafe-archive",
                    f"the backbone of fold {fold} in {path} differs from that of the others; do not use it",
                )
            read[fold] = tensors if first is None else head
            first = mark
    return read


def _checkpoints(path: Path) -> dict[int, ArchiveMember]:
    """The checkpoint of every fold; EmatError if one is missing or is there twice."""
    by_fold: dict[int, ArchiveMember] = {}
    for member in archive_members(path):
        match = CHECKPOINT.fullmatch(member.name)
        if match is None:
            continue
        fold = int(match[1])
        if fold in by_fold:
            raise EmatError(
                "given-twice", f"{path} holds two checkpoints of fold {fold}, {by_fold[fold].name} and {member.name}"
            )
        by_fold[fold] = member
    if missing := [fold for fold in FOLDS if fold not in by_fold]:
        raise EmatError(
            "wrong-file-kind", f"{path} holds no fold-{missing[0]}/best.ckpt; it is not one of the authors' archives"
        )
    return dict(sorted(by_fold.items()))


@dataclass(frozen=True)
class Training:
    """What a head's file says about its training."""

    fold: int | None = None  # the fold whose classes were kept for the test
    kept_apart: bool = False  # whether any classes were kept for a test
    classes: frozenset[str] | None = None  # keys of the trained classes; None if the file does not list them

    def seen(self, names: Sequence[str]) -> list[str]:
        """Return those of `names` that the head was trained on, as far as the file lists them."""
        return [name for name in names if class_key(name) in (self.classes or ())]

    def warning(self, head: str | Path, fold: int, names: Sequence[str]) -> str | None:
        """Return a warning if an evaluation of `head` on a fold uses classes that were trained; None if not.

        Args:
            head: What the warning calls the head.
            fold: The fold that is evaluated.
            names: The names of the fold's classes.
        """
        if self.classes is not None:
            seen = self.seen(names)
            return f"{head} has seen classes of fold {fold} in training: {', '.join(seen)}" if seen else None
        if self.fold in (None, fold):
            return None
        return f"{head} was trained for fold {self.fold}; it has seen the classes of fold {fold}"


def training_of(name: str | Path) -> Training:
    """Return how a head was trained; everything is unknown if its file does not say it."""
    metadata = head_metadata(name)
    try:
        options = json.loads(metadata.get("settings", "{}"))
        fold, classes = options.get("fold"), json.loads(metadata.get("classes", "null"))
        return Training(
            None if fold is None else int(fold),
            fold is not None or bool(options.get("exclude_classes")),
            None if classes is None else frozenset(class_key(str(name)) for name in classes),
        )
    except (ValueError, TypeError, AttributeError):
        return Training()  # the metadata of another program


@dataclass(frozen=True)
class StartingHead:
    """A head whose weights a training run starts from."""

    head: TrainedHead
    training: Training
    sha256: str  # of its file
    metadata: Mapping[str, str] = field(default_factory=dict)  # of its file

    def provenance(self, classes: Sequence[str]) -> dict[str, str]:
        """Return what the files of the run say about this start: its file, and the classes of both trainings."""
        before = {"sha256": self.sha256}
        before |= {key: self.metadata[key] for key in ("trained_tasks", "command") if key in self.metadata}
        return {"started_from": json.dumps(before), "classes": json.dumps(self._all_classes(classes))}

    def weights_for(self, method: Method) -> dict[str, Tensor]:
        """Return the head's weights, with zeros for correlation channels of `method` that it was not trained on."""
        wanted = method.trained_weights()
        return {name: _with_more_channels(tensor, wanted.get(name)) for name, tensor in self.head.tensors.items()}

    def _all_classes(self, trained: Sequence[str]) -> list[str] | None:
        """The classes of both trainings; None if the file does not list its own."""
        if self.training.classes is None:
            return None
        keys = {class_key(name) for name in trained}
        earlier = (name for name in json.loads(self.metadata["classes"]) if class_key(name) not in keys)
        return [*trained, *earlier]


def _with_more_channels(weight: Tensor, wanted: Tensor | None) -> Tensor:
    """Pad a weight (out, C, ...) with zeros to the number of channels of `wanted`, if that has more."""
    if wanted is None or weight.ndim < 2 or weight.ndim != wanted.ndim or weight.shape[1] >= wanted.shape[1]:
        return weight
    more = weight.new_zeros(len(weight), wanted.shape[1] - weight.shape[1], *weight.shape[2:])
    return torch.cat([weight, more], dim=1)


def starting_head(name: str | None, method: str, backbone: str | None) -> StartingHead | None:
    """Load the head that a training run starts from.

    A head for the first part of a stack can start a head for the stack: it does not look at the channels of the other
    parts at first, and learns to.

    Args:
        name: The head's file or name; None if the run starts from random weights.
        method: The method that the run trains.
        backbone: The backbone that the run uses.

    Raises:
        EmatError: If the head is for another method or backbone.
    """
    if name is None:
        return None
    metadata = head_metadata(name)
    own_backbone = metadata.get("backbone", backbone)
    head = load_head(name, own_backbone)
    if backbone is not None and own_backbone is not None and backbone.startswith(f"{own_backbone}+"):
        own_backbone = backbone
    for word, theirs, ours in (("method", head.method, method), ("backbone", own_backbone, backbone)):
        if theirs != ours and not (word == "method" and share_heads(theirs, method)):
            raise EmatError(
                "wrong-head", f"{name} is a head for the {word} {theirs}, not {ours}; train with --{word} {theirs}"
            )
    return StartingHead(head, training_of(name), file_sha256(find_head(name)), metadata)
