"""The names of heads, and the files that they stand for.

"default" comes with the package. A published head is called by its archive and fold, such as "emat-coco-fold0", and is
here once `emat weights fetch emat-coco` brought it. Others were imported or trained on this machine. "best" is the
first of `BEST_ORDER` that is here together with its backbone's weights, and "default" where none is.
"""

import sys
from functools import cache
from importlib import resources
from pathlib import Path

from emat.backbone.registry import find_backbone
from emat.backbone.weights import find_weights
from emat.errors import EmatError
from emat.files import emat_home
from emat.methods.registry import training_free_methods

DEFAULT_HEAD = "default"
BEST_HEAD = "best"
PUBLISHED_BACKBONE = "dinov2-s"
FOLDS = range(4)

# Strongest first. COCO's heads saw 60 classes in training and PASCAL's 15, and the paper reports EMAT above CST* on
# both benchmarks. The folds of one benchmark differ only in the classes that they were not trained on.
PUBLISHED_ARCHIVES = ("emat-coco", "emat-pascal", "cst-coco", "cst-pascal")
PUBLISHED = tuple(f"{archive}-fold{fold}" for archive in PUBLISHED_ARCHIVES for fold in FOLDS)
BEST_ORDER = PUBLISHED


def head_file(name: str) -> Path:
    """Return the file in EMAT_HOME that an imported or trained head is kept in."""
    return emat_home() / "heads" / f"{name}.safetensors"


def find_head(name: str | Path) -> Path:
    """Return the file of a head.

    Args:
        name: A file, "default", "best", the name of a published head, or of one that was trained or imported here.

    Raises:
        EmatError: If there is no such head on this machine.
    """
    if Path(name).is_file():
        return Path(name)
    if str(name) == BEST_HEAD:
        name = best_head()
        _say_once(f"the best head on this machine is {name}")
    if str(name) == DEFAULT_HEAD:
        return bundled_head()
    kept = head_file(str(name)) if Path(name).name == str(name) else Path(name)
    if kept.is_file():
        return kept
    if str(name) in PUBLISHED:
        archive = str(name).rpartition("-")[0]
        raise EmatError(f"the published head {name} is not on this machine; run `emat weights fetch {archive}`")
    raise EmatError(f"{name} is neither a file nor a head here; heads are {', '.join(known_heads())}")


def best_head() -> str:
    """Return the name of the strongest head whose weights, and whose backbone's weights, are on this machine."""
    if find_weights(find_backbone(PUBLISHED_BACKBONE)) is None:
        return DEFAULT_HEAD
    return next((name for name in BEST_ORDER if head_file(name).is_file()), DEFAULT_HEAD)


def bundled_head() -> Path:
    """Return the file of the head that comes with the package."""
    path = Path(str(resources.files("emat") / "heads" / f"{DEFAULT_HEAD}.safetensors"))
    if not path.is_file():
        raise EmatError(f"the default head is missing at {path}; install emat again")
    return path


def known_heads() -> list[str]:
    """Return the names that `load_head` accepts on this machine."""
    kept = sorted(path.stem for path in head_file("any").parent.glob("*.safetensors"))
    return [DEFAULT_HEAD, *kept, *training_free_methods()]


@cache
def _say_once(line: str) -> None:
    """A head's name is looked up several times while it is loaded."""
    print(f"emat: {line}", file=sys.stderr, flush=True)
