"""The page as its users meet it: in a real browser, with mouse and keys."""

import json
import re
import zipfile

import pytest

from emat.images import read_mask
from tests.inference.colour_method import ColourMethod
from tests.studio.browser_tab import LARGE, NEEDS_BROWSER, Tab, photo
from tests.studio.conftest import BLUE, GREY, RED, left_half, png_of

pytestmark = NEEDS_BROWSER
PALE_RED = (150, 50, 50)


def teach(tab: Tab) -> None:
    """Two classes, and an example of the first."""
    tab.name_classes("red, blue", 2)
    tab.draft("a.png", RED, GREY)
    tab.fill_left_half()
    tab.page.click("#editor-done")
    tab.see("#examples li")
    tab.page.wait_for_selector("#editor", state="hidden")


def test_from_paint_to_masks_and_back_after_a_reload(tab: Tab, shown_method: ColourMethod) -> None:
    page = tab.page
    tab.name_classes("red, blue", 2)
    tab.draft("a.png", RED, GREY)
    tab.expected.append("422")  # the browser's own line about the refused request
    page.click("#editor-done")
    tab.see("#editor-problem >> text=No class is painted on a.png yet")
    tab.fill_left_half()
    page.click("#editor-done")
    tab.see("#examples li")

    before = shown_method.encoded
    tab.drop("#photo-files", photo("b.png", RED, BLUE), photo("c.png", PALE_RED, GREY, size=(700, 500)))
    tab.see("#list li:has-text('b.png') .dots >> text=red")
    tab.see("#list li:has-text('c.png') >> text=nothing found")
    assert shown_method.encoded == before + 2

    page.locator("#sliders input").first.fill("0.1")
    tab.see("#list li:has-text('c.png') .dots >> text=red")
    assert shown_method.encoded == before + 2, "the network was not asked"

    page.click("#list li:has-text('b.png') .card")
    page.click("#correct")
    tab.wait_for_editor()
    page.keyboard.press("2")
    page.locator("#editor .size input").fill("60")
    tab.drag(*[(x, y) for y in range(20, 300, 40) for x in ((225, 380) if y % 80 == 20 else (380, 225))])
    page.click("#editor-done")
    tab.see("#list >> text=painted by you: red, blue")
    tab.see("#examples li", 1)
    assert shown_method.encoded == before + 2, "the corrected photo was known already"

    with page.expect_download() as download:
        page.click("#export")
    with zipfile.ZipFile(download.value.path()) as archive:
        masks = {name: read_mask(archive.read(f"masks/{name}.png")) for name in ("b", "c")}
        assert "scores.csv" in archive.namelist()
    assert masks["b"].shape == LARGE
    assert masks["b"][150, 50] == 1, "red, as it was found"
    assert masks["b"][150, 300] == 2, "blue, as it was painted"
    assert masks["c"].shape == (700, 500)
    assert masks["c"][150, 50] == 1

    tab.reload()
    tab.see("#examples li", 1)
    tab.see("#list >> text=painted by you")
    page.click("#examples [aria-label='Remove the example a.png']")
    page.wait_for_selector("#examples li >> nth=1", state="detached")


def test_a_wrong_blob_goes_with_one_click_when_a_result_is_corrected(tab: Tab) -> None:
    teach(tab)
    tab.drop("#photo-files", photo("b.png", RED, GREY, RED))
    tab.see("#list .dots >> text=red")
    tab.page.click("#correct")
    tab.wait_for_editor()
    tab.click(350, 150, button="right")
    with tab.page.expect_request(lambda request: "then=correct" in request.url) as sent:
        tab.page.click("#editor-done")
    paint = read_mask(sent.value.post_data_buffer)
    assert (paint[:, 10:120] == 1).all()
    assert not paint[:, 280:].any()


