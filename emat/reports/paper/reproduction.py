"""From what was measured to the paper: tables, figures with their captions, and the page, written to one folder.

The page `index.html` is one file with the pictures inside.
"""

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from emat.errors import EmatError
from emat.outputs import write_text
from emat.reports.comparison import DATASETS
from emat.reports.figures import save_figure
from emat.reports.paper import paper_figures, paper_tables
from emat.reports.paper.attention_cost import AttentionCase, Costs, costs_left, measure_costs
from emat.reports.paper.contents import COMPARED, CURVES, PaperModel, Part, models_of, name_folds, support_tokens
from emat.reports.paper.evaluations import RESULTS, MeasuringPlan, ResultStore
from emat.reports.tables import Table, comparison_csv, html, latex, markdown
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
FINDINGS = "What the paper finds, and what was found here"
HEADING = "# Tables of the paper, measured here"


@dataclass(frozen=True)
class Sources:
    """What figures are drawn from."""

    store: ResultStore | None
    painter: paper_figures.TaskPainter | None
    costs: Costs


@dataclass(frozen=True)
class PaperFigure:
    """A figure that was drawn, or the reason why it was not; `measured` if it shows what models predict."""

    name: str
    title: str
    caption: str
    files: tuple[Path, ...] = ()
    reason: str | None = None
    measured: bool = False


def draw_figures(parts: Iterable[Part], sources: Sources, folder: Path) -> list[PaperFigure]:
    """Draw figures to `figures/`, each as SVG and PNG. One that lacks its measurements is left out, with the reason.

    Args:
        parts: The figures.
        sources: What they are drawn from.
        folder: The folder that the paper is written to.
    """
    figures = []
    for part in parts:
        caption = _caption(part, sources)
        files = tuple(folder / FOLDER / f"{part.name}{suffix}" for suffix in SUFFIXES)
        try:
            save_figure(files, _drawing(part, sources))
        except _NotMeasured as error:
            for file in files:
                file.unlink(missing_ok=True)  # of an earlier run, when it could be drawn
            figures.append(PaperFigure(part.name, part.title, caption, reason=str(error), measured=bool(part.specs)))
        else:
            figures.append(PaperFigure(part.name, part.title, caption, files, measured=bool(part.specs)))
    return figures


class _NotMeasured(EmatError):
    """A figure needs what was not measured."""


def _drawing(part: Part, sources: Sources) -> Callable[[], Any]:
    """Return the function that draws a figure; `_NotMeasured` if what it shows was not measured."""
    store, painter = sources.store, sources.painter
    if part.name == "figure-3":
        return paper_figures.network_diagram
    if part.name == "figure-dense":
        return partial(paper_figures.dense_curves, sources.costs)
    assert store is not None
    assert painter is not None
    some_ways = any(store.mean(label, CURVES[0]) for label in store.methods)
    measured: dict[str, tuple[Callable[[], Any], bool]] = {  # how to draw it, and whether it can be drawn
        "figure-1": (partial(paper_figures.small_objects_figure, store, painter), _has(store, part)),
        "figure-2": (partial(paper_figures.settings_figure, store.tasks, painter), True),
        "figure-4": (partial(paper_figures.queries_figure, store, painter), _has(store, part)),
        "figure-5": (partial(paper_figures.mask_figure, store.tasks), True),
        "figure-6": (partial(paper_figures.size_bars, store), _has_all_folds(store, part)),
        "figure-7": (partial(paper_figures.augmentation_figure, store.tasks, painter), True),
        "figure-8": (partial(paper_figures.theta_bars, store), _has_all_folds(store, part)),
        "figure-9": (partial(paper_figures.way_curves, store), some_ways),
        "figure-10": (partial(paper_figures.size_histograms, store), True),
    }
    drawing, possible = measured[part.name]
    if not possible:
        problems = [problem for spec in part.specs if (problem := store.tasks.problem(spec))]
        folds = "" if part.name in ONE_FOLD_IS_ENOUGH else " of all folds"
        who = "no model was" if part.rows is None and part.name not in COMPARED else "EMAT was not"
        raise _NotMeasured("not-measured", problems[0] if problems else f"{who} measured on these tasks{folds}")
    return drawing


