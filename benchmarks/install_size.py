"""How much each extra adds to an installation: the packages it needs beside emat's own, as they are installed here.

python benchmarks/install_size.py
"""

import re
from importlib import metadata
from pathlib import Path
from subprocess import run
from sys import executable

from packaging.requirements import Requirement

EXTRAS = (
    *("train", "data", "studio", "report", "science", "heic", "measure", "video", "export", "serve", "hub"),
    *("ray", "cvat", "fiftyone", "napari"),
)


def name_of(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def needed(requirements: list[str], extras: frozenset[str] = frozenset()) -> set[str]:
    """The names of all packages that requirements bring, as far as they are installed."""
    found: set[str] = set()
    pending = [(Requirement(text), extras) for text in requirements]
    while pending:
        requirement, wanted = pending.pop()
        if requirement.marker and not any(requirement.marker.evaluate({"extra": each}) for each in (*wanted, "")):
            continue
        name = name_of(requirement.name)
        if name in found:
            continue
        try:
            inner = metadata.requires(requirement.name) or []
        except metadata.PackageNotFoundError:
            found.add(f"({name} is not installed here)")
            continue
        found.add(name)
        pending += [(Requirement(text), frozenset(requirement.extras)) for text in inner]
    return found


def megabytes(names: set[str]) -> float:
    total = 0
    for name in names:
        if name.startswith("("):
            continue
        for file in metadata.files(name) or ():
            path = Path(str(file.locate()))
            total += path.stat().st_size if path.is_file() else 0
    return total / 1e6


def main() -> None:
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    import tomllib

    project = tomllib.loads(text)["project"]
    base = needed(project["dependencies"])
    print(f"emat alone: {megabytes(base):.0f} MB, {len(base)} packages")
    for extra in EXTRAS:
        more = needed(project["optional-dependencies"][extra]) - base
        absent = [name for name in more if name.startswith("(")]
        print(f"[{extra}]: {megabytes(more):.0f} MB more, {len(more)} packages {' '.join(absent)}")
    code = "import time; t = time.process_time(); import emat; print(time.process_time() - t)"
    taken = [float(run([executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(3)]
    print(f"import emat: {min(taken):.3f} s of processor time")


if __name__ == "__main__":
    main()
