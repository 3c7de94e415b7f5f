"""The report of a run as one HTML file that loads nothing else: pictures, histograms, tables, forecast, and settings.

It reads well on a screen, in light and dark, and on paper.
"""

from __future__ import annotations

import base64
import html
import io
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from emat import __version__
from emat.images import Pixels, resize_mask, resize_photo
from emat.inference.slides import SlidePart
from emat.measure.properties import RELIABLE_FROM, UNRELIABLE, Value, column_of
from emat.measure.scene import Scene
from emat.measure.tables import PIXEL, Table, TableColumn
from emat.outputs import write_text
from emat.pictures.overlay import draw_overlay
from emat.pictures.palette import colour_of

PACKAGES = ("numpy", "scipy", "scikit-image", "pillow", "torch")
THUMBNAIL = 360  # longer side in pixels
QUALITY = 82
MOST_PICTURES = 120  # more would make a file that no browser likes; all photos are in photos.csv
MOST_ROWS = 300
BARS = 24
HISTOGRAMS = (
    "equivalent_diameter",
    "area",
    "width_mean",
    "skeleton_length",
    "circularity",
    "intensity_mean_",
    "percent_",
)
MOST_HISTOGRAMS = 4  # of a class
TABLE_KEYS = (
    "photo", "z", "t", "class", "count", "area", "share", "mean_equivalent_diameter", "mean_width_mean",
    "mean_skeleton_length", "share_within", "score", "reliable", "verdict",
)  # fmt: skip
HEADINGS = {
    "share": "of photo, %", "share_within": "severity, %", "mean_equivalent_diameter": "mean diameter",
    "mean_width_mean": "mean width", "mean_skeleton_length": "mean length",
}  # fmt: skip


@dataclass(frozen=True)
class Report:
    """Everything that the report shows.

    Attributes:
        title: Its heading.
        classes: The names of the classes, in the order of their colours.
        objects: The table of objects.
        photos: The table of photos and classes.
        pictures: The overlay of each photo as a data address, by its name.
        forecast: The IoU to expect of each class; None where it is not known. Empty if nothing was predicted.
        notes: Sentences that a reader must know, such as how many false OKs to expect.
        skipped: Photos that were not measured, with the reason.
        settings: The choices of the run.
        versions: The versions of the programs.
        hashes: The SHA-256 of each file that was used.
    """

    title: str
    classes: Sequence[str]
    objects: Table
    photos: Table
    pictures: Mapping[str, str]
    forecast: Mapping[str, float | None] = field(default_factory=dict)
    notes: Sequence[str] = ()
    skipped: Sequence[tuple[str, str]] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)


def picture_of(scene: Scene) -> str:
    """Draw a scene small, as an address that holds the picture itself."""
    size = _small(scene.size)
    return _drawn(resize_photo(scene.photo, size), resize_mask(scene.label_map, size))


class SlidePicture:
    """The small picture of a slide, put together from its parts.

    Args:
        size: Height and width of the slide.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self._size, self._small = size, _small(size)
        self._photo = np.full((*self._small, 3), 255, np.uint8)
        self._labels = np.zeros(self._small, np.uint8)

    def add(self, part: SlidePart) -> None:
        """Draw a part."""
        area = part.view.scaled(self._size, self._small).area
        height, width = self._labels[area].shape
        if height and width:
            self._photo[area] = resize_photo(np.ascontiguousarray(part.photo), (height, width))
            self._labels[area] = resize_mask(np.ascontiguousarray(part.labels), (height, width))

    def address(self) -> str:
        """Return the picture as an address that holds it."""
        return _drawn(self._photo, self._labels)


def _small(size: tuple[int, int]) -> tuple[int, int]:
    scale = min(1.0, THUMBNAIL / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _drawn(photo: Pixels, labels: NDArray[np.uint8]) -> str:
    return _embedded(draw_overlay(photo, labels, {}, legend=False))


def _embedded(picture: Image.Image) -> str:
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=QUALITY, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()


def write_report(path: Path, report: Report) -> None:
    """Write the report, whole or not at all."""
    sections = [
        _head(report),
        _notes(report),
        _classes(report),
        _pictures(report),
        _table(report),
        _problems(report),
        _details(report),
    ]
    write_text(
        path,
        f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(report.title)}</title><style>{STYLE}</style>
<main>{"".join(sections)}</main></html>
""",
        errors="replace",
    )


