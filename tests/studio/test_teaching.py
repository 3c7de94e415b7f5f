"""Teaching in a real browser: few clicks for many objects, corrections of what was touched alone, a way back."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from emat.images import read_mask
from emat.inference.segmenter import Segmenter
from emat.studio.server import serving
from tests.studio.browser_tab import LARGE, NEEDS_BROWSER, Tab, photo
from tests.studio.conftest import BLUE, GREY, RED, left_half, png_of
from tests.studio.leaves import SIZE, leaf

pytestmark = NEEDS_BROWSER
COUNTS = (25, 24, 25)  # lesions of the three photos, 74 together
MOST_CLICKS = 25
RIGHT = 0.5  # IoU of a painted lesion with the true one


class CountingTab(Tab):
    """Counts what a user does with the mouse."""

    clicks = 0

    def click(self, x: float, y: float, **options: Any) -> None:
        self.clicks += 1
        super().click(x, y, **options)

    def press(self, selector: str) -> None:
        self.clicks += 1
        self.page.click(selector)


@pytest.fixture(scope="module")
def learning(browser: Any, tiny_head: Path) -> Iterator[str]:
    """A studio whose segmenter learns, for the tests about corrections."""
    with serving(Segmenter.load(tiny_head, learn=True), private=True) as address:
        yield address


@pytest.fixture
def taught(browser: Any, learning: str) -> Iterator[Tab]:
    """Two examples of red, one of which shows blue too, and three photos with results."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    tab = Tab(context, learning)
    tab.name_classes("red", 1)
    for name, other in (("a", GREY), ("b", BLUE)):
        mask = {"name": f"{name}_red.png", "mimeType": "image/png", "buffer": png_of(left_half(255, LARGE))}
        tab.drop("#draft-files", photo(f"{name}.png", RED, other), mask)
        tab.see(f"#examples li:has-text('{name}.png')")
    tab.drop("#photo-files", *(photo(f"{name}.png", RED, GREY, RED) for name in "cd"), photo("e.png", GREY, BLUE))
    tab.until_done()
    yield tab
    context.close()
    assert tab.foreign == tab.problems == []


def lesions_found(paint: NDArray[np.uint8], truth: NDArray[np.int32]) -> int:
    parts, _ = ndimage.label(paint == 1)
    found = 0
    for number in range(1, int(truth.max()) + 1):
        lesion = truth == number
        own = np.isin(parts, np.setdiff1d(parts[lesion], 0))
        found += (own & lesion).sum() / (own | lesion).sum() >= RIGHT
    return found


def test_three_photos_with_74_lesions_take_fewer_than_25_clicks(browser: Any) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    with serving(Segmenter.load("default"), private=True) as address:
        tab = CountingTab(context, address)
        tab.size = SIZE
        tab.name_classes("lesion", 1)
        photos = [leaf(seed, count) for seed, count in enumerate(COUNTS, start=1)]
        files = [
            {"name": f"leaf{number}.png", "mimeType": "image/png", "buffer": png_of(pixels)}
            for number, (pixels, _) in enumerate(photos, start=1)
        ]
        tab.drop("#draft-files", *files)
        painted = 0
        for number, (_, truth) in enumerate(photos, start=1):
            tab.see(f"#editor-title >> text=leaf{number}.png")
            tab.wait_for_editor()
            tab.settled_paint()
            if number == 1:
                # Without MobileSAM a brush of the right size paints a lesion with one click.
                tab.clicks += 1
                tab.page.locator("#editor .size input").fill("18")
                for lesion in (1, 2, 3, 4):
                    row, column = ndimage.center_of_mass(truth == lesion)
                    tab.click(column, row)
                tab.press("[data-do=similar]")
            tab.settled_paint()
            tab.see(".question >> text=like these")
            tab.press(".question .primary")
            paint = tab.settled_paint()
            # What is painted and is no lesion goes with a click of the right button.
            parts, count = ndimage.label(paint == 1)
            for part in range(1, count + 1):
                if not truth[parts == part].any():
                    row, column = (int(values[0]) for values in np.nonzero(parts == part))
                    tab.click(column + 0.5, row + 0.5, button="right")
            painted += lesions_found(tab.settled_paint(), truth)
            tab.press("#editor-done")
        tab.see("#examples li", 2)
        tab.page.wait_for_selector("#editor", state="hidden")
        context.close()
    print(f"{painted} of {sum(COUNTS)} lesions with {tab.clicks} clicks")
    assert tab.foreign == tab.problems == []
    assert tab.clicks < MOST_CLICKS
    assert painted >= 0.9 * sum(COUNTS)


def test_proposals_are_accepted_and_rejected_by_clicks_and_never_taken_silently(tab: Tab) -> None:
    page = tab.page
    tab.name_classes("red", 1)
    tab.drop("#draft-files", photo("a.png", RED, GREY, RED, GREY, RED))
    tab.wait_for_editor()
    page.locator("#editor .size input").fill("60")
    tab.drag((40, 20), (40, 280))
    tab.settled_paint(lambda: page.keyboard.press("m"))
    tab.see(".question >> text=2 look like these")
    one = tab.settled_paint(lambda: tab.click(200, 150))
    assert (one[:, 180:220] == 1).all(), "accepted by a click"
    none = tab.settled_paint(lambda: tab.click(360, 150, button="right"))
    np.testing.assert_array_equal(none, one)
    assert page.locator(".question").is_hidden(), "all are decided"
    page.keyboard.press("Control+z")
    tab.see(".question >> text=1 looks like these")
    page.click("#editor-done")
    tab.see(".question >> text=not decided yet")
    with page.expect_request(lambda request: "then=example" in request.url) as sent:
        page.click(".question button:has-text('Go on without')")
    assert not read_mask(sent.value.post_data_buffer)[:, 330:].any()
    tab.see("#examples li")
    # The next photo begins with what the first one taught, as proposals.
    tab.drop("#draft-files", photo("b.png", GREY, RED))
    tab.wait_for_editor()
    tab.see(".question >> text=looks like these")
    assert not tab.settled_paint().any(), "nothing is painted before it is accepted"
    assert (tab.settled_paint(lambda: page.click(".question .primary"))[:, 220:380] == 1).all()


