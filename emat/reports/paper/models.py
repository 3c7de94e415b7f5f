"""The rows of the paper's tables, and the heads that are measured for them.

A row is measured if a head for each fold is found. Unless the user chooses, published heads in emat's home folder come
first, and then the fold heads that come with emat.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from emat.errors import EmatError
from emat.evaluation.run import EvaluatedMethod, load_folds
from emat.methods.head_training import training_of
from emat.methods.trained_head import find_head, head_file, is_training_free
from emat.model.network import Network

FOLD_IN_NAME = "{fold}"
PROTOTYPE = "Prototype"
FSCS_ROWS = ("PANet", "PFENet", "HSNet", "ASNet", "CST", "CST*", "EMAT")
ABLATION_ROWS = {  # of Table 2: the label of a model, and its row
    "CST*": "CST* 145",
    "CST*-large": "CST* 325",
    "EMAT-ME": "EMAT ME",
    "EMAT-ME-LD": "EMAT ME LD",
    "EMAT": "EMAT ME LD PE",
}
SEGMENTING_ROW = "EMAT_s"
OWN_NAMES = {  # how the heads of a row are called: the published ones, and those that come with emat
    "EMAT": ("emat", "emat"),
    "CST*": ("cst", "cst"),
    "CST*-large": ("cst-large", "cst-large"),
    "EMAT-ME": ("emat-me", "emat-me"),
    "EMAT-ME-LD": ("emat-me-ld", "emat-me-ld"),
    SEGMENTING_ROW: ("ematseg", "emat-s"),
}
CHOICES = ("method", "backbone", "size")


@dataclass(frozen=True)
class PaperModel:
    """What is measured for a row: a head for each fold, or a method that needs no training."""

    label: str
    head: str | None  # {fold} stands for the number of the fold
    method: str | None = None
    backbone: str | None = None
    size: int | None = None
    comes_with_emat: bool = False

    def head_of(self, fold: int) -> str | None:
        """Return the file or name of a fold's head."""
        return None if self.head is None else self.head.replace(FOLD_IN_NAME, str(fold))

    def folds_here(self, folds: Sequence[int]) -> tuple[list[int], str | None]:
        """Return the folds that have a head on this machine, and a sentence about the others if there are any."""
        absent: dict[int, str] = {}
        for fold in folds:
            head = self.head_of(fold)
            try:
                if head is not None and not is_training_free(head):
                    find_head(head)
            except EmatError as error:
                absent[fold] = str(error)
        if not absent:
            return list(folds), None
        numbers = ", ".join(map(str, absent))
        reason = f"no head for fold{'s' * (len(absent) > 1)} {numbers}: {next(iter(absent.values()))}"
        return [fold for fold in folds if fold not in absent], reason

    def load(self, folds: Sequence[int], device: str) -> dict[int, EvaluatedMethod]:
        """Load the method of each fold; folds with the same head share it.

        Raises:
            EmatError: If a head or its backbone cannot be loaded.
        """
        heads = {fold: self.head_of(fold) for fold in folds}
        return load_folds(heads, self.method, backbone=self.backbone, image_size=self.size, device=device)

    def warnings(self, classes_of: Mapping[int, Sequence[str]]) -> list[str]:
        """Return a sentence for each fold whose head was trained on the names `classes_of` that fold."""
        found = []
        for fold, names in classes_of.items():
            head = self.head_of(fold)
            if head is not None and not is_training_free(head):
                found.append(training_of(head).warning(f"{self.label} ({head})", fold, names))
        return [each for each in found if each is not None]


def support_tokens(evaluated: EvaluatedMethod) -> tuple[int, int] | None:
    """Return t_s of the two attention layers of a method; None if it has none."""
    network = getattr(evaluated.method, "network", None)
    if not isinstance(network, Network):
        return None
    form = network.form
    later = form.support_grid // form.windows[0].side
    return form.support_grid**2 + 1, later**2 + 1


def parse_model(word: str) -> PaperModel:
    """Read a model of the command line: LABEL=HEAD, and after commas method=, backbone= or size=.

    Raises:
        EmatError: If it has no label or no head, or a choice that is not one of these.

    >>> parse_model("EMAT=emat-fold{fold}.safetensors,size=320").size
    320
    """
    label, equals, rest = word.partition("=")
    head, *choices = rest.split(",")
    if not (equals and label.strip() and head.strip()):
        raise EmatError(f"{word!r} is not a model; write LABEL=HEAD, such as 'EMAT=emat-pascal-fold{{fold}}'")
    given = dict(choice.partition("=")[::2] for choice in choices)
    unknown = [name for name in given if name not in CHOICES or not given[name]]
    if unknown or not given.get("size", "1").isdecimal():
        raise EmatError(f"{word!r}: after the head, write {', '.join(f'{name}=...' for name in CHOICES)}")
    size = given.get("size")
    head = head.strip()
    free = is_training_free(head)
    return PaperModel(
        label.strip(),
        None if free else head,
        given.get("method") or (head if free else None),
        given.get("backbone"),
        None if size is None else int(size),
    )


def models_here(dataset: str, folds: Sequence[int]) -> list[PaperModel]:
    """Return the models of this machine: published heads, else heads that come with emat, and the prototype."""
    found = []
    for label, (published, own) in OWN_NAMES.items():
        named = f"{published}-{dataset}-fold{FOLD_IN_NAME}"
        if all(head_file(named.replace(FOLD_IN_NAME, str(fold))).is_file() for fold in folds):
            found.append(PaperModel(label, named))
            continue
        folder = fold_head_folder()
        if folder is None or dataset != "pascal":
            continue
        pattern = str(folder / f"{own}-fold{FOLD_IN_NAME}.safetensors")
        if all(Path(pattern.replace(FOLD_IN_NAME, str(fold))).is_file() for fold in folds):
            found.append(PaperModel(label, pattern, own, comes_with_emat=True))
    return [*found, PaperModel(PROTOTYPE, None, "prototype")]


def fold_head_folder() -> Path | None:
    """Return the folder of the heads for the folds of PASCAL-5i: in an installed package, or in a checkout."""
    package = Path(str(resources.files("emat")))
    for folder in (package / "heads" / "pascal", package.parent / "benchmarks" / "heads"):
        if folder.is_dir():
            return folder
    return None