@dataclass(frozen=True)
class _Sums:
    photos: int
    objects: int
    ok: int | None
    not_ok: int


def _sums(report: Report) -> _Sums:
    names: dict[str, Value] = {}
    objects = 0
    for row in report.photos.rows():
        names[place_of(row)] = row.get("verdict")
        objects += int(row.get("count") or 0)
    judged = [verdict for verdict in names.values() if verdict is not None]
    ok = sum(verdict == "OK" for verdict in judged)
    return _Sums(len(names), objects, ok if judged else None, len(judged) - ok)


def place_of(row: Mapping[str, Value]) -> str:
    """Return the name of a photo, with its plane and time point in a stack."""
    return str(row["photo"]) + "".join(f", {axis} {row[axis]}" for axis in ("z", "t") if axis in row)


def _head(report: Report) -> str:
    sums = _sums(report)
    counts = [(sums.photos, "photo", "photos"), (sums.objects, "object", "objects")]
    counts.append((len(report.classes), "class", "classes"))
    tiles = [(f"{count:,}", one if count == 1 else several) for count, one, several in counts]
    if sums.ok is not None:
        tiles += [(f"{sums.ok:,}", "OK"), (f"{sums.not_ok:,}", "NOT OK")]
    shown = "".join(
        f'<div class="tile{" bad" if label == "NOT OK" and number != "0" else ""}"><b>{number}</b>{label}</div>'
        for number, label in tiles
    )
    return f'<header><h1>{_text(report.title)}</h1><div class="tiles">{shown}</div></header>'


def _notes(report: Report) -> str:
    notes = [f"<p>{_text(note)}</p>" for note in report.notes]
    weak = [name for name, iou in report.forecast.items() if iou is not None and iou < RELIABLE_FROM]
    if weak:
        notes.insert(
            0,
            f"<p><b>Not reliable:</b> {_text(', '.join(weak))}. The forecast expects an IoU below {RELIABLE_FROM}, so "
            "its numbers say little. Add examples before you use them.</p>",
        )
    return f'<section class="notes">{"".join(notes)}</section>' if notes else ""


def _classes(report: Report) -> str:
    """One card a class: its sums, its forecast, and histograms of its objects."""
    values = _histogram_values(report)
    counts = dict.fromkeys(report.classes, 0)
    with_it = dict.fromkeys(report.classes, 0)
    for row in report.photos.rows():
        count = int(row.get("count") or 0)
        counts[str(row["class"])] = counts.get(str(row["class"]), 0) + count
        with_it[str(row["class"])] = with_it.get(str(row["class"]), 0) + (count > 0)
    cards = []
    for index, name in enumerate(report.classes, start=1):
        colour = "rgb({}, {}, {})".format(*colour_of(index))
        charts = "".join(
            _histogram(column, np.asarray(numbers), colour) for column, numbers in values.get(name, {}).values()
        )
        charts = charts or '<p class="quiet">No object was found.</p>'
        facts = f"{_many(counts[name], 'object')} on {_many(with_it[name], 'photo')}"
        cards.append(
            f'<article class="card"><h3><i style="background:{colour}"></i>{_text(name)}{_trust(report, name)}</h3>'
            f'<p class="quiet">{facts}</p><div class="charts">{charts}</div>'
            "</article>"
        )
    return f'<section><h2>Classes</h2><div class="cards">{"".join(cards)}</div></section>'


def _trust(report: Report, name: str) -> str:
    if name not in report.forecast:
        return ""
    iou = report.forecast[name]
    if iou is None:
        return '<span class="chip warn">forecast not known</span>'
    kind = "bad" if iou < RELIABLE_FROM else "good"
    return f'<span class="chip {kind}">{UNRELIABLE + ", " if kind == "bad" else ""}expected IoU {iou:.2f}</span>'


def _histogram_values(report: Report) -> dict[str, dict[str, tuple[TableColumn, list[float]]]]:
    """The numbers of each class that become histograms, by column."""
    chosen: list[TableColumn] = []
    for start in HISTOGRAMS:
        for column in report.objects.columns:
            fits = column.key == start or (start.endswith("_") and column.key.startswith(start))
            better = [other for other in chosen if other.key == column.key and other.unit != PIXEL]
            if fits and not better:
                chosen = [other for other in chosen if other.key != column.key]  # the real unit comes after pixels
                chosen.append(column)
    values: dict[str, dict[str, tuple[TableColumn, list[float]]]] = {}
    for row in report.objects.rows():
        of_class = values.setdefault(str(row["class"]), {})
        for column in chosen:
            value = column.value(row)
            if isinstance(value, (int, float)) and math.isfinite(value):
                if column.key not in of_class and len(of_class) >= MOST_HISTOGRAMS:
                    continue
                of_class.setdefault(column.key, (column, []))[1].append(float(value))
    return values