def _has(store: ResultStore, part: Part) -> bool:
    return all(store.over_folds("EMAT", spec) for spec in part.specs)


def _has_all_folds(store: ResultStore, part: Part) -> bool:
    return all(store.mean("EMAT", spec) for spec in part.specs)


def _caption(part: Part, sources: Sources) -> str:
    query = "query, " if sources.painter is None or sources.painter.photos else ""
    captions = {
        "figure-1": f"Support, {query}true mask and predictions. {paper_figures.SMALL_RULE}",
        "figure-2": f"Which classes of each support photo count. {paper_figures.FIRST_RULE}",
        "figure-3": "The sizes are those of the published network; other backbones have other channels and grids.",
        "figure-4": paper_figures.QUERY_RULE,
        "figure-5": f"A cell is filled if attention keeps it. {paper_figures.MASK_RULE}",
        "figure-6": "Bars with 95 % intervals; the number is EMAT's gain.",
        "figure-7": f"Every row is a way. {paper_figures.FIRST_RULE}",
        "figure-8": "The paper shows COCO-20i; theta is 7 % of the photo for PASCAL-5i and 3 % for COCO-20i. The "
        "number is the gain by leaving small objects out.",
        "figure-9": "Points with 95 % intervals." if sources.store is None else _way_caption(sources.store),
        "figure-10": "Listed objects by the share of the photo that they cover, in steps of one percent; the three "
        "splits of small objects are coloured.",
        "figure-dense": "One training task at t_s = 401. With a mask over the whole photo, leaving masked tokens out "
        "saves nothing, which is the limitation that the paper states; walking the query tokens in chunks still does.",
    }  # fmt: skip
    sentences = [captions[part.name]]
    if sources.store is not None and part.specs:
        labels = models_of(part, list(sources.store.methods))
        sentences += sources.store.fewer_tasks(labels, part.specs)
    return " ".join(sentences)


def _way_caption(store: ResultStore) -> str:
    counted = [store.tasks.augmented(spec) for spec in CURVES]
    here = ", ".join("-" if counts is None else str(sum(counts)) for counts in counted)
    rows = [f"{store.tasks.name} {spec.way}-way" for spec in CURVES]
    published = ", ".join(paper_tables.published_text("figure-9", row, "augmented tasks") or "-" for row in rows)
    return (
        "Points with 95 % intervals, all on the same tasks. Of the published 4000 tasks, the setting augments with one "
        f"to five ways {here} here, and {published} in the paper."
    )


@dataclass(frozen=True)
class Reproduction:
    """What was written."""

    tables: tuple[Table, ...]
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
    store = plan.store
    costs = cost_of(parts, folder, watch)
    tables = _tables([part.name for part in parts], store, costs)
    sentences = statement(plan, photos=photos)
    account = Account(_short(plan), tuple(sentences), tuple(paper_tables.findings(store, costs)))
    write_tables(tables, account, folder)
    sources = Sources(store, paper_figures.TaskPainter(store.tasks.dataset, photos), costs)
    figures = draw_figures([part for part in parts if part.is_figure], sources, folder)
    store.tasks.areas.keep()
    title = f"EMAT on {DATASETS[store.tasks.name]}: the paper's tables and figures, measured here"
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
    return paper_tables.table_costs(names) + (paper_figures.dense_costs() if "figure-dense" in names else [])


