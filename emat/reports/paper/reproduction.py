"""From what was measured to the paper: tables, figures with their captions, and the page, written to one folder."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.files import write_text
from emat.reports.figures import save_figure
from emat.reports.paper.attention_cost import AttentionCase, Costs, costs_left, measure_costs
from emat.reports.paper.cells import PaperTable, name_folds, published_text
from emat.reports.paper.charts import (
    dense_costs,
    dense_curves,
    network_diagram,
    size_bars,
    size_histograms,
    theta_bars,
    way_curves,
)
from emat.reports.paper.findings import findings
from emat.reports.paper.measuring import RESULTS, Ledger, MeasuringPlan
from emat.reports.paper.models import PaperModel, support_tokens
from emat.reports.paper.page import Account, PaperFigure, page, write_tables
from emat.reports.paper.panels import TaskPainter
from emat.reports.paper.paper_tables import (
    ablation_table,
    attention_table,
    comparison_table,
    fold_tables,
    readings_table,
    segmentation_table,
    table_costs,
)
from emat.reports.paper.parts import COMPARED, CURVES, Part, models_of
from emat.reports.paper.qualitative import (
    FIRST_RULE,
    MASK_RULE,
    QUERY_RULE,
    SMALL_RULE,
    augmentation_figure,
    mask_figure,
    queries_figure,
    settings_figure,
    small_objects_figure,
)
from emat.reports.tables import DATASETS
from emat.tasks.task import TASKS_PER_FOLD

SUFFIXES = (".svg", ".png")
FOLDER = "figures"
COSTS_FILE = Path(RESULTS) / "benchmark" / "attention.json"
PAPER_CONDITIONS = (
    "The paper: DINOv2 ViT-S/14 at 700 px (EMAT, CST*), heads trained for 80 epochs on three GPUs, 1000 tasks a fold. "
    "Where backbone, size, training or tasks differ here, the numbers are not expected to agree; what can be compared "
    "are rows that were measured alike."
)
READING = (
    "Each measured score stands with half of its 95 % interval (bootstrap over tasks); below it is the difference to "
    "the published number, marked (inside) if the published number lies in the interval."
)
PAPER_TOKENS = {  # t_s of the two layers
    "EMAT": (401, 101),
    "EMAT_s": (401, 101),
    "EMAT-ME": (401, 101),
    "EMAT-ME-LD": (401, 101),
    "CST*-large": (325, 37),
    "CST*": (145, 10),
}
OTHER_FILES = (
    "These results are of the same tasks, but of photo or mask files with other times or sizes, such as those of "
    "another copy of the data set; they are used because their folder was given with --results:"
)
ONE_FOLD_IS_ENOUGH = ("figure-1", "figure-4")  # they show single tasks
NO_PHOTOS = "The photos of the data set are not shown in the figures; masks stand on an empty ground."
CostWatch = Callable[[list[tuple[AttentionCase, float]]], Iterable[tuple[AttentionCase, float]]]


@dataclass(frozen=True)
class Sources:
    """What figures are drawn from."""

    ledger: Ledger | None
    painter: TaskPainter | None
    costs: Costs


def draw_figures(parts: Iterable[Part], sources: Sources, folder: Path) -> list[PaperFigure]:
    """Draw figures to `figures/`, each as SVG and PNG. One that lacks its measurements is left out, with the reason.

    Args:
        parts: The figures.
        sources: What they are drawn from.
        folder: The folder that the paper is written to.
    """
    made = []
    for part in parts:
        caption = _caption(part, sources)
        files = tuple(folder / FOLDER / f"{part.name}{suffix}" for suffix in SUFFIXES)
        try:
            save_figure(files, _drawing(part, sources))
        except _NotMeasured as error:
            for file in files:
                file.unlink(missing_ok=True)  # of an earlier run, when it could be drawn
            made.append(PaperFigure(part.name, part.title, caption, reason=str(error), measured=bool(part.needs)))
        else:
            made.append(PaperFigure(part.name, part.title, caption, files, measured=bool(part.needs)))
    return made


class _NotMeasured(EmatError):
    """A figure needs what was not measured."""


def _drawing(part: Part, sources: Sources) -> Callable[[], Any]:
    """Return the function that draws a figure.

    Raises:
        _NotMeasured: If what it shows was not measured.
    """
    ledger, painter = sources.ledger, sources.painter
    if part.name == "figure-3":
        return network_diagram
    if part.name == "figure-dense":
        return partial(dense_curves, sources.costs)
    assert ledger is not None
    assert painter is not None
    measured: dict[str, tuple[Callable[[], Any], bool]] = {  # how to draw it, and whether it can be drawn
        "figure-1": (partial(small_objects_figure, ledger, painter), _has(ledger, part)),
        "figure-2": (partial(settings_figure, ledger.tasks, painter), True),
        "figure-4": (partial(queries_figure, ledger, painter), _has(ledger, part)),
        "figure-5": (partial(mask_figure, ledger.tasks), True),
        "figure-6": (partial(size_bars, ledger), _has_all_folds(ledger, part)),
        "figure-7": (partial(augmentation_figure, ledger.tasks, painter), True),
        "figure-8": (partial(theta_bars, ledger), _has_all_folds(ledger, part)),
        "figure-9": (partial(way_curves, ledger), any(ledger.mean(label, CURVES[0]) for label in ledger.methods)),
        "figure-10": (partial(size_histograms, ledger), True),
    }
    draw, possible = measured[part.name]
    if not possible:
        problems = [problem for need in part.needs if (problem := ledger.tasks.problem(need))]
        folds = "" if part.name in ONE_FOLD_IS_ENOUGH else " of all folds"
        who = "no model was" if part.rows is None and part.name not in COMPARED else "EMAT was not"
        raise _NotMeasured(problems[0] if problems else f"{who} measured on these tasks{folds}")
    return draw


def _has(ledger: Ledger, part: Part) -> bool:
    return all(ledger.over_folds("EMAT", need) for need in part.needs)


def _has_all_folds(ledger: Ledger, part: Part) -> bool:
    return all(ledger.mean("EMAT", need) for need in part.needs)


def _caption(part: Part, sources: Sources) -> str:
    query = "query, " if sources.painter is None or sources.painter.photos else ""
    captions = {
        "figure-1": f"Support, {query}true mask and predictions. {SMALL_RULE}",
        "figure-2": f"Which classes of each support photo count. {FIRST_RULE}",
        "figure-3": "The sizes are those of the published network; other backbones have other channels and grids.",
        "figure-4": QUERY_RULE,
        "figure-5": f"A cell is filled if attention keeps it. {MASK_RULE}",
        "figure-6": "Bars with 95 % intervals; the number is EMAT's gain.",
        "figure-7": f"Every row is a way. {FIRST_RULE}",
        "figure-8": "The paper shows COCO-20i; theta is 7 % of the photo for PASCAL-5i and 3 % for COCO-20i. The "
        "number is the gain by leaving small objects out.",
        "figure-9": "Points with 95 % intervals." if sources.ledger is None else _way_caption(sources.ledger),
        "figure-10": "Listed objects by the share of the photo that they cover, in steps of one percent; the three "
        "splits of small objects are coloured.",
        "figure-dense": "One training task at t_s = 401. With a mask over the whole photo, leaving masked tokens out "
        "saves nothing, which is the limitation that the paper states; walking the query tokens in chunks still does.",
    }  # fmt: skip
    said = [captions[part.name]]
    if sources.ledger is not None and part.needs:
        labels = models_of(part, list(sources.ledger.methods))
        said += sources.ledger.fewer_tasks(labels, part.needs)
    return " ".join(said)


def _way_caption(ledger: Ledger) -> str:
    counted = [ledger.tasks.augmented(need) for need in CURVES]
    here = ", ".join("-" if each is None else str(sum(each)) for each in counted)
    rows = [f"{ledger.tasks.name} {need.way}-way" for need in CURVES]
    published = ", ".join(published_text("figure-9", row, "augmented tasks") or "-" for row in rows)
    return (
        "Points with 95 % intervals, all on the same tasks. Of the published 4000 tasks, the setting augments with one "
        f"to five ways {here} here, and {published} in the paper."
    )


@dataclass(frozen=True)
class Reproduction:
    """What was written."""

    tables: tuple[PaperTable, ...]
    figures: tuple[PaperFigure, ...]
    page: Path


def write_paper(
    parts: Sequence[Part], plan: MeasuringPlan, folder: Path, *, photos: bool = True, watch: CostWatch = iter
) -> Reproduction:
    """Write the tables, the figures and the page of everything that was measured.

    Args:
        parts: The tables and figures to write.
        plan: The plan, after it was measured.
        folder: The folder to write to.
        photos: Whether figures may show photos of the data set.
        watch: Is given what is left of the benchmark of attention, and may show progress.
    """
    ledger = plan.ledger
    costs = cost_of(parts, folder, watch)
    tables = _tables([part.name for part in parts], ledger, costs)
    said = statement(plan, photos=photos)
    account = Account(_short(plan), tuple(said), tuple(findings(ledger, costs)))
    write_tables(tables, account, folder)
    sources = Sources(ledger, TaskPainter(ledger.tasks.dataset, photos), costs)
    figures = draw_figures([part for part in parts if part.is_figure], sources, folder)
    ledger.tasks.areas.keep()
    title = f"EMAT on {DATASETS[ledger.tasks.name]}: the paper's tables and figures, measured here"
    write_text(folder / "index.html", page(title, account, tables, figures))
    return Reproduction(tuple(tables), tuple(figures), folder / "index.html")


def cost_of(parts: Sequence[Part], folder: Path, watch: CostWatch = iter) -> Costs:
    """Measure what attention costs, as far as the parts show it, or read it from the folder."""
    return measure_costs(_cost_cases(parts), folder / COSTS_FILE, watch)


def number_of_costs_left(parts: Sequence[Part], folder: Path) -> int:
    """Return how many costs of attention the parts show that are not in the folder."""
    return len(costs_left(_cost_cases(parts), folder / COSTS_FILE))


def _cost_cases(parts: Sequence[Part]) -> list[tuple[AttentionCase, float]]:
    names = [part.name for part in parts]
    return table_costs(names) + (dense_costs() if "figure-dense" in names else [])


def statement(plan: MeasuringPlan, *, photos: bool = True) -> list[str]:
    """Say what was measured, with what, and what was not run; the first sentence is the shortest account of it."""
    tasks = plan.ledger.tasks
    models = [each.model for each in plan.passes if plan.ledger.measured_folds(each.model.label)]
    count = str(TASKS_PER_FOLD) if tasks.tasks in (None, TASKS_PER_FOLD) else f"the first {tasks.tasks}"
    lists = "the published fold lists" if tasks.are_published else "fold lists that are not the published ones"
    described = "; ".join(_described(model, plan) for model in models) or "no model"
    said = [
        f"Measured here: {described}; {count} tasks of each fold unless a note says otherwise, {lists}.",
        PAPER_CONDITIONS,
        *_support_sizes(plan),
        READING,
    ]
    if any(model.comes_with_emat for model in models):
        said.append(
            "No published heads were found on this machine, so the fold heads that come with emat were taken: trained "
            "on EfficientNet-Lite2, whose ImageNet weights install with pip, for minutes on a CPU."
        )
    said += [f"{label}: not run ({reason})." for label, reason in plan.not_run.items()]
    unmeasured = [each.model.label for each in plan.passes if each.model not in models]
    said += [f"{label}: not run (its head is here, but nothing was measured with it)." for label in unmeasured]
    if plan.partly_run:
        said.append(f"{', '.join(plan.partly_run)}: not run on every fold (there are heads of some folds only).")
    if plan.ledger.vouched_for:
        names = ", ".join(dict.fromkeys(path.name for path in plan.ledger.vouched_for))
        said.append(f"{OTHER_FILES} {names}.")
    said += [] if photos else [NO_PHOTOS]
    for model in models:
        classes = {fold: tasks.class_names(fold) for fold in plan.ledger.methods[model.label]}
        said += [f"{warning}." for warning in model.warnings(classes)]
    return said


def _support_sizes(plan: MeasuringPlan) -> list[str]:
    """Say how many support tokens the networks have here, where these are not the paper's."""
    alike: dict[tuple[tuple[int, int], tuple[int, int]], list[str]] = {}
    for label, methods in plan.ledger.methods.items():
        here, published = support_tokens(next(iter(methods.values()))), PAPER_TOKENS.get(label)
        if here is not None and published not in (None, here) and plan.ledger.measured_folds(label):
            alike.setdefault((here, published), []).append(label)
    found = [
        f"t_s of {', '.join(labels)} is {here[0]} and {here[1]} here, and {published[0]} and {published[1]} there"
        for (here, published), labels in alike.items()
    ]
    return [f"The support tokens of the two layers differ as well: {'; '.join(found)}."] if found else []


