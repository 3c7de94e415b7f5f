"""The studio as its users meet it: in a real browser, with a mouse."""

import importlib.util
import io
import json
import re
import shutil
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from emat import Example, Segmenter
from emat.images import read_mask
from emat.studio.server import serving
from tests.inference.colour_method import ColourMethod
from tests.studio.conftest import BLUE, GREY, RED, stripes

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ABSENT = [name for name in ("gradio", "playwright") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(ABSENT), reason=f"needs {' and '.join(ABSENT)}"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync "
    "--no-first-run"
)
PAINTED_RED = (244, 106, 9)  # RED under the paint of the first class
PATIENCE = 60_000  # milliseconds; machines that run tests are often busy
LARGE = (300, 400)


@pytest.fixture(scope="module")
def method() -> ColourMethod:
    return ColourMethod()


@pytest.fixture(scope="module")
def address(method: ColourMethod) -> Iterator[str]:
    with serving(Segmenter(method)) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield browser
        browser.close()


class Tab:
    """A page that notes what it asked the world for and what went wrong."""

    def __init__(self, context: Any, address: str) -> None:
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.foreign: list[str] = []
        self.problems: list[str] = []
        self.leaving = False
        self.page.on("request", self._note_request)
        self.page.on("console", lambda message: self._note_problem(message.type, message.text))
        self.page.on("pageerror", lambda error: self._note_problem("error", str(error)))
        self.page.goto(address)
        self.page.wait_for_selector("#classes .empty, #classes .chip")

    def _note_request(self, request: Any) -> None:
        if not re.match(r"(http://127\.0\.0\.1:\d+/|data:|blob:)", request.url):
            self.foreign.append(request.url)

    def _note_problem(self, kind: str, text: str) -> None:
        if kind == "error" and not self.leaving:  # a reload cuts the page's own connection, which its client reports
            self.problems.append(text)

    def reload(self) -> None:
        self.leaving = True
        self.page.reload()
        self.page.wait_for_selector("#classes .empty, #classes .chip")
        self.leaving = False

    def see(self, selector: str, index: int = 0) -> Any:
        self.page.wait_for_selector(f"{selector} >> nth={index}")
        return self.page.locator(selector).nth(index)

    def drop(self, where: str, *files: dict[str, Any]) -> None:
        self.page.set_input_files(f"{where} input[type=file], input[type=file]:has(+ {where})", list(files))

    def name_classes(self, text: str, count: int) -> None:
        self.page.fill("#class-name :is(input, textarea)", text)
        self.page.press("#class-name :is(input, textarea)", "Enter")
        self.see("#classes .chip", count - 1)

    def stroke(self, editor: str, shares: tuple[float, float, float, float]) -> None:
        """Paint to and fro from (left, top) to (right, bottom), given as shares of the photo in the editor."""
        left, top = self._on_photo(editor, shares[0], shares[1])
        right, bottom = self._on_photo(editor, shares[2], shares[3])
        mouse = self.page.mouse
        mouse.move(left, top)
        mouse.down()
        for row, y in enumerate(np.linspace(top, bottom, 4)):
            mouse.move(right if row % 2 == 0 else left, float(y), steps=2)
        mouse.up()

    def wait_for_colour(self, editor: str, x: float, y: float, colour: tuple[int, int, int]) -> None:
        """Until the photo in the editor, with the paint on it, has `colour` at (x, y), given as shares of it."""
        for _ in range(PATIENCE // 300):
            left, top = self._on_photo(editor, x, y)
            seen = Image.open(io.BytesIO(self.page.screenshot(clip={"x": left, "y": top, "width": 4, "height": 4})))
            found = np.asarray(seen.convert("RGB"), int).mean(axis=(0, 1))
            if np.abs(found - colour).max() < 40:
                return
            self.page.wait_for_timeout(300)
        raise AssertionError(f"the editor shows {found} where it should show {colour}")

    def _on_photo(self, editor: str, x: float, y: float) -> tuple[float, float]:
        """Where on the screen a point of the photo, of the shape LARGE, is: in the middle, with a margin around it."""
        canvas = self.page.locator(f"{editor} canvas").first
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        height = min(box["height"] - 60, (box["width"] - 60) * LARGE[0] / LARGE[1])
        width = height * LARGE[1] / LARGE[0]
        left, top = box["x"] + (box["width"] - width) / 2, box["y"] + (box["height"] - height) / 2
        return left + x * width, top + y * height


@pytest.fixture
def tab(browser: Any, address: str) -> Iterator[Tab]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    tab = Tab(context, address)
    yield tab
    context.close()
    assert tab.foreign == [], "no request leaves the machine"
    assert tab.problems == [], "the console has no errors"


def photo(name: str, *colours: tuple[int, int, int], size: tuple[int, int] = LARGE) -> dict[str, Any]:
    data = io.BytesIO()
    Image.fromarray(stripes(*colours, size=size)).save(data, "PNG")
    return {"name": name, "mimeType": "image/png", "buffer": data.getvalue()}


def test_from_paint_to_masks_and_back_after_a_reload(tab: Tab, method: ColourMethod) -> None:
    page = tab.page
    tab.name_classes("red, blue", 2)
    tab.drop("#draft-files", photo("a.png", RED, GREY))
    tab.wait_for_colour("#draft-editor", 0.25, 0.5, RED)
    page.click("#draft-done")
    tab.see("text=Nothing is painted on a.png yet")
    tab.stroke("#draft-editor", (0.1, 0.2, 0.4, 0.8))
    page.click("#draft-done")
    tab.see("#examples figure")

    before = method.encoded
    tab.drop("#photo-files", photo("b.png", RED, BLUE), photo("c.png", (150, 50, 50), GREY, size=(700, 500)))
    assert "red" in tab.see("#answers figure .score").inner_text()
    assert "not here: red" in tab.see("#answers .absent").inner_text()
    assert method.encoded == before + 2

    first = page.locator("#answers figure img").nth(1).get_attribute("src")
    page.locator("#sliders input").evaluate(
        "slider => { slider.value = 0.1; slider.dispatchEvent(new Event('input', {bubbles: true})) }"
    )
    page.wait_for_selector("#answers .absent", state="detached")
    assert page.locator("#answers figure img").nth(1).get_attribute("src") != first, "coloured anew"
    assert method.encoded == before + 2, "and the network was not asked"

    page.click("#answers [data-act=correct] >> nth=1")
    tab.see("#correction >> text=c.png")
    page.click("#answers [data-act=correct] >> nth=0")
    tab.wait_for_colour("#correction-editor", 0.03, 0.05, PAINTED_RED)
    tab.wait_for_colour("#correction-editor", 0.9, 0.9, BLUE)
    page.click("#correction [data-act=brush] >> nth=1")
    tab.see("#correction [data-act=brush][aria-pressed=true] >> text=blue")
    tab.stroke("#correction-editor", (0.6, 0.2, 0.9, 0.8))
    page.click("#correction-done")
    assert "blue" in tab.see("text=painted by you").inner_text()
    tab.see("#examples figure", 1)
    assert method.encoded == before + 2, "the corrected photo was known already"

    with page.expect_download() as download:
        page.click("#export")
    with zipfile.ZipFile(download.value.path()) as archive:
        masks = {name: read_mask(archive.read(f"masks/{name}.png")) for name in ("b", "c")}
    assert masks["b"].shape == LARGE
    assert masks["b"][150, 50] == 1, "red, as it was found"
    assert masks["b"][150, 300] == 2, "blue, as it was painted"
    assert masks["c"].shape == (700, 500)
    assert masks["c"][150, 50] == 1

    tab.reload()
    tab.see("#examples figure", 1)
    tab.see("#answers figure", 1)
    tab.see("text=painted by you")
    page.click("#examples [data-act=remove-example] >> nth=0")
    page.wait_for_selector("#examples figure >> nth=1", state="detached")


def test_tabs_do_not_see_each_other(tab: Tab, address: str) -> None:
    tab.name_classes("secret", 1)
    other = Tab(tab.page.context, address)
    assert "No class yet" in other.see("#classes").inner_text()
    assert other.problems == []
    other.page.close()


def test_a_mask_file_takes_the_place_of_paint_and_the_bin_wipes_it(tab: Tab) -> None:
    tab.name_classes("red", 1)
    tab.drop("#draft-files", photo("a.png", RED, GREY))
    tab.wait_for_colour("#draft-editor", 0.25, 0.5, RED)
    mask = np.zeros(LARGE, bool)
    mask[:, :200] = True
    data = io.BytesIO()
    Image.fromarray(mask).save(data, "PNG")
    mask_file = {"name": "mask.png", "mimeType": "image/png", "buffer": data.getvalue()}
    tab.drop("#draft-mask", mask_file)
    tab.wait_for_colour("#draft-editor", 0.25, 0.5, PAINTED_RED)
    tab.page.click("#draft-editor button[aria-label*=lear]")
    tab.wait_for_colour("#draft-editor", 0.25, 0.5, RED)
    tab.drop("#draft-mask", mask_file)
    tab.wait_for_colour("#draft-editor", 0.25, 0.5, PAINTED_RED)
    tab.page.click("#draft-done")
    assert "red" in tab.see("#examples figure").inner_text()


def test_names_are_shown_and_never_run(tab: Tab) -> None:
    names = ["<img src=x onerror=document.title=1>", "${document.title=2}", "{{value}}"]
    tab.name_classes(", ".join(names), 3)
    assert [chip.inner_text().strip("×\n ") for chip in tab.page.locator("#classes .chip").all()] == names
    assert tab.page.title() == "emat studio"


def test_what_is_wrong_is_said_in_a_sentence(tab: Tab) -> None:
    tab.drop("#draft-files", photo("a.png", RED))
    tab.see("text=Name at least one class in step 1 first")
    tab.drop("#photo-files", {"name": "notes.jpg", "mimeType": "image/jpeg", "buffer": b"no photo"})
    tab.see("text=notes.jpg is not JPEG")
    tab.page.click("#export")
    tab.see("text=There are no masks yet")


def test_a_fitted_file_is_opened_and_saved(tab: Tab, tiny_head: Path, tmp_path: Path) -> None:
    Segmenter.load(tiny_head).fit([Example(stripes(RED, GREY), {"red": (0, 0, 30, 40)})]).save(tmp_path / "red.emat")
    data = (tmp_path / "red.emat").read_bytes()
    tab.drop("#open-file", {"name": "red.emat", "mimeType": "application/octet-stream", "buffer": data})
    tab.see("#examples figure")
    with tab.page.expect_download() as download:
        tab.page.click("#save")
    assert download.value.suggested_filename == "red.emat"
    assert Segmenter.load(download.value.path()).classes_ == ("red",)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_the_demonstration_is_one_click_and_fits_the_screen(
    browser: Any, address: str, width: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    tab = Tab(context, address)
    tab.page.click("#demo")
    tab.see("#examples figure", 1)
    tab.see("#answers figure", 2)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    dark = tab.page.evaluate("getComputedStyle(document.querySelector('.step')).backgroundColor")
    assert (max(int(part) for part in re.findall(r"\d+", dark)[:3]) < 100) == (scheme == "dark")
    context.close()
    assert tab.foreign == tab.problems == []


@pytest.mark.parametrize(
    ("path", "host"),
    [("gradio_api/file=/etc/passwd", None), (f"gradio_api/file={Path(__file__)}", None), ("", "evil.example")],
)
def test_no_file_of_the_machine_is_served_and_no_other_name_answered(address: str, path: str, host: str | None) -> None:
    request = urllib.request.Request(address + path, headers={"Host": host} if host else {})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    assert caught.value.code in (400, 403, 404)


def test_a_path_that_a_browser_makes_up_is_not_read(address: str) -> None:
    with urllib.request.urlopen(address + "config") as answer:
        config = json.load(answer)
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    uploads = [entry for entry in config["dependencies"] if any(target[1] == "upload" for target in entry["targets"])]
    assert uploads
    thief = "thief"
    stolen = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
    for entry in uploads:
        data = [None, [stolen], None][: len(entry["inputs"])]
        body = json.dumps({"fn_index": entry["id"], "session_hash": thief, "data": data}).encode()
        join = urllib.request.Request(address + "gradio_api/queue/join", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(join).close()
        with urllib.request.urlopen(f"{address}gradio_api/queue/data?session_hash={thief}") as stream:
            messages = [json.loads(line[len("data: ") :]) for line in stream.read().decode().splitlines() if line]
        (completed,) = [message for message in messages if message["msg"] == "process_completed"]
        assert not completed["success"]
        assert "root:" not in json.dumps(messages)