def histogram(numbers: NDArray[np.float64]) -> tuple[NDArray[np.int64], float, float]:
    """Return how many numbers fall into each of some equal steps, where the first begins and where the last ends."""
    low, high = float(numbers.min()), float(numbers.max())
    if high - low <= 1e-6 * max(abs(low), abs(high)):  # equal but for rounding
        low, high = low - 0.5, high + 0.5
    return np.histogram(numbers, BARS, (low, high))[0], low, high


def _histogram(column: TableColumn, numbers: NDArray[np.float64], colour: str) -> str:
    """Draw a histogram as SVG, with the median marked."""
    counts, low, high = histogram(numbers)
    wide, tall = 240, 84
    bars = "".join(
        f'<rect x="{index * wide / BARS + 0.5:.1f}" y="{tall - max(1.5, tall * count / counts.max()):.1f}" '
        f'width="{wide / BARS - 1:.1f}" height="{max(1.5, tall * count / counts.max()):.1f}" rx="1.5"/>'
        for index, count in enumerate(counts.tolist())
        if count
    )
    median = float(np.median(numbers))
    x = wide * (median - low) / (high - low)
    unit = column.written_unit.replace("um", "µm").replace("2", "²")
    title = column.key.replace("_", " ") + (f", {unit}" if unit else "")
    lowest, highest = _short(float(numbers.min())), _short(float(numbers.max()))
    summary = f"median {_short(median)}, {lowest} to {highest}, n = {len(numbers):,}"
    return (
        f'<figure title="{_text(column_of(column.key).meaning)}"><figcaption>{_text(title)}</figcaption>'
        f'<svg viewBox="0 0 {wide} {tall + 14}" role="img" aria-label="{_text(title)}: {summary}">'
        f'<g fill="{colour}">{bars}</g><line class="median" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{tall}"/>'
        f'<line class="axis" x1="0" x2="{wide}" y1="{tall + 0.5}" y2="{tall + 0.5}"/>'
        f'<text x="0" y="{tall + 12}">{_short(low)}</text>'
        f'<text x="{wide}" y="{tall + 12}" text-anchor="end">{_short(high)}</text></svg>'
        f'<p class="quiet">{summary}</p></figure>'
    )


def _pictures(report: Report) -> str:
    captions: dict[str, list[str]] = {}
    verdicts: dict[str, Value] = {}
    reasons: dict[str, str] = {}
    for row in report.photos.rows():
        name = place_of(row)
        captions.setdefault(name, [])
        if row.get("count"):
            index = report.classes.index(str(row["class"])) + 1
            colour = "rgb({}, {}, {})".format(*colour_of(index))
            share = row.get("share_within")
            more = f", {float(share):.1f} % of {row['within']}" if isinstance(share, (int, float)) else ""
            captions[name].append(
                f'<span><i style="background:{colour}"></i>{row["count"]} {_text(str(row["class"]) + more)}</span>'
            )
        verdicts[name] = row.get("verdict")
        if row.get("not_met"):
            reasons[name] = f'<div class="found bad">not met: {_text(row["not_met"])}</div>'
    order = sorted(captions, key=lambda name: verdicts[name] != "NOT OK")  # what was refused comes first
    figures = []
    for name in order[:MOST_PICTURES]:
        chip = _verdict_chip(verdicts[name])
        caption = " ".join(captions[name]) or '<span class="quiet">nothing found</span>'
        figures.append(
            f'<figure class="photo"><img alt="" src="{report.pictures.get(name, "")}">'
            f'<figcaption><b>{_text(name)}</b>{chip}<div class="found">{caption}</div>'
            f"{reasons.get(name, '')}</figcaption></figure>"
        )
    rest = len(order) - len(figures)
    more = f'<p class="quiet">{rest:,} more photos are in photos.csv.</p>' if rest > 0 else ""
    return f'<section><h2>Photos</h2><div class="sheet">{"".join(figures)}</div>{more}</section>'


