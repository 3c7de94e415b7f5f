"""Makes the pictures of the documentation again. It needs emat[studio], Playwright and Chromium.

    python docs/pictures.py screens               # the demo and the studio, with the head that comes with emat
    python docs/pictures.py diagrams mermaid.js   # the Mermaid diagrams of all pages, as SVG

Mermaid itself is not part of the project. `npm pack mermaid@11` fetches it; the file is `package/dist/mermaid.min.js`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from emat import Segmenter
from emat.pictures.demo import demo_photos
from emat.studio.server import serving

sys.path.insert(0, str(Path(__file__).parents[1]))  # docs is not an installed package
from docs.site_hooks import DIAGRAMS, DOCS, diagrams, source_hash

IMAGES = DOCS / "images"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CUB = demo_photos().queries["a cub"]
FLAT, OTHER = 64, 192  # colours of a picture's palette: the most frequent ones exactly, and some for photos
PATIENCE = 600_000  # milliseconds
DEMO_WIDTH = 1216  # pixels
WIDEST = 900  # pixels of a picture
# Name, width of the window, colours, and which part of the page.
SCREENS = (
    ("studio-wide.png", 1280, "dark", "body"),
    ("studio-tablet.png", 768, "light", "#step-3"),
    ("studio-narrow.png", 390, "light", "#step-3"),
)
TALL = 2600  # pixels: the page loads pictures when they come into sight, and here all of them are
DRAW = "async ([name, source]) => (await mermaid.render(name, source)).svg"
MERMAID_OPTIONS = {
    "startOnLoad": False,
    "theme": "neutral",
    "fontFamily": "Helvetica, Arial, sans-serif",
    "themeCSS": ".edgeLabel .background { fill: #fff; opacity: 1; }",  # no line runs through a label
    "htmlLabels": False,  # an SVG that a page shows as a picture must not hold HTML
    "flowchart": {"htmlLabels": False, "useMaxWidth": False, "nodeSpacing": 30, "rankSpacing": 40},
}


def pictures_of_demos() -> None:
    """What `emat demo --crisp` and `emat demo nuclei` end with on a new machine."""
    for words, shown in ((("cats", "--crisp"), "demo.png"), (("nuclei",), "demo-nuclei.png")):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "EMAT_HOME": folder}
            command = [sys.executable, "-m", "emat", "demo", *words, "--out", folder]
            subprocess.run(command, check=True, env=environment)
            with Image.open(Path(folder) / "demo.png") as drawn:
                picture = drawn.convert("RGB")
        picture = picture.resize((DEMO_WIDTH, round(picture.height * DEMO_WIDTH / picture.width)))
        picture.quantize(256).save(IMAGES / shown, optimize=True)


def pictures_of_studio() -> None:
    """The page at three widths, dark and light, and the editor with an outline that a click gave.

    Outlines are crisp, and a click outlines, if MobileSAM's weights are here: `emat weights fetch mobilesam`.
    """
    with serving(Segmenter.load("default"), private=True) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = open_demo(browser, address)
        for name, width, scheme, part in SCREENS:
            page.set_viewport_size({"width": width, "height": TALL})
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            page.wait_for_timeout(2000)  # pictures are on their way
            save(page.locator(part), name, width=min(width, WIDEST))
        click(page)
        save(page.locator("#editor"), "studio-click.png", width=WIDEST)
        browser.close()


def open_demo(browser: Any, address: str) -> Any:
    """A page on which the example was asked for and answered, and its masks were refined."""
    page = browser.new_context(viewport={"width": 1280, "height": TALL}).new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    page.click("#demo")
    page.wait_for_selector("#list .dots")
    page.wait_for_function("() => !document.querySelector('#progress').firstChild")
    page.check("#objects")
    page.wait_for_selector("#viewer th >> text=Objects")
    return page


def click(page: Any) -> None:
    """A further photo in the editor, and a click in the middle of it; without MobileSAM, a stroke of the brush."""
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.set_input_files("#draft-files input", str(CUB))
    page.wait_for_selector("#editor[open] [data-tool][aria-pressed=true]")
    page.wait_for_timeout(500)
    box = page.locator("#editor canvas").bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.click(*middle)
    if page.locator("[data-tool=click]").get_attribute("aria-disabled") == "false":
        page.wait_for_selector(".object-actions:visible")
    page.wait_for_timeout(500)


def save(element: Any, name: str, width: int | None = None) -> None:
    """A picture of the element, `width` pixels wide or as it is on the screen."""
    path = IMAGES / name
    element.screenshot(path=path)
    with Image.open(path) as shot:
        picture = shot.convert("RGB")
    if width is not None:
        picture = picture.resize((width, round(picture.height * width / picture.width)), Image.Resampling.LANCZOS)
    picture.quantize(palette=palette_of(picture), dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)
    print(f"{path}: {picture.width} x {picture.height}")


def palette_of(picture: Image.Image) -> Image.Image:
    """256 colours for a picture of the screen. Those of the page itself are exact, or its surfaces would get a tint."""
    counts: list[Any] = picture.getcolors(picture.width * picture.height) or []
    frequent = [colour for _, colour in sorted(counts, reverse=True)[:FLAT]]
    others = picture.quantize(OTHER).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([*chain.from_iterable(frequent), *others[: 3 * OTHER]])
    return palette


def pictures_of_diagrams(mermaid: Path) -> None:
    """Every diagram of every page as an SVG file, marked with the hash of its source."""
    (IMAGES / "diagrams").mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.add_script_tag(path=mermaid)
        page.evaluate("options => mermaid.initialize(options)", MERMAID_OPTIONS)
        for markdown in sorted(DOCS.rglob("*.md")):
            for name, source in diagrams(markdown.read_text(encoding="utf-8")):
                drawn = page.evaluate(DRAW, [name, source])
                path = DOCS / DIAGRAMS / f"{name}.svg"
                path.write_text(f"<!-- source {source_hash(source)} -->\n{drawn}\n", encoding="utf-8")
                print(path)
        browser.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["screens"]:
            pictures_of_demos()
            pictures_of_studio()
        case ["diagrams", mermaid]:
            pictures_of_diagrams(Path(mermaid))
        case _:
            sys.exit(__doc__)