def test_a_correction_says_what_was_touched_and_shows_what_it_changed(taught: Tab) -> None:
    page = taught.page
    page.click("#list li:has-text('c.png') .card")
    page.click("#correct")
    taught.wait_for_editor()
    assert not page.locator("#sparse").is_checked(), "the rest is undecided"
    page.click("#editor-done")
    taught.see("#editor-problem >> text=Nothing is corrected yet")
    page.keyboard.press("e")
    page.locator("#editor .size input").fill("30")
    taught.drag((350, 50), (350, 250))
    page.keyboard.press("Escape")
    taught.see(".question >> text=not learnt yet")
    with page.expect_request(lambda request: "then=correct" in request.url) as sent:
        page.click(".question button:has-text('Learn from it')")
    paint = read_mask(sent.value.post_data_buffer)
    assert set(np.unique(paint)) == {0, 254}
    assert 0 < (paint == 254).mean() < 0.1
    taught.see("#examples li:has-text('c.png')")
    taught.see("#earlier >> text=c.png was corrected")
    taught.until_done()
    assert "corrected by you" in page.locator("#list li:has-text('c.png')").inner_text()
    taught.see("#earlier >> text=changed")
    page.click("#step-back")
    page.wait_for_selector("#examples li:has-text('c.png')", state="detached")
    page.wait_for_selector("#earlier", state="hidden")
    assert "corrected by you" not in page.locator("#list li:has-text('c.png')").inner_text()


def test_not_this_and_none_of_these_here_are_one_click_beside_the_photo(taught: Tab) -> None:
    page = taught.page
    page.click("#list li:has-text('d.png') .card")
    taught.see("#viewer h3 >> text=d.png")
    box = page.locator("#viewer .window").bounding_box()
    page.mouse.click(box["x"] + 0.9 * box["width"], box["y"] + box["height"] / 2)
    page.click("#not-this")
    taught.see("#examples li:has-text('d.png') >> text=not this")
    taught.until_done()
    page.click("#keep")
    page.wait_for_selector("#earlier", state="hidden")
    page.click("#list li:has-text('e.png') .card")
    taught.see("#viewer h3 >> text=e.png")
    page.click("#none-here")
    taught.see("#examples li:has-text('e.png') >> text=none of the classes")
    taught.see("#list li:has-text('e.png') >> text=painted by you: nothing here")
    with page.expect_response(lambda answer: "unsure=1" in answer.url) as answered:
        page.check("#unsure")
    assert answered.value.ok


def test_examples_are_saved_in_their_place_moved_removed_and_brought_back(taught: Tab) -> None:
    page = taught.page

    def order() -> list[str]:
        return [each.inner_text() for each in page.locator("#examples .card-text b").all()]

    page.click("#examples li:has-text('a.png') .card")
    taught.wait_for_editor()
    assert page.locator("#editor-done").inner_text() == "Save"
    page.keyboard.press("u")
    taught.drag((150, 20), (150, 280))
    page.click("#editor-done")
    page.wait_for_selector("#editor", state="hidden")
    taught.see("#undo >> text=a.png was edited")
    assert order() == ["a.png", "b.png"]
    page.click("#examples li:has-text('b.png') [title='Move forward']")
    taught.wait("document.querySelector('#examples .card-text b').textContent === 'b.png'")
    page.click("#examples [aria-label='Remove the example b.png']")
    taught.see("#undo >> text=b.png was removed")
    assert order() == ["a.png"]
    page.click("#undo-examples")
    taught.see("#examples li", 1)
    assert order() == ["b.png", "a.png"]
    page.click("#classes .chip-name")
    page.keyboard.type("crimson")
    page.keyboard.press("Enter")
    taught.see("#classes .chip >> text=crimson")
    taught.see("#examples .dots >> text=crimson")
    taught.see("#list .dots >> text=crimson")


def test_a_correction_that_contradicts_the_examples_is_warned_of_and_taken_back(taught: Tab) -> None:
    page = taught.page
    page.click("#list li:has-text('e.png') .card")
    taught.see("#viewer h3 >> text=e.png")
    page.click("#correct")
    taught.wait_for_editor()
    page.check("#sparse")  # the rest is right
    taught.fill_left_half()  # grey, which the first example calls background
    page.click("#editor-done")
    taught.see("#earlier.worse >> text=found less well")
    taught.until_done()
    taught.see("#earlier >> text=the most changed first")
    shares = [re.findall(r"[\d.]+(?= %)", row.inner_text()) for row in page.locator("#earlier li").all()]
    sizes = [abs(float(after) - float(before)) for before, after in shares]
    assert sizes
    assert sizes == sorted(sizes, reverse=True)
    page.click("#earlier li button")
    assert page.locator("#viewer h3").inner_text() in ("c.png", "d.png")
    page.click("#earlier.worse #step-back")
    page.wait_for_selector("#earlier", state="hidden")
    page.wait_for_selector("#examples li:has-text('e.png')", state="detached")
    assert "painted" not in page.locator("#list li:has-text('e.png')").inner_text()
