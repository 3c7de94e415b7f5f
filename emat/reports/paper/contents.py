"""What the paper has: every table and figure, the tasks that are measured for it, and the models of its rows.

A row is measured if a head for each fold is found. Unless the user chooses, published heads in emat's home folder come
first, and then the fold heads that come with emat.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

from emat.errors import EmatError
from emat.evaluation.run import EvaluatedMethod, load_folds
from emat.methods.trained_head import find_head, head_file, is_training_free, training_of
from emat.model.network import Network
from emat.tasks.sampling import TaskRequest
from emat.tasks.task import Setting

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
BOTH = ("pascal", "coco")
SMALL_SPLITS = ("0-5", "5-10", "10-15")  # percent of the photo
ALL_SMALL = "0-15"
CURVE_WAYS, CURVE_SHOTS = (1, 2, 3, 4, 5), 5
NO_THETA = 0.0
COMPARED = {"figure-1", "figure-4", "figure-6"}  # these show EMAT beside one other model
BESIDE_EMAT = ("CST*", "CST")  # which one, if it is measured


@dataclass(frozen=True)
class TaskSpec(TaskRequest):
    """Tasks of all folds that are measured under the same conditions."""

    object_size: str | None = field(default=None, kw_only=True)  # percent of the photo

    def words(self) -> str:
        """Describe the tasks."""
        parts = [f"{self.way}-way {self.shot}-shot", f"{self.setting.value.replace('-', ' ')} setting"]
        parts += [f"objects of {self.object_size} %"] if self.object_size else []
        parts += ["query has the class"] if self.query_has_class else []
        parts += ["any class may become a way"] if self.all_classes else []
        parts += ["without theta"] if self.theta == NO_THETA else []
        return ", ".join(parts)


THREE_SETTINGS = tuple(TaskSpec(2, 1, setting) for setting in Setting)
SMALL_OBJECTS = TaskSpec(1, 1, object_size=ALL_SMALL, query_has_class=True)
SIZE_SPLITS = tuple(TaskSpec(1, 1, object_size=split, query_has_class=True) for split in SMALL_SPLITS)
CURVES = tuple(TaskSpec(way, CURVE_SHOTS, Setting.FULLY_AUGMENTED) for way in CURVE_WAYS)
MASKS_ONLY = tuple(TaskSpec(1, shot, query_has_class=True) for shot in (1, 5))
ALL_CLASSES = TaskSpec(2, 1, Setting.FULLY_AUGMENTED, all_classes=True)
WITH_THETA = (  # Figure 8: with one way, the partially augmented setting is the original one
    TaskSpec(2, 1, Setting.PARTIALLY_AUGMENTED),
    TaskSpec(1, 1, Setting.FULLY_AUGMENTED),
    TaskSpec(2, 1, Setting.FULLY_AUGMENTED),
)
WITHOUT_THETA = tuple(replace(spec, theta=NO_THETA) for spec in WITH_THETA)


@dataclass(frozen=True)
class Part:
    """A table or figure."""

    name: str
    title: str
    specs: tuple[TaskSpec, ...] = ()
    rows: tuple[str, ...] | None = None  # the models that it is about; None for all that are compared
    datasets: tuple[str, ...] = BOTH
    needs_data: bool = True

    @property
    def is_figure(self) -> bool:
        """Whether it is a figure."""
        return self.name.startswith("figure")


PARTS: tuple[Part, ...] = (
    Part("table-1", "Comparison of FS-CS methods, three settings", THREE_SETTINGS),
    Part("table-2", "Ablation study of EMAT", (THREE_SETTINGS[0], SMALL_OBJECTS), tuple(ABLATION_ROWS), ("pascal",)),
    Part("table-3", "Comparison of FS-CS methods by fold, PASCAL-5i", THREE_SETTINGS, None, ("pascal",)),
    Part("table-4", "Comparison of FS-CS methods by fold, COCO-20i", THREE_SETTINGS, None, ("coco",)),
    Part("table-5", "Comparison of few-shot segmentation (FS-S) methods", MASKS_ONLY, (SEGMENTING_ROW, "EMAT")),
    Part("table-readings", 'The two readings of "fully augmented"', (THREE_SETTINGS[2], ALL_CLASSES), ("EMAT",)),
    Part("table-attention", "Attention memory and runtime against CST at equal t_s", needs_data=False),
    Part("figure-1", "Small objects", (SMALL_OBJECTS,)),
    Part("figure-2", "A support set in the three settings"),
    Part("figure-3", "The network", needs_data=False),
    Part("figure-4", "Queries with none, some and all support classes; a task in three settings", THREE_SETTINGS),
    Part("figure-5", "Masks at the resolutions of the attention layers"),
    Part("figure-6", "Accuracy and mIoU by object size", SIZE_SPLITS),
    Part("figure-7", "How each setting augments a task"),
    Part("figure-8", "Object size filtering (theta) and the augmented settings", WITH_THETA + WITHOUT_THETA, ("EMAT",)),
    Part("figure-9", "1- to 5-way 5-shot, fully augmented setting", CURVES),
    Part("figure-10", "Object sizes by fold"),
    Part("figure-dense", "Training memory as the mask grows to the whole photo", needs_data=False),
)  # fmt: skip


def name_folds(folds: Sequence[int]) -> str:
    """Name some folds.

    >>> name_folds([0]), name_folds([0, 2])
    ('fold 0', 'folds 0 and 2')
    """
    *others, last = map(str, folds)
    return f"folds {', '.join(others)} and {last}" if others else f"fold {last}"


def choose_parts(dataset: str | None, only: str | None = None) -> tuple[Part, ...]:
    """Return the parts that are made for a data set, in the paper's order.

    Args:
        dataset: "pascal" or "coco"; None for the figures that need no data set.
        only: Their names with commas between them; None for all.

    Raises:
        EmatError: If a name is not a part, or not one of this data set.
    """
    possible = {
        part.name: part
        for part in PARTS
        if (dataset in part.datasets if dataset else part.is_figure and not part.needs_data)
    }
    if only is None:
        return tuple(possible.values())
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    for name in wanted:
        if name not in possible:
            raise EmatError("unknown-choice", f"--only has {name!r}; what can be made here is {', '.join(possible)}")
    if not wanted:
        raise EmatError("missing-option", "--only names nothing; write for example --only table-1,figure-6")
    return tuple(part for name, part in possible.items() if name in wanted)


def other_model(labels: Sequence[str]) -> str | None:
    """Return the model that is shown beside EMAT: CST*, CST, or else the first that is measured."""
    others = [label for label in labels if label in compared(labels) and label != "EMAT"]
    return next((label for label in (*BESIDE_EMAT, *others) if label in others), None)


def compared(labels: Sequence[str]) -> list[str]:
    """Return the models that classify and segment and are not only steps of the ablation."""
    apart = {SEGMENTING_ROW, *ABLATION_ROWS} - set(FSCS_ROWS)
    return [label for label in labels if label not in apart]


def models_of(part: Part, labels: Sequence[str]) -> list[str]:
    """Return those of the measured models that a part is about."""
    if part.rows is not None:
        return [label for label in labels if label in part.rows]
    if part.name in COMPARED:
        return [label for label in labels if label in ("EMAT", other_model(labels))]
    return compared(labels)


def specs_of(parts: Sequence[Part], label: str, labels: Sequence[str]) -> list[TaskSpec]:
    """Return what has to be measured with one of the models for these parts, each once."""
    return list(dict.fromkeys(spec for part in parts if label in models_of(part, labels) for spec in part.specs))


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
        warnings = []
        for fold, names in classes_of.items():
            head = self.head_of(fold)
            if head is not None and not is_training_free(head):
                warnings.append(training_of(head).warning(f"{self.label} ({head})", fold, names))
        return [warning for warning in warnings if warning is not None]


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
        raise EmatError(
            "unclear-option", f"{word!r} is not a model; write LABEL=HEAD, such as 'EMAT=emat-pascal-fold{{fold}}'"
        )
    given = dict(choice.partition("=")[::2] for choice in choices)
    unknown = [name for name in given if name not in CHOICES or not given[name]]
    if unknown or not given.get("size", "1").isdecimal():
        raise EmatError(
            "unclear-option", f"{word!r}: after the head, write {', '.join(f'{name}=...' for name in CHOICES)}"
        )
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
    models = []
    for label, (published, own) in OWN_NAMES.items():
        named = f"{published}-{dataset}-fold{FOLD_IN_NAME}"
        if all(head_file(named.replace(FOLD_IN_NAME, str(fold))).is_file() for fold in folds):
            models.append(PaperModel(label, named))
            continue
        folder = fold_head_folder()
        if folder is None or dataset != "pascal":
            continue
        pattern = str(folder / f"{own}-fold{FOLD_IN_NAME}.safetensors")
        if all(Path(pattern.replace(FOLD_IN_NAME, str(fold))).is_file() for fold in folds):
            models.append(PaperModel(label, pattern, own, comes_with_emat=True))
    return [*models, PaperModel(PROTOTYPE, None, "prototype")]


def fold_head_folder() -> Path | None:
    """Return the folder of the heads for the folds of PASCAL-5i: in an installed package, or in a checkout."""
    package = Path(str(resources.files("emat")))
    for folder in (package / "heads" / "pascal", package.parent / "benchmarks" / "heads"):
        if folder.is_dir():
            return folder
    return None