def statement(plan: MeasuringPlan, *, photos: bool = True) -> list[str]:
    """Say what was measured, with what, and what was not run; the first sentence is the shortest account of it."""
    tasks = plan.store.tasks
    models = [planned.model for planned in plan.passes if plan.store.measured_folds(planned.model.label)]
    count = str(TASKS_PER_FOLD) if tasks.tasks in (None, TASKS_PER_FOLD) else f"the first {tasks.tasks}"
    lists = "the published fold lists" if tasks.are_published else "fold lists that are not the published ones"
    described = "; ".join(_described(model, plan) for model in models) or "no model"
    sentences = [
        f"Measured here: {described}; {count} tasks of each fold unless a note says otherwise, {lists}.",
        PAPER_CONDITIONS,
        *_support_sizes(plan),
        READING,
    ]
    if any(model.comes_with_emat for model in models):
        sentences.append(
            "No published heads were found on this machine, so the fold heads that come with emat were taken: trained "
            "on EfficientNet-Lite2, whose ImageNet weights install with pip, for minutes on a CPU."
        )
    sentences += [f"{label}: not run ({reason})." for label, reason in plan.not_run.items()]
    unmeasured = [planned.model.label for planned in plan.passes if planned.model not in models]
    sentences += [f"{label}: not run (its head is here, but nothing was measured with it)." for label in unmeasured]
    if plan.partly_run:
        sentences.append(f"{', '.join(plan.partly_run)}: not run on every fold (there are heads of some folds only).")
    if plan.store.vouched_for:
        names = ", ".join(dict.fromkeys(path.name for path in plan.store.vouched_for))
        sentences.append(f"{OTHER_FILES} {names}.")
    sentences += [] if photos else [NO_PHOTOS]
    for model in models:
        classes = {fold: tasks.class_names(fold) for fold in plan.store.methods[model.label]}
        sentences += [f"{warning}." for warning in model.warnings(classes)]
    return sentences


def _support_sizes(plan: MeasuringPlan) -> list[str]:
    """Say how many support tokens the networks have here, where these are not the paper's."""
    alike: dict[tuple[tuple[int, int], tuple[int, int]], list[str]] = {}
    for label, methods in plan.store.methods.items():
        here, published = support_tokens(next(iter(methods.values()))), PAPER_TOKENS.get(label)
        if here is not None and published not in (None, here) and plan.store.measured_folds(label):
            alike.setdefault((here, published), []).append(label)
    sizes = [
        f"t_s of {', '.join(labels)} is {here[0]} and {here[1]} here, and {published[0]} and {published[1]} there"
        for (here, published), labels in alike.items()
    ]
    return [f"The support tokens of the two layers differ as well: {'; '.join(sizes)}."] if sizes else []


def _short(plan: MeasuringPlan) -> str:
    """Say in one line what the measured scores are not."""
    store = plan.store
    every = [store.methods[label][fold] for label in store.methods for fold in store.measured_folds(label)]
    backbones = list(dict.fromkeys(evaluated.backbone for evaluated in every))
    if not backbones:
        return "No model was measured here."
    sizes = sorted({evaluated.method.preparation.image_size for evaluated in every})
    pixels = f"{sizes[0]} px" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} px"
    return f"Measured here on {' and '.join(backbones)} at {pixels}; the paper's CST* and EMAT: DINOv2 at 700 px."


def _described(model: PaperModel, plan: MeasuringPlan) -> str:
    evaluated = next(iter(plan.store.methods[model.label].values()))
    size = evaluated.method.preparation.image_size
    name = evaluated.method.name
    method = "" if name == model.label.lower() else f"{name} "
    folds = plan.store.measured_folds(model.label)
    only = "" if len(folds) == len(plan.store.tasks.folds) else f", {name_folds(folds)} only"
    return f"{model.label} ({method}on {evaluated.backbone} at {size} px{only})"


def _tables(names: Sequence[str], store: ResultStore, costs: Costs) -> list[Table]:
    makers: dict[str, Callable[[], list[Table]]] = {
        "table-1": lambda: [paper_tables.comparison_table(store)],
        "table-2": lambda: [paper_tables.ablation_table(store, costs)],
        "table-3": lambda: paper_tables.fold_tables(store),
        "table-4": lambda: paper_tables.fold_tables(store),
        "table-5": lambda: [paper_tables.segmentation_table(store)],
        "table-readings": lambda: [paper_tables.readings_table(store)],
        "table-attention": lambda: [paper_tables.attention_table(costs)],
    }
    return [table for name in names if name in makers for table in makers[name]()]


