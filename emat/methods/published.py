"""The authors' checkpoints: one archive a method and benchmark, with a checkpoint for each fold.

`fetch_archive` downloads an archive, takes every `fold-N/best.ckpt` in it and stores the head of each, and the backbone
that is beside it. Only tensors are read from a checkpoint. The authors publish no checksums: the first archive is
trusted and its SHA-256 is recorded, and an archive with another one is refused from then on.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from emat.archives import ArchiveMember, archive_members, take_member
from emat.backbone.registry import find_backbone, recognise
from emat.backbone.weights import LocalWeights, find_weights, store_weights, to_public, verified
from emat.download import download, forget_download
from emat.errors import EmatError
from emat.files import emat_home, file_sha256, locked, read_text, temporary_folder, write_text
from emat.methods.trained_head import FOLDS, PUBLISHED_BACKBONE, head_file, identify, save_head
from emat.model.network import build
from emat.tensor_files import digest, read_tensors

HOST = "https://tudatalib.ulb.tu-darmstadt.de"
BITSTREAMS = {
    "emat-pascal": "43b39fee-dc45-4854-b296-cdd6cd9a8991",
    "emat-coco": "7c4fabd6-583a-4ade-ba55-adbdcdee198a",
    "cst-pascal": "f888213a-9033-465e-995c-0dd0822df653",
    "cst-coco": "f7981cd7-7d11-4a74-8b6c-478f0b3b1250",
}
CHECKPOINT = re.compile(r"(?:.*/)?fold-([0-3])/best\.ckpt")
HEAD = "learner."  # what the public checkpoints call the trained part

Tell = Callable[[str], None]


@dataclass(frozen=True)
class StoredHead:
    """A head that was taken from a checkpoint, and its backbone or the reason why that was not taken."""

    name: str
    method: str
    path: Path
    backbone: LocalWeights | None = None
    problem: str | None = None


def archive_urls(name: str) -> tuple[str, ...]:
    """Return the addresses of an archive, in the order in which they are tried.

    The first one is the published link. It may answer with a page that only a browser can follow; the second is where
    the archive's software keeps the content of the same file.
    """
    return (
        f"{HOST}/bitstreams/{BITSTREAMS[name]}/download",
        f"{HOST}/server/api/core/bitstreams/{BITSTREAMS[name]}/content",
    )


def fetch_archive(name: str, tell: Tell, sha256: str | None = None) -> list[Path]:
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
    files = [head_file(f"{name}-fold{fold}") for fold in FOLDS]
    # Named for its address, so that a part from one is never continued from another.
    arriving = [emat_home() / "heads" / f"{name}.archive-{number}" for number in range(len(archive_urls(name)))]
    with locked(
        emat_home() / "heads" / f"{name}.lock", lambda: tell(f"waiting for another process that fetches {name}")
    ):
        if all(path.is_file() for path in files) and find_weights(find_backbone(PUBLISHED_BACKBONE)):
            for arrived in arriving:  # of a process that was killed after it had stored the heads
                forget_download(arrived)
            return files
        failures = []
        for url, arrived in zip(archive_urls(name), arriving, strict=True):
            try:
                download(url, arrived, sha256)
            except EmatError as error:
                failures.append(str(error))
                continue
            try:
                found = import_archive(arrived, name, tell, url)
                for other in arriving:
                    forget_download(other)
                return found
            except EmatError as error:
                failures.append(f"the file from {url} cannot be used: {error}")
            finally:
                forget_download(arrived)
    raise EmatError(
        f"{name} was not fetched: {'; '.join(failures)}; open {archive_urls(name)[0]} in a browser, bring the file "
        f"here and run `emat weights import FILE --as {name}`"
    )


def import_archive(path: Path, name: str, tell: Tell, source: str | None = None) -> list[Path]:
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
    mark = file_sha256(path)
    _check_recorded(name, mark)
    method = name.partition("-")[0]  # CST's own: its larger form has the same tensors
    read = _read_checkpoints(path)
    for tensors in read.values():  # before anything is stored
        _head_in(tensors, path, method)
    metadata = {
        "backbone": PUBLISHED_BACKBONE,
        "image_size": str(find_backbone(PUBLISHED_BACKBONE).image_size),
        "source": source or path.name,
        "source_sha256": mark,
    }
    stored = []
    # First, so that a killed process does not leave heads without the checksum that later archives must have.
    write_text(_record(name), json.dumps({"sha256": mark, "bytes": path.stat().st_size, "source": source or path.name}))
    for fold, tensors in read.items():
        trained = {"settings": json.dumps({"fold": fold})}  # says which classes it was not trained on
        stored.append(store_checkpoint(path, tensors, f"{name}-fold{fold}", method, metadata | trained))
        tell_stored(stored[-1], tell)
    return [head.path for head in stored]


def _read_checkpoints(path: Path) -> dict[int, dict[str, Tensor]]:
    """The tensors of every fold's checkpoint. The backbone, which all of them hold, is kept with the first alone."""
    members = _checkpoints(path)
    read: dict[int, dict[str, Tensor]] = {}
    first = None
    with temporary_folder(emat_home()) as folder:
        for fold, member in members.items():
            file = folder / f"fold-{fold}.ckpt"
            take_member(path, member, file)
            tensors = read_tensors(file)
            file.unlink()  # each has 90 MB
            head = {key: value for key, value in tensors.items() if key.startswith(HEAD)}
            mark = digest({key: value for key, value in tensors.items() if key not in head})
            if first not in (None, mark):
                raise EmatError(f"the backbone of fold {fold} in {path} differs from that of the others; do not use it")
            read[fold] = tensors if first is None else head
            first = mark
    return read


