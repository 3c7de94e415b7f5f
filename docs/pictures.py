"""Makes the pictures of the documentation again. It needs emat[studio], Playwright and Chromium.

    python docs/pictures.py screens               # the demo and the studio, with the head that comes with emat
    python docs/pictures.py diagrams mermaid.js   # the Mermaid diagrams of all pages, as SVG

Mermaid itself is not part of the project. `npm pack mermaid@11` fetches it; the file is `package/dist/mermaid.min.js`.
"""

import shutil
import subprocess
import sys
import tempfile
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
COLOURS = 200  # of a picture's palette: screens have few, and files stay small
PATIENCE = 120_000  # milliseconds
DRAW = "async ([name, source]) => (await mermaid.render(name, source)).svg"
MERMAID_OPTIONS = {
    "startOnLoad": False,
    "theme": "neutral",
    "fontFamily": "Helvetica, Arial, sans-serif",
    "themeCSS": ".edgeLabel .background { fill: #fff; opacity: 1; }",  # no line runs through a label
    "htmlLabels": False,  # an SVG that a page shows as a picture must not hold HTML
    "flowchart": {"htmlLabels": False, "useMaxWidth": False, "nodeSpacing": 30, "rankSpacing": 40},
}
STROKE = (
    (0.3, 0.2), (0.5, 0.13), (0.7, 0.2), (0.8, 0.35), (0.2, 0.3), (0.25, 0.4), (0.8, 0.42), (0.75, 0.5), (0.25, 0.48),
    (0.3, 0.55), (0.7, 0.57),
)  # fmt: skip  # over the cub's face, in shares of the photo


def picture_of_demo() -> None:
    """What `emat demo` ends with."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "emat", "demo", "--out", folder], check=True)
        shutil.copy(Path(folder) / "demo.png", IMAGES / "demo.png")


def pictures_of_studio() -> None:
    """The whole page in a wide window, one step on a phone, and a photo that is painted."""
    with serving(Segmenter.load("default")) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])

        wide = open_demo(browser, address, 1280, "dark")
        drop_cub(wide)
        save(wide.locator("#studio"), "studio-wide.png", width=640)

        narrow = open_demo(browser, address, 390, "light")
        save(narrow.locator(".step").nth(2), "studio-narrow.png")

        painted = open_demo(browser, address, 1010, "light")
        drop_cub(painted)
        paint(painted)
        save(painted.locator(".step").nth(1), "studio-paint.png")
        browser.close()


def open_demo(browser: Any, address: str, width: int, scheme: str) -> Any:
    """A page on which the example was asked for and answered."""
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    page.click("#demo")
    page.wait_for_selector("#answers figure >> nth=2")
    page.wait_for_selector("#progress .progress", state="detached")
    page.wait_for_timeout(2000)
    return page


def drop_cub(page: Any) -> None:
    """A further photo into the editor."""
    page.set_input_files("#draft-files input[type=file]", str(CUB))
    page.wait_for_selector("#draft-editor canvas")
    page.wait_for_timeout(5000)


def paint(page: Any) -> None:
    """One stroke over the photo in the editor."""
    canvas = page.locator("#draft-editor canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    with Image.open(CUB) as photo:
        ratio = photo.width / photo.height
    height = box["height"] - 60  # the editor's margin
    left, top = box["x"] + (box["width"] - ratio * height) / 2, box["y"] + 30
    for index, (x, y) in enumerate(STROKE):
        page.mouse.move(left + x * ratio * height, top + y * height, steps=3)
        if index == 0:
            page.mouse.down()
    page.mouse.up()
    page.wait_for_timeout(1000)


def save(element: Any, name: str, width: int | None = None) -> None:
    """A picture of the element, `width` pixels wide or as it is on the screen."""
    path = IMAGES / name
    element.screenshot(path=path)
    with Image.open(path) as shot:
        picture = shot.convert("RGB")
    if width is not None:
        picture = picture.resize((width, round(picture.height * width / picture.width)), Image.Resampling.LANCZOS)
    picture.quantize(COLOURS, dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)
    print(f"{path}: {picture.width} x {picture.height}")


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
            picture_of_demo()
            pictures_of_studio()
        case ["diagrams", mermaid]:
            pictures_of_diagrams(Path(mermaid))
        case _:
            sys.exit(__doc__)
