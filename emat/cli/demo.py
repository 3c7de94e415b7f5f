"""`emat demo`: find the classes of example photos in other photos, and draw a picture of it."""

import json
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from emat.backbone.mobilesam import find_mobilesam
from emat.cli.options import AsJson, DeviceName, HeadName, Overwrite
from emat.formats.results import ObjectTable
from emat.images import read_object_mask
from emat.inference.prediction import Prediction
from emat.inference.segmenter import Segmenter
from emat.methods.trained_head import LIGHT_HEAD
from emat.outputs import claim_file, write_text
from emat.pictures.demo import (
    NUCLEUS,
    DemoPhotos,
    ObjectCount,
    answer_card,
    count_objects,
    demo_photos,
    draw_demo,
    example_card,
    save_picture,
    write_page,
)
from emat.refine.mobilesam import required_mobilesam

DRAWN = 3  # answers in the picture; the page has all of them


def command(
    name: Annotated[str, typer.Argument(help="cats (two animals) or nuclei (count cells, measure areas).")] = "cats",
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for demo.png and demo.html.")] = Path("."),
    crisp: Annotated[
        bool, typer.Option("--crisp", help="Fetch MobileSAM's weights first (41 MB), for crisper outlines.")
    ] = False,
    model: HeadName = LIGHT_HEAD,  # the same answers on every machine, whether MobileSAM is on it or not
    device: DeviceName = "auto",
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Learn from one masked photo of each class and find the classes in other photos, which come with emat.

    Writes demo.png and demo.html; `emat demo nuclei` also writes objects.csv, a row for each nucleus.

    Example: emat demo --out demo
    """
    photos = demo_photos(name)
    for file in ("demo.png", "demo.html", *(["objects.csv"] if name == "nuclei" else [])):
        claim_file(out / file, overwrite=overwrite)
    if crisp:
        required_mobilesam()
    segmenter = Segmenter.load(model, device=device, fetch=False).fit(photos.examples)
    began = time.perf_counter()
    predictions = dict(zip(photos.queries, segmenter.predict_many(photos.queries.values()), strict=True))
    seconds = (time.perf_counter() - began) / len(predictions)
    counts = {
        title: count_objects(predictions[title], NUCLEUS, read_object_mask(mask))
        for title, mask in photos.masks.items()
    }
    examples = [example_card(example, segmenter.classes_) for example in photos.examples]
    answers = [answer_card(title, prediction, counts.get(title)) for title, prediction in predictions.items()]
    files = [out / "demo.png", out / "demo.html"]
    save_picture(draw_demo(photos.heading, examples, answers[:DRAWN]), files[0])
    write_page(files[1], photos, examples, answers)
    if counts:
        files.append(out / "objects.csv")
        _write_objects(files[-1], predictions, photos)
    if as_json:
        scores = {photos.queries[title].name: dict(p.scores) for title, p in predictions.items()}
        typer.echo(json.dumps({"scores": scores, "files": [str(file) for file in files]}))
        return
    Console().print(_count_table(counts) if counts else _table(predictions, photos))
    *_, last = files
    more = f" or read {last}" if counts else ""
    typer.echo(f"{seconds:.1f} s per photo. Look at {files[0]}, open {files[1]}{more}.")
    if not counts and find_mobilesam() is None:
        typer.echo("For crisper outlines (41 MB once): emat demo --crisp")
    typer.echo("Your own photos: emat fit EXAMPLES -o mine.emat, or with clicks in the browser: emat studio")


def _write_objects(path: Path, predictions: dict[str, Prediction], photos: DemoPhotos) -> None:
    table = ObjectTable(None)
    rows = [table.header]
    for title, prediction in predictions.items():
        rows += table.rows(photos.queries[title].name, {NUCLEUS: prediction.instances(NUCLEUS).rows})
    write_text(path, "".join(",".join(row) + "\n" for row in rows))


def _count_table(counts: dict[str, ObjectCount]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_footer=True)
    mean = float(np.mean([nuclei.iou for nuclei in counts.values()]))
    table.add_column("photo", "all")
    for column, footer in (
        ("nuclei", sum(nuclei.count for nuclei in counts.values())),
        ("in the mask by hand", sum(nuclei.count_by_hand for nuclei in counts.values())),
        ("median area, pixels", ""),
        ("IoU with the mask by hand", f"{mean:.2f}"),
    ):
        table.add_column(column, str(footer), justify="right")
    for title, nuclei in counts.items():
        numbers = (str(nuclei.count), str(nuclei.count_by_hand), f"{nuclei.median_area:.0f}", f"{nuclei.iou:.2f}")
        table.add_row(title, *numbers)
    return table


def _table(predictions: dict[str, Prediction], photos: DemoPhotos) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("photo")
    classes = next(iter(predictions.values())).classes
    for name in classes:
        table.add_column(escape(name), justify="right")
    table.add_column("found")
    for title, prediction in predictions.items():
        scores = [f"{prediction.scores[name]:.2f}" for name in classes]
        present = ", ".join(f"{name} ({share:.0%} of the photo)" for name, _, share in prediction.found())
        table.add_row(f"{photos.queries[title].name} ({title})", *scores, escape(present) or "nothing")
    return table