def _verdict_chip(verdict: Value) -> str:
    return "" if verdict is None else f'<span class="chip {"good" if verdict == "OK" else "bad"}">{verdict}</span>'


def _table(report: Report) -> str:
    columns = [column for key in TABLE_KEYS for column in report.photos.columns if column.key == key]
    real = {column.key for column in columns if column.power and column.unit != PIXEL}
    columns = [column for column in columns if not (column.unit == PIXEL and column.key in real)]
    head = "".join(f'<th class="{_side(column)}">{_text(_heading(column))}</th>' for column in columns)
    body, total = [], 0
    for row in report.photos.rows():
        total += 1
        if total > MOST_ROWS:
            continue
        cells = "".join(f'<td class="{_side(column)}">{_cell(column, column.value(row))}</td>' for column in columns)
        body.append(f"<tr>{cells}</tr>")
    more = f'<p class="quiet">The other {total - MOST_ROWS:,} rows are in photos.csv.</p>' if total > MOST_ROWS else ""
    units = sorted({f"{row.get('unit_source')}" for row in report.photos.rows()})
    source = f'<p class="quiet">Size of a pixel from: {_text(", ".join(units))}.</p>'
    return (
        f'<section><h2>Table</h2>{source}<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>{more}</section>"
    )


def _heading(column: TableColumn) -> str:
    name = HEADINGS.get(column.key, column.key.replace("_", " "))
    unit = column.written_unit.replace("um", "µm").replace("2", "²") if column.power else ""
    return f"{name}, {unit}" if unit else name


def _side(column: TableColumn) -> str:
    return "text" if column.key in ("photo", "class", "reliable", "verdict", "source") else "number"


def _cell(column: TableColumn, value: Value) -> str:
    if column.key == "verdict":
        return _verdict_chip(value)
    if column.key == "reliable" and value == UNRELIABLE:
        return f'<span class="chip bad">{UNRELIABLE}</span>'
    return _text(_short(value) if isinstance(value, float) else "" if value is None else str(value))


def _problems(report: Report) -> str:
    if not report.skipped:
        return ""
    rows = "".join(f"<li><b>{_text(name)}</b> {_text(reason)}</li>" for name, reason in report.skipped)
    return f"<section><h2>Not measured</h2><ul>{rows}</ul></section>"


def _details(report: Report) -> str:
    parts = [
        ("Settings", report.settings, " open"),
        ("Versions", report.versions, " open"),
        ("SHA-256 of the files", report.hashes, ""),
    ]
    lists = "".join(
        f"<details{is_open}><summary>{title}</summary><dl>{_pairs(pairs)}</dl></details>"
        for title, pairs, is_open in parts
        if pairs
    )
    return f'<section class="details"><h2>How this was made</h2>{lists}</section>'


def _pairs(pairs: Mapping[str, str]) -> str:
    return "".join(f"<dt>{_text(key)}</dt><dd>{_text(value)}</dd>" for key, value in pairs.items())


def _short(value: float) -> str:
    """Write a number with as many digits as a reader needs.

    >>> _short(0.123456), _short(12.3456), _short(12345.6), _short(3.0)
    ('0.123', '12.3', '12,346', '3')
    """
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _text(text: object) -> str:
    return html.escape(str(text))


def shorten(pairs: Iterable[tuple[str, str]], most: int = 500) -> dict[str, str]:
    """Return pairs as a mapping of at most so many, and say how many are left out."""
    listed = list(pairs)
    shown = dict(listed[:most])
    if len(listed) > most:
        shown["..."] = f"{len(listed) - most} more"
    return shown


