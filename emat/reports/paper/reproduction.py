"""From what was measured to the paper: tables, figures and the page, written to one folder."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from emat.files import write_text
from emat.reports.paper.attention_cost import AttentionCase, StepCost, measure_costs
from emat.reports.paper.cells import PaperTable
from emat.reports.paper.charts import dense_costs
from emat.reports.paper.gallery import PaperFigure, Sources, draw_figures
from emat.reports.paper.ledger import Ledger
from emat.reports.paper.measuring import RESULTS, MeasuringPlan
from emat.reports.paper.models import PaperModel
from emat.reports.paper.page import page
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
from emat.reports.paper.parts import Part
from emat.reports.paper.table_files import write_tables
from emat.reports.tables import DATASETS
from emat.tasks.task import TASKS_PER_FOLD

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
NO_PHOTOS = "The photos of the data set are not shown in the figures; masks stand on an empty ground."
Costs = dict[tuple[AttentionCase, float], StepCost]
CostWatch = Callable[[list[tuple[AttentionCase, float]]], Iterable[tuple[AttentionCase, float]]]


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
    write_tables(tables, said, folder)
    sources = Sources(ledger, TaskPainter(ledger.tasks.dataset, photos), costs)
    figures = draw_figures([part for part in parts if part.is_figure], sources, folder)
    ledger.tasks.areas.keep()
    title = f"EMAT on {DATASETS[ledger.tasks.name]}: the paper's tables and figures, measured here"
    write_text(folder / "index.html", page(title, said, tables, figures))
    return Reproduction(tuple(tables), tuple(figures), folder / "index.html")


def cost_of(parts: Sequence[Part], folder: Path, watch: CostWatch = iter) -> Costs:
    """Measure what attention costs, as far as the parts show it, or read it from the folder."""
    names = [part.name for part in parts]
    cases = table_costs(names) + (dense_costs() if "figure-dense" in names else [])
    return measure_costs(cases, folder / COSTS_FILE, watch)


def statement(plan: MeasuringPlan, *, photos: bool = True) -> list[str]:
    """Say what was measured, with what, and what was not run; the first sentence is the shortest account of it."""
    tasks = plan.ledger.tasks
    models = [each.model for each in plan.passes]
    count = "the published number of" if tasks.tasks in (None, TASKS_PER_FOLD) else f"the first {tasks.tasks}"
    lists = "the published fold lists" if tasks.are_published else "fold lists that are not the published ones"
    described = "; ".join(_described(model, plan) for model in models) or "no model"
    said = [f"Measured here: {described}; {count} tasks of each fold, {lists}."]
    if any(model.comes_with_emat for model in models):
        said.append(
            "No published heads were found on this machine, so the fold heads that come with emat were taken: trained "
            "on EfficientNet-Lite2, whose ImageNet weights install with pip, for minutes on a CPU."
        )
    said += [PAPER_CONDITIONS, READING]
    said += [f"{label}: not run ({reason})." for label, reason in plan.not_run.items()]
    said += [] if photos else [NO_PHOTOS]
    classes = {fold: tasks.class_names(fold) for fold in tasks.folds}
    return [*said, *(f"{warning}." for model in models for warning in model.warnings(classes))]


def _described(model: PaperModel, plan: MeasuringPlan) -> str:
    evaluated = plan.ledger.methods[model.label][plan.ledger.tasks.folds[0]]
    size = evaluated.method.preparation.image_size
    name = evaluated.method.name
    method = "" if name == model.label.lower() else f"{name} "
    return f"{model.label} ({method}on {evaluated.backbone} at {size} px)"


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