@dataclass(frozen=True)
class Account:
    """What is said of everything that was measured."""

    short: str  # stands at every table and figure with measured scores
    statement: tuple[str, ...]  # what was measured, with what, and what was not run
    findings: tuple[str, ...]  # what holds here of what the paper finds


def write_tables(tables: Sequence[Table], account: Account, folder: Path) -> list[Path]:
    """Write `tables.md`, `tables.tex` and `tables.csv`.

    Args:
        tables: The tables.
        account: What opens the Markdown and LaTeX files.
        folder: The folder to write to.

    Returns:
        The paths.
    """
    opening = [f"{sentence}\n" for sentence in (HEADING, *account.statement)]
    if account.findings:
        opening += [f"## {FINDINGS}\n", *(f"- {sentence}" for sentence in account.findings), ""]
    sentences = (*account.statement, *account.findings)
    texts = {
        "tables.md": "\n".join([*opening, markdown(tables)]),
        "tables.tex": "".join(f"% {sentence}\n" for sentence in sentences) + "\n" + latex(tables),
        "tables.csv": comparison_csv(tables),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def page(title: str, account: Account, tables: Sequence[Table], figures: Sequence[PaperFigure]) -> str:
    """Return the page.

    Args:
        title: Its title.
        account: What was measured and what was found.
        tables: The tables.
        figures: The figures, whose PNG files are put into the page.
    """
    sections = [(table.name, table.title, _table_section(table), table.compares) for table in tables]
    sections += [(figure.name, _heading(figure), _figure_section(figure), figure.measured) for figure in figures]
    links: dict[str, str] = {}
    body = []
    for name, heading, content, measured in sections:
        anchor = f' id="{name}"' if name not in links else ""
        links.setdefault(name, f'<a href="#{name}">{escape(_link(name))}</a>')
        short = f'<p class="here">{escape(account.short)}</p>' if measured else ""
        body.append(f"<section><h2{anchor}>{escape(heading)}</h2>{short}{content}</section>")
    statement = "".join(f"<p>{escape(sentence)}</p>" for sentence in account.statement)
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in account.findings)
    findings = f"<section><h2>{FINDINGS}</h2><ul>{items}</ul></section>" if items else ""
    style = (resources.files("emat.reports.paper") / "page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>\n<body><h1>{escape(title)}</h1>\n"
        f'<div class="said">{statement}</div>\n<nav>{" ".join(links.values())}</nav>\n{findings}'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _link(name: str) -> str:
    """The name of a table or figure as it stands in the list of links.

    >>> _link("table-1"), _link("table-readings")
    ('Table 1', 'Readings')
    """
    kind, _, which = name.partition("-")
    return f"{kind.capitalize()} {which}" if which.isdecimal() else which.capitalize()


def _heading(figure: PaperFigure) -> str:
    number = figure.name.removeprefix("figure-")
    return f"Figure {number}: {figure.title}" if number.isdecimal() else figure.title


def _table_section(table: Table) -> str:
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    details = ""
    if table.sentences:
        items = "".join(f"<li>{escape(sentence)}</li>" for sentence in table.sentences)
        details = (
            f"<details><summary>Every difference in words ({len(table.sentences)})</summary><ul>{items}</ul></details>"
        )
    return f'<div class="scroll">{html(table)}</div>{notes}{details}'


def _figure_section(figure: PaperFigure) -> str:
    caption = f"<figcaption>{escape(figure.caption)}</figcaption>"
    if figure.reason is not None:
        return f'<figure><div class="not-run">Not drawn: {escape(figure.reason)}</div>{caption}</figure>'
    picture = next(file for file in figure.files if file.suffix == ".png")
    content = base64.b64encode(picture.read_bytes()).decode()
    image = f'<img alt="{escape(figure.title)}" src="data:image/png;base64,{content}">'
    return f'<figure><div class="scroll">{image}</div>{caption}</figure>'
