"""All figures by name: how each is drawn, its caption, and the files it is saved to."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.reports.paper.attention_cost import AttentionCase, StepCost
from emat.reports.paper.charts import dense_curves, size_bars, size_histograms, theta_bars, way_curves
from emat.reports.paper.diagram import network_diagram
from emat.reports.paper.examples import FIRST_RULE, MASK_RULE, augmentation_figure, mask_figure, settings_figure
from emat.reports.paper.ledger import Ledger
from emat.reports.paper.panels import TaskPainter
from emat.reports.paper.parts import CURVES, FILTERED, SIZES, Part
from emat.reports.paper.published import published_text
from emat.reports.paper.qualitative import QUERY_RULE, SMALL_RULE, queries_figure, small_objects_figure
from emat.reports.style import save_figure

SUFFIXES = (".svg", ".png")
FOLDER = "figures"


@dataclass(frozen=True)
class PaperFigure:
    """A figure that was drawn, or the reason why it was not."""

    name: str
    title: str
    caption: str
    files: tuple[Path, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class Sources:
    """What figures are drawn from."""

    ledger: Ledger | None
    painter: TaskPainter | None
    costs: Mapping[tuple[AttentionCase, float], StepCost]


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
            draw = _drawing(part, sources)
            for file in files:
                save_figure(file, draw)
        except _NotMeasured as error:
            made.append(PaperFigure(part.name, part.title, caption, reason=str(error)))
        else:
            made.append(PaperFigure(part.name, part.title, caption, files))
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
        "figure-6": (partial(size_bars, ledger), bool(ledger.mean("EMAT", SIZES[0]))),
        "figure-7": (partial(augmentation_figure, ledger.tasks, painter), True),
        "figure-8": (partial(theta_bars, ledger), bool(ledger.mean("EMAT", FILTERED[0]))),
        "figure-9": (partial(way_curves, ledger), any(ledger.mean(label, CURVES[0]) for label in ledger.methods)),
        "figure-10": (partial(size_histograms, ledger), True),
    }
    draw, possible = measured[part.name]
    if not possible:
        problems = [problem for need in part.needs if (problem := ledger.tasks.problem(need))]
        raise _NotMeasured(problems[0] if problems else "not run: EMAT was not measured on these tasks")
    return draw


def _has(ledger: Ledger, part: Part) -> bool:
    return all(ledger.mean("EMAT", need) for need in part.needs)


def _caption(part: Part, sources: Sources) -> str:
    name = sources.ledger.tasks.name if sources.ledger else ""
    captions = {
        "figure-1": f"Support, query, true mask and predictions. {SMALL_RULE}",
        "figure-2": f"Which classes of each support photo count. {FIRST_RULE}",
        "figure-3": "The sizes are those of the published network; other backbones have other channels and grids.",
        "figure-4": QUERY_RULE,
        "figure-5": f"A cell is filled if attention keeps it. {MASK_RULE}",
        "figure-6": "Bars with 95 % intervals; the number is EMAT's gain.",
        "figure-7": f"Every row is a way. {FIRST_RULE}",
        "figure-8": "The paper shows COCO-20i; theta is 7 % of the photo for PASCAL-5i and 3 % for COCO-20i. The "
        "number is the gain by leaving small objects out.",
        "figure-9": _way_caption(sources, name),
        "figure-10": "Listed objects by the share of the photo that they cover, in steps of one percent; the three "
        "splits of small objects are coloured.",
        "figure-dense": "One training task at t_s = 401. With a mask over the whole photo, leaving masked tokens out "
        "saves nothing, which is the limitation that the paper states; walking the query tokens in chunks still does.",
    }  # fmt: skip
    return captions[part.name]


def _way_caption(sources: Sources, name: str) -> str:
    assert sources.ledger is not None or not name
    if sources.ledger is None:
        return ""
    counted = [sources.ledger.tasks.augmented(need) for need in CURVES]
    here = ", ".join("-" if each is None else str(sum(each)) for each in counted)
    published = ", ".join(
        published_text("figure-9", f"{name} {need.way}-way", "augmented tasks") or "-" for need in CURVES
    )
    return f"Augmented tasks with one to five ways: {here} here, and {published} in the paper."
