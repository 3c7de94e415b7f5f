"""What `emat reproduce` makes: every table and figure, and what has to be measured for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from emat.errors import EmatError
from emat.reports.paper.models import ABLATION_ROWS, FSCS_ROWS, SEGMENTING_ROW
from emat.tasks.sampling import TaskRequest
from emat.tasks.task import Setting

BOTH = ("pascal", "coco")
SMALL_SPLITS = ("0-5", "5-10", "10-15")  # percent of the photo
ALL_SMALL = "0-15"
WAYS, CURVE_SHOTS = (1, 2, 3, 4, 5), 5
NO_THETA = 0.0


@dataclass(frozen=True)
class Need:
    """Tasks of all folds that are measured under the same conditions."""

    way: int
    shot: int
    setting: Setting = Setting.ORIGINAL
    object_size: str | None = None  # percent of the photo
    query_has_class: bool = False
    all_classes: bool = False
    theta: float | None = None  # None for the published one

    def request(self, tasks: int | None) -> TaskRequest:
        """Return the request that draws so many tasks a fold; None for the published number."""
        return TaskRequest(
            self.way,
            self.shot,
            self.setting,
            tasks,
            query_has_class=self.query_has_class,
            all_classes=self.all_classes,
            theta=self.theta,
        )

    def words(self) -> str:
        """Describe the tasks."""
        parts = [f"{self.way}-way {self.shot}-shot", f"{self.setting.value.replace('-', ' ')} setting"]
        parts += [f"objects of {self.object_size} %"] if self.object_size else []
        parts += ["query has the class"] if self.query_has_class else []
        parts += ["any class may become a way"] if self.all_classes else []
        parts += ["without theta"] if self.theta == NO_THETA else []
        return ", ".join(parts)


THREE_SETTINGS = tuple(Need(2, 1, setting) for setting in Setting)
SMALL = Need(1, 1, object_size=ALL_SMALL, query_has_class=True)
SIZES = tuple(Need(1, 1, object_size=split, query_has_class=True) for split in SMALL_SPLITS)
CURVES = tuple(Need(way, CURVE_SHOTS, Setting.FULLY_AUGMENTED) for way in WAYS)
MASKS_ONLY = tuple(Need(1, shot, query_has_class=True) for shot in (1, 5))
ALL_CLASSES = Need(2, 1, Setting.FULLY_AUGMENTED, all_classes=True)
FILTERED = (  # Figure 8: with one way, the partially augmented setting is the original one
    Need(2, 1, Setting.PARTIALLY_AUGMENTED),
    Need(1, 1, Setting.FULLY_AUGMENTED),
    Need(2, 1, Setting.FULLY_AUGMENTED),
)
UNFILTERED = tuple(Need(each.way, each.shot, each.setting, theta=NO_THETA) for each in FILTERED)


@dataclass(frozen=True)
class Part:
    """A table or figure."""

    name: str
    title: str
    needs: tuple[Need, ...] = ()
    rows: tuple[str, ...] | None = None  # the models that it is about; None for all that are compared
    datasets: tuple[str, ...] = BOTH
    needs_data: bool = True

    @property
    def is_figure(self) -> bool:
        """Whether it is a figure."""
        return self.name.startswith("figure")


PARTS: tuple[Part, ...] = (
    Part("table-1", "Comparison of FS-CS methods, three settings", THREE_SETTINGS),
    Part("table-2", "Ablation study of EMAT", (THREE_SETTINGS[0], SMALL), tuple(ABLATION_ROWS), ("pascal",)),
    Part("table-3", "Comparison of FS-CS methods by fold, PASCAL-5i", THREE_SETTINGS, None, ("pascal",)),
    Part("table-4", "Comparison of FS-CS methods by fold, COCO-20i", THREE_SETTINGS, None, ("coco",)),
    Part("table-5", "Comparison of few-shot segmentation (FS-S) methods", MASKS_ONLY, (SEGMENTING_ROW, "EMAT")),
    Part("table-readings", 'The two readings of "fully augmented"', (THREE_SETTINGS[2], ALL_CLASSES), ("EMAT",)),
    Part("table-attention", "Attention memory and runtime against CST at equal t_s", needs_data=False),
    Part("figure-1", "Small objects", (SMALL,)),
    Part("figure-2", "A support set in the three settings"),
    Part("figure-3", "The network", needs_data=False),
    Part("figure-4", "Queries with none, some and all support classes; a task in three settings", THREE_SETTINGS),
    Part("figure-5", "Masks at the resolutions of the attention layers"),
    Part("figure-6", "Accuracy and mIoU by object size", SIZES),
    Part("figure-7", "How each setting augments a task"),
    Part("figure-8", "Object size filtering (theta) and the augmented settings", (*FILTERED, *UNFILTERED), ("EMAT",)),
    Part("figure-9", "1- to 5-way 5-shot, fully augmented setting", CURVES),
    Part("figure-10", "Object sizes by fold"),
    Part("figure-dense", "Training memory as the mask grows to the whole photo", needs_data=False),
)  # fmt: skip
COMPARED = {"figure-1", "figure-4", "figure-6"}  # these show EMAT beside one other model
BESIDE_EMAT = ("CST*", "CST")  # which one, if it is measured


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
            raise EmatError(f"--only has {name!r}; what can be made here is {', '.join(possible)}")
    if not wanted:
        raise EmatError("--only names nothing; write for example --only table-1,figure-6")
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


def needs_of(parts: Sequence[Part], label: str, labels: Sequence[str]) -> list[Need]:
    """Return what has to be measured with one of the models for these parts, each need once."""
    return list(dict.fromkeys(need for part in parts if label in models_of(part, labels) for need in part.needs))
