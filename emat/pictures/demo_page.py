"""The demonstration as a web page in a single file that does not load anything else."""

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from emat.files import write_text
from emat.pictures.demo import AnswerCard, ExampleCard, ScoreBar

QUALITY = 88  # of the JPEG pictures

STYLE = """
:root { color-scheme: light dark; --ground: #fafaf8; --panel: #fff; --ink: #1e2026; --quiet: #70747e; --rule: #e2e2de }
@media (prefers-color-scheme: dark) {
  :root { --ground: #15161a; --panel: #1f2127; --ink: #eceef2; --quiet: #9aa0ac; --rule: #34373f } }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 76rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.9rem; margin: 0 0 .25rem } h2 { font-size: 1.15rem; margin: 2.25rem 0 .75rem }
p { color: var(--quiet); margin: 0; max-width: 46rem }
.cards { display: grid; gap: 1.25rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)) }
figure { margin: 0; padding: .75rem; background: var(--panel); border: 1px solid var(--rule); border-radius: 14px }
img { width: 100%; height: 17rem; object-fit: contain; border-radius: 8px; display: block; margin-bottom: .5rem }
figcaption { font-weight: 600 } .score { display: grid; grid-template-columns: 5.5rem 1fr 3rem; gap: .5rem;
  align-items: center; font-weight: 400; font-variant-numeric: tabular-nums } .absent { color: var(--quiet) }
.bar { height: .8rem; border-radius: .4rem; background: var(--rule); overflow: hidden }
.bar i { display: block; height: 100%; border-radius: .4rem } .score b { font-weight: 400; text-align: right }
pre { background: var(--panel); border: 1px solid var(--rule); border-radius: 14px; padding: 1rem; overflow-x: auto }
"""

CODE = """from emat import Example, Segmenter

segmenter = Segmenter.load("default").fit([
    Example("cheetah1.jpg", {"cheetah": "cheetah.png"}),
    Example("lion.jpg", {"lion": "lion.png"}),
])
prediction = segmenter.predict("cheetah2.jpg")
prediction.scores, prediction.present, prediction.mask("cheetah")"""


def write_page(path: Path, examples: Sequence[ExampleCard], answers: Sequence[AnswerCard]) -> None:
    """Write the page, whole or not at all."""
    shown = "".join(_figure([card.picture], f"<figcaption>{html.escape(card.title)}</figcaption>") for card in examples)
    answered = "".join(_figure([card.photo, card.picture], _caption(card)) for card in answers)
    write_text(
        path,
        f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>emat demo</title><style>{STYLE}</style>
<h1>Two examples in, masks out</h1>
<p>emat got one photo with a mask for each class. Below are other photos and what it found in them: a score for each
class, and a mask, which is empty if the class is not in the photo.</p>
<h2>Shown, with a mask</h2><div class="cards">{shown}</div>
<h2>Predictions</h2><div class="cards">{answered}</div>
<h2>The same in Python</h2><pre>{html.escape(CODE)}</pre>
</html>
""",
    )


def _figure(pictures: Sequence[Image.Image], caption: str) -> str:
    images = "".join(f'<img alt="" src="{_embedded(picture)}">' for picture in pictures)
    return f"<figure>{images}{caption}</figure>"


def _caption(card: AnswerCard) -> str:
    scores = "".join(_score(score) for score in card.scores)
    return f"<figcaption>{html.escape(card.title)}: {html.escape(card.verdict)}{scores}</figcaption>"


def _score(score: ScoreBar) -> str:
    colour = "rgb({}, {}, {})".format(*score.colour) if score.present else "var(--quiet)"
    bar = f'<span class="bar"><i style="width: {score.value:.0%}; background: {colour}"></i></span>'
    name = html.escape(score.name)
    return (
        f'<div class="score{"" if score.present else " absent"}"><span>{name}</span>{bar}<b>{score.value:.2f}</b></div>'
    )


def _embedded(picture: Image.Image) -> str:
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()