def store_checkpoint(
    file: Path,
    tensors: dict[str, Tensor],
    name: str,
    method: str | None,
    metadata: dict[str, str],
) -> StoredHead:
    """Store the head of a public checkpoint under a name, and the backbone in it.

    Args:
        file: The checkpoint, as errors call it.
        tensors: Its tensors; those of the head start with "learner.".
        name: The name of the head.
        method: Its method; by default what its tensors say. CST's forms have equal tensors.
        metadata: What the head's file says beside its method and channels.

    Raises:
        EmatError: If the tensors are not a head of that method.
    """
    head, chosen = _head_in(tensors, file, method)
    rest = {key: value for key, value in tensors.items() if not key.startswith(HEAD)}
    save_head(head_file(name), head, {"method": chosen, **metadata})
    stored = StoredHead(name, chosen, head_file(name))
    if not rest:
        return stored
    try:
        public = to_public(rest)
        spec = recognise(public, file, metadata.get("backbone"))
        backbone = store_weights(spec, public, metadata["source"], metadata.get("source_sha256") or file_sha256(file))
        verified(spec, backbone)
    except EmatError as error:  # the head works with the same weights from another source
        return StoredHead(stored.name, stored.method, stored.path, None, str(error))
    return StoredHead(stored.name, stored.method, stored.path, backbone)


def tell_stored(head: StoredHead, tell: Tell) -> None:
    """Say in lines what was stored."""
    tell(f"{head.name}: a head of method {head.method}, {head.path}")
    if head.backbone is not None:
        tell(f"{head.backbone.path.stem}: verified, {head.backbone.path}")
    if head.problem is not None:
        tell(f"its backbone was not imported: {head.problem}")


def recorded_sha256(name: str) -> str | None:
    """Return the SHA-256 of the archive that was trusted first; None if none was."""
    path = _record(name)
    if not path.is_file():
        return None
    try:
        return str(json.loads(read_text(path))["sha256"])
    except (ValueError, KeyError, TypeError):
        raise EmatError(f"{path} is damaged; delete it to trust the next archive") from None


def _head_in(tensors: dict[str, Tensor], file: Path, method: str | None) -> tuple[dict[str, Tensor], str]:
    """The tensors of the head in a checkpoint, and its method."""
    head = {key.removeprefix(HEAD): value for key, value in tensors.items() if key.startswith(HEAD)}
    found = identify(head)
    if method is not None and not _same_tensors(method, found):
        raise EmatError(f"{file} has a head of the method {found}, not of {method}")
    return head, method or found


def _check_recorded(name: str, mark: str) -> None:
    known = recorded_sha256(name)
    if known is not None and known != mark:
        raise EmatError(
            f"it has SHA-256 {mark[:12]}… and the archive that was trusted first has {known[:12]}…; delete "
            f"{_record(name)} if the new one is right"
        )


def _record(name: str) -> Path:
    return emat_home() / "heads" / f"{name}.archive.json"


def _checkpoints(path: Path) -> dict[int, ArchiveMember]:
    """The checkpoint of every fold; EmatError if one is missing or is there twice."""
    found: dict[int, ArchiveMember] = {}
    for member in archive_members(path):
        match = CHECKPOINT.fullmatch(member.name)
        if match is None:
            continue
        fold = int(match[1])
        if fold in found:
            raise EmatError(f"{path} holds two checkpoints of fold {fold}, {found[fold].name} and {member.name}")
        found[fold] = member
    if missing := [fold for fold in FOLDS if fold not in found]:
        raise EmatError(f"{path} holds no fold-{missing[0]}/best.ckpt; it is not one of the authors' archives")
    return dict(sorted(found.items()))


def _same_tensors(method: str, other: str) -> bool:
    """Whether the heads of two methods have tensors of the same shapes, such as cst and cst-large."""
    shapes = [{name: t.shape for name, t in build(one, 8).state_dict().items()} for one in (method, other)]
    return shapes[0] == shapes[1]
