"""`emat demo`: find the classes of two example photos in three other photos, and draw a picture of it."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from emat.cli.options import AsJson, DeviceName, HeadName
from emat.inference.prediction import Prediction
from emat.inference.segmenter import Segmenter
from emat.pictures.demo import answer_card, demo_photos, draw_demo, example_card, save_picture, write_page


def command(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for demo.png and demo.html.")] = Path("."),
    model: HeadName = "default",
    device: DeviceName = "auto",
    as_json: AsJson = False,
) -> None:
    """Show one cheetah and one lion as examples, and find both in three other photos.

    Writes demo.png and demo.html.

    Example: emat demo --out demo
    """
    photos = demo_photos()
    segmenter = Segmenter.load(model, device=device, refine="auto").fit(photos.examples)
    began = time.perf_counter()
    predictions = dict(zip(photos.queries, segmenter.predict_many(photos.queries.values()), strict=True))
    seconds = (time.perf_counter() - began) / len(predictions)
    examples = [example_card(example, segmenter.classes_) for example in photos.examples]
    answers = [answer_card(title, prediction) for title, prediction in predictions.items()]
    save_picture(draw_demo(examples, answers), out / "demo.png")
    write_page(out / "demo.html", examples, answers)
    if as_json:
        scores = {photos.queries[title].name: dict(p.scores) for title, p in predictions.items()}
        typer.echo(json.dumps({"scores": scores, "files": [str(out / "demo.png"), str(out / "demo.html")]}))
        return
    console = Console()
    console.print(_table(predictions, {title: path.name for title, path in photos.queries.items()}))
    console.print(
        f"{seconds:.1f} s per photo. Look at {out / 'demo.png'} or open {out / 'demo.html'}.", highlight=False
    )


def _table(predictions: dict[str, Prediction], files: dict[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("photo")
    classes = next(iter(predictions.values())).classes
    for name in classes:
        table.add_column(escape(name), justify="right")
    table.add_column("found")
    for title, prediction in predictions.items():
        scores = [f"{prediction.scores[name]:.2f}" for name in classes]
        found = ", ".join(f"{name} ({share:.0%} of the photo)" for name, _, share in prediction.found())
        table.add_row(f"{files[title]} ({title})", *scores, escape(found) or "nothing")
    return table