def versions() -> dict[str, str]:
    """Return the versions of the programs that measurements depend on."""
    versions = {"emat": __version__, "Python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


STYLE = """
:root { color-scheme: light dark; --ground: #f6f6f3; --panel: #fff; --ink: #1c1e24; --quiet: #676c77; --rule: #e3e3de;
  --good: #12704a; --good-ground: #dff3e8; --bad: #a3182f; --bad-ground: #fde4e8; --warn: #7a5200;
  --warn-ground: #fff1d1 }
@media (prefers-color-scheme: dark) { :root { --ground: #14151a; --panel: #1e2027; --ink: #eceef2; --quiet: #9ba1ad;
  --rule: #33363f; --good: #7fe0b0; --good-ground: #15372a; --bad: #ff9fb0; --bad-ground: #44171f; --warn: #ffd887;
  --warn-ground: #3d2f10 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
main { max-width: 78rem; margin: 0 auto; padding: 2.5rem 1.25rem 5rem }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 1.25rem; letter-spacing: -.02em; overflow-wrap: anywhere }
h2 { font-size: 1.2rem; margin: 2.75rem 0 .9rem } h3 { font-size: 1.05rem; margin: 0; display: flex; flex-wrap: wrap;
  align-items: center; gap: .5rem } p { margin: .25rem 0 } .quiet { color: var(--quiet); font-size: .9em }
i { display: inline-block; width: .8em; height: .8em; border-radius: .25em; margin-right: .35em }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(7.5rem, 1fr)); gap: .75rem; max-width: 46rem }
.tile, .card, .photo, details, .scroll { background: var(--panel); border: 1px solid var(--rule); border-radius: 14px }
.tile { padding: .7rem 1rem; color: var(--quiet) } .tile b { display: block; font-size: 1.7rem; line-height: 1.2;
  color: var(--ink); font-variant-numeric: tabular-nums } .tile.bad b { color: var(--bad) }
.notes p { border-left: 4px solid var(--warn); background: var(--warn-ground); padding: .6rem 1rem; border-radius: 8px;
  margin: .75rem 0; max-width: 60rem } .notes { margin-top: 1.5rem }
.cards { display: grid; gap: 1rem } .card { padding: 1rem 1.2rem } .charts { display: grid; gap: 1.5rem;
  grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); margin-top: .75rem }
figure { margin: 0 } .charts figcaption { font-size: .9em; font-weight: 600; margin-bottom: .3rem }
svg { width: 100%; height: auto; overflow: visible } svg text { font-size: 9.5px; fill: var(--quiet) }
.axis { stroke: var(--rule) } .median { stroke: var(--ink); stroke-dasharray: 3 2; stroke-width: 1.2 }
.sheet { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr)) }
.photo { overflow: hidden; break-inside: avoid } .photo img { width: 100%; height: 11.5rem; object-fit: contain;
  display: block; background: color-mix(in srgb, var(--ink) 8%, var(--panel)) }
.photo figcaption { padding: .6rem .8rem .75rem; overflow-wrap: anywhere } .found { font-size: .9em; margin-top: .15rem;
  display: flex; flex-wrap: wrap; gap: .1rem .8rem }
.chip { font-size: .75rem; font-weight: 600; padding: .1rem .55rem; border-radius: 99px; margin-left: .5rem;
  white-space: nowrap } td .chip { margin: 0 } .good { color: var(--good); background: var(--good-ground) }
.found.bad { color: var(--bad) } .chip.bad { color: var(--bad); background: var(--bad-ground) }
.warn { color: var(--warn); background: var(--warn-ground) }
.scroll { overflow-x: auto; padding: .25rem 0 } table { border-collapse: collapse; width: 100%; font-size: .92em }
th, td { padding: .4rem .9rem; text-align: left; border-bottom: 1px solid var(--rule) } tr:last-child td { border: 0 }
th { color: var(--quiet); font-weight: 600; white-space: nowrap } .number { text-align: right;
  font-variant-numeric: tabular-nums } td.text { overflow-wrap: anywhere }
details { padding: .7rem 1.1rem; margin-bottom: .75rem } summary { font-weight: 600; cursor: pointer }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: .2rem 1.25rem; margin: .6rem 0 .2rem;
  font-size: .9em } dt { color: var(--quiet); overflow-wrap: anywhere } dd { margin: 0; overflow-wrap: anywhere }
ul { padding-left: 1.2rem }
@media print { :root { --ground: #fff; --panel: #fff; --ink: #000; --quiet: #444; --rule: #bbb }
  body { font-size: 10pt }
  main { padding: 0; max-width: none } h2 { break-after: avoid } .card, tr, .photo { break-inside: avoid }
  thead { display: table-header-group } .sheet { grid-template-columns: repeat(3, 1fr) } .photo img { height: 4.2cm }
  .charts { grid-template-columns: repeat(4, 1fr); gap: .6rem } .scroll { overflow: visible; border: 0 }
  table { font-size: 8pt } th, td { padding: .2rem .35rem } th { white-space: normal; vertical-align: bottom }
  details::details-content { content-visibility: visible; block-size: auto } dl { font-size: 8pt }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact } @page { margin: 1.6cm } }
"""