def _short(plan: MeasuringPlan) -> str:
    """Say in one line what the measured scores are not."""
    ledger = plan.ledger
    every = [ledger.methods[label][fold] for label in ledger.methods for fold in ledger.measured_folds(label)]
    backbones = list(dict.fromkeys(each.backbone for each in every))
    if not backbones:
        return "No model was measured here."
    sizes = sorted({each.method.preparation.image_size for each in every})
    pixels = f"{sizes[0]} px" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} px"
    return f"Measured here on {' and '.join(backbones)} at {pixels}; the paper's CST* and EMAT: DINOv2 at 700 px."


def _described(model: PaperModel, plan: MeasuringPlan) -> str:
    evaluated = next(iter(plan.ledger.methods[model.label].values()))
    size = evaluated.method.preparation.image_size
    name = evaluated.method.name
    method = "" if name == model.label.lower() else f"{name} "
    folds = plan.ledger.measured_folds(model.label)
    only = "" if len(folds) == len(plan.ledger.tasks.folds) else f", {name_folds(folds)} only"
    return f"{model.label} ({method}on {evaluated.backbone} at {size} px{only})"


def _tables(names: Sequence[str], ledger: Ledger, costs: Costs) -> list[PaperTable]:
    makers: dict[str, Callable[[], list[PaperTable]]] = {
        "table-1": lambda: [comparison_table(ledger)],
        "table-2": lambda: [ablation_table(ledger, costs)],
        "table-3": lambda: fold_tables(ledger),
        "table-4": lambda: fold_tables(ledger),
        "table-5": lambda: [segmentation_table(ledger)],
        "table-readings": lambda: [readings_table(ledger)],
        "table-attention": lambda: [attention_table(costs)],
    }
    return [table for name in names if name in makers for table in makers[name]()]