def test_masks_annotation_files_and_negative_photos_become_examples(tab: Tab) -> None:
    mask = {"name": "a_red.png", "mimeType": "image/png", "buffer": png_of(left_half(255, LARGE))}
    shape = {"label": "blue", "shape_type": "rectangle", "points": [[0, 0], [200, 300]]}
    outlines = {"imagePath": "b.png", "imageHeight": 300, "imageWidth": 400, "shapes": [shape]}
    labelme = {"name": "b.json", "mimeType": "application/json", "buffer": json.dumps(outlines).encode()}
    tab.drop("#draft-files", photo("a.png", RED, GREY), mask, photo("b.png", BLUE, GREY), labelme)
    tab.see("#examples li:has-text('a.png') >> text=red")
    tab.see("#examples li:has-text('b.png') >> text=blue")
    assert tab.page.locator("#editor").is_hidden(), "nothing is left to paint"
    tab.draft("none.png", GREY)
    tab.page.click("#editor-negative")
    tab.see("#examples li:has-text('none.png') >> text=none of the classes")
    tab.page.wait_for_selector("#editor", state="hidden")
    tab.page.click("#examples li:has-text('a.png') .card")
    tab.wait_for_editor()
    paint = tab.paint(lambda: tab.click(350, 150))
    assert (paint == 1).any(), "an example is edited with its paint"


def test_files_are_dropped_with_the_mouse(tab: Tab) -> None:
    drop = """zone => {
      const files = new DataTransfer();
      files.items.add(new File(["no photo"], "notes.jpg", {type: "image/jpeg"}));
      zone.dispatchEvent(new DragEvent("drop", {dataTransfer: files, bubbles: true, cancelable: true}));
    }"""
    tab.expected.append("422")
    tab.page.locator("#photo-files").evaluate(drop)
    tab.see("#messages >> text=notes.jpg is not JPEG")


def test_the_large_view_shows_scores_areas_and_counts(tab: Tab) -> None:
    page = tab.page
    teach(tab)
    tab.drop("#photo-files", photo("b.png", RED, GREY, RED), photo("c.png", GREY))
    tab.until_done()
    assert re.search(r"\b6[5-9] %", tab.see("#viewer tbody tr").inner_text()), "two thirds, on a coarse grid"
    page.check("#objects")
    tab.see("#viewer th >> text=Objects")
    tab.wait("document.querySelector('#viewer tbody tr').cells[4].textContent === '2'")
    areas = [cell.inner_text() for cell in page.locator("#viewer tbody tr").first.locator("td").all()]
    assert int(areas[2].replace(",", "")) == pytest.approx(2 * 133 * 300, rel=0.1)
    assert int(areas[4].replace(",", "")) == pytest.approx(133 * 300, rel=0.1)

    page.locator("#viewer .window").focus()
    clip = "document.querySelector('#viewer .after').style.clipPath"
    assert page.evaluate(clip) in ("inset(0px)", "inset(0px 0% 0px 0px)")
    page.keyboard.press("h")
    assert "100%" in page.evaluate(clip), "before"
    page.locator("#viewer .before-after input").fill("40")
    assert "60%" in page.evaluate(clip), "between the two"
    page.keyboard.press("Tab")
    page.locator("#viewer .window").focus()
    page.keyboard.press("ArrowRight")
    tab.see("#viewer h3 >> text=c.png")
    page.keyboard.press("ArrowLeft")
    tab.see("#viewer h3 >> text=b.png")
    page.keyboard.press("+")
    assert "scale(1.25)" in page.evaluate("document.querySelector('.stage').style.transform")
    box = page.locator("#viewer .window").bounding_box()
    page.mouse.move(box["x"] + 50, box["y"] + 50)
    page.mouse.wheel(0, -300)
    tab.wait("Number(document.querySelector('.stage').style.transform.match(/scale\\(([\\d.]+)/)[1]) > 1.5")


def test_the_least_sure_photo_is_one_click_away(tab: Tab) -> None:
    teach(tab)
    tab.drop("#photo-files", photo("sure.png", RED, GREY), photo("unsure.png", (180, 70, 70), GREY))
    tab.until_done()
    first = tab.see("#next button")
    assert "unsure.png" in first.get_attribute("aria-label")
    first.click()
    tab.see("#editor-title >> text=Correct unsure.png")
