"""Widths, colour schemes, the keyboard alone, and axe-core's check of accessibility."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.studio.browser_tab import NEEDS_BROWSER, Tab, photo
from tests.studio.clips import frames, tiff
from tests.studio.conftest import GREY, RED

pytestmark = NEEDS_BROWSER
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core. Tests use no network, so somebody else fetches it (`.ci/run` does)."""
    given = os.environ.get("EMAT_AXE")
    if not given:
        pytest.skip("set EMAT_AXE to axe.min.js of the npm package axe-core")
    return Path(given).read_text(encoding="utf-8")


def violations(tab: Tab, axe: str) -> list[str]:
    tab.page.evaluate(axe)
    found = tab.page.evaluate("async () => (await axe.run()).violations")
    return [
        f"{each['id']}: {node['html'][:150]} {node.get('failureSummary', '')[:150]}"
        for each in found
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]


def full_page(context: Any, address: str) -> Tab:
    """A page with everything on it: classes, an example, photos with results."""
    tab = Tab(context, address)
    tab.name_classes("red, a class with a rather long name", 2)
    tab.draft("a.png", RED, GREY)
    tab.fill_left_half()
    tab.page.click("#editor-done")
    tab.page.wait_for_selector("#editor", state="hidden")
    tab.drop("#photo-files", photo("b.png", RED, GREY), photo("a_rather_long_name_of_a_photo_0123456789.png", GREY))
    tab.until_done()
    return tab


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, address: str, axe: str, scheme: str) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    tab = full_page(context, address)
    assert violations(tab, axe) == []
    tab.drop("#photo-files", {"name": "pages.tif", "mimeType": "image/tiff", "buffer": tiff(frames())})
    tab.see("#stack-open:enabled")
    assert violations(tab, axe) == []
    tab.page.click("#stack-open")
    tab.see("#strip li")
    tab.until_done()
    assert violations(tab, axe) == []
    tab.page.click("#correct")
    tab.wait_for_editor()
    assert violations(tab, axe) == []
    context.close()


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (768, "dark"), (1280, "dark"), (1920, "light")])
def test_it_fits_the_screen(browser: Any, address: str, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    tab = full_page(context, address)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    tab.drop("#photo-files", {"name": "pages.tif", "mimeType": "image/tiff", "buffer": tiff(frames())})
    opens = tab.see("#stack-open:enabled").bounding_box()
    assert opens["y"] + opens["height"] <= 844, "all of the dialog is in sight"
    tab.page.click("#stack-open")
    tab.see("#strip li")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width, "the strip scrolls, not the page"
    back = tab.page.evaluate("getComputedStyle(document.querySelector('.step')).backgroundColor")
    assert (max(int(part) for part in re.findall(r"\d+", back)[:3]) < 100) == (scheme == "dark")
    tab.page.click("#correct")
    tab.wait_for_editor()
    canvas, done = (tab.page.locator(f"#editor {part}").bounding_box() for part in ("canvas", "#editor-done"))
    assert canvas["width"] > 0.85 * width - 60
    assert canvas["height"] > 200
    assert done["y"] + done["height"] <= 844, "all of the editor is in sight"
    context.close()
    assert tab.foreign == tab.problems == []


def test_the_whole_way_by_keyboard(tab: Tab) -> None:
    from playwright.sync_api import TimeoutError as TooLate

    page = tab.page

    def focus_on(selector: str) -> None:
        for _ in range(60):
            if page.evaluate("selector => document.activeElement?.matches(selector)", selector):
                return
            page.keyboard.press("Tab")
        raise AssertionError(f"the Tab key does not reach {selector}")

    def choose_files(selector: str, *files: dict[str, Any]) -> None:
        for attempt in range(3):  # the page may be drawn anew between focus and key, which then finds nobody
            focus_on(selector)
            try:
                with page.expect_file_chooser(timeout=5_000) as chooser:
                    page.keyboard.press(" ")
            except TooLate:
                if attempt == 2:
                    raise
            else:
                chooser.value.set_files(list(files))
                return

    focus_on("#class-name")
    page.keyboard.type("red")
    page.keyboard.press("Enter")
    tab.see("#classes .chip")
    choose_files("#draft-files input", photo("a.png", RED, GREY))
    tab.wait_for_editor()
    for _ in range(12):
        page.keyboard.press("ArrowLeft")
    for _ in range(4):
        page.keyboard.press(" ")
        page.keyboard.press("ArrowLeft")
    focus_on("#editor-done")
    page.keyboard.press("Enter")
    tab.see("#examples li")
    choose_files("#photo-files input", photo("b.png", RED, GREY), photo("c.png", GREY))
    tab.until_done()
    focus_on("#viewer .window")
    page.keyboard.press("ArrowRight")
    tab.see("#viewer h3 >> text=c.png")
    focus_on("#objects")
    page.keyboard.press(" ")
    tab.see("#viewer th >> text=Objects")
    focus_on("#export")
    with page.expect_download():
        page.keyboard.press("Enter")
