"""The page as its users meet it: in a real browser, with mouse and keys."""

import csv
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emat import Example, Segmenter
from emat.images import read_mask
from emat.studio.server import serving
from tests.inference.colour_method import ColourMethod
from tests.studio.browser_tab import LARGE, NEEDS_BROWSER, Tab, photo
from tests.studio.conftest import BLUE, GREY, RED, left_half, png_of, stripes

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
    tab.see("#editor-title >> text=Correct b.png")
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
    assert (paint[:, 280:] == 254).all(), "not this"
    assert (paint[:, 10:120] == 1).all(), "a segmenter that does not learn is told the rest, too"


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
    assert page.locator("#crisp").is_disabled()
    assert "not on this machine yet" in tab.see("#sliders .switch").inner_text()
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


@pytest.mark.usefixtures("with_mobilesam")
def test_outlines_become_crisp_after_the_masks_are_there_and_a_switch_shows_both(browser: Any) -> None:
    with serving(Segmenter(ColourMethod()), private=True) as address:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        tab = Tab(context, address)
        tab.name_classes("red", 1)
        mask = {"name": "a_red.png", "mimeType": "image/png", "buffer": png_of(left_half(255, LARGE))}
        tab.drop("#draft-files", photo("a.png", RED, GREY), mask)
        tab.see("#examples li")
        tab.drop("#photo-files", photo("b.png", GREY, RED))
        tab.see("#list .dots >> text=red")
        tab.until_done()
        crisp = tab.see("#list img").get_attribute("src")
        assert crisp.endswith("crisp")
        with tab.page.expect_request(lambda request: "large.jpg" in request.url and "crisp" not in request.url):
            tab.page.uncheck("#crisp")
        tab.wait("!document.querySelector('#list img').src.endsWith('crisp')")
        tab.page.check("#crisp")
        tab.wait(f"document.querySelector('#list img').src.endsWith('{crisp}')")
        context.close()
        assert tab.foreign == tab.problems == []


def test_the_least_sure_photo_is_one_click_away(tab: Tab) -> None:
    teach(tab)
    tab.drop("#photo-files", photo("sure.png", RED, GREY), photo("unsure.png", (180, 70, 70), GREY))
    tab.until_done()
    first = tab.see("#next button")
    assert "unsure.png" in first.get_attribute("aria-label")
    first.click()
    tab.see("#editor-title >> text=Correct unsure.png")
    tab.wait_for_editor()
    x = tab.page.evaluate("document.querySelector('#editor-body').editor.place.x")
    assert x < 200, "it opens where it is unsure, in the left half"


def test_many_photos_stay_quick_can_be_stopped_and_continued(tab: Tab) -> None:
    page = tab.page
    teach(tab)
    small = [photo(f"{number}.png", RED, GREY, size=(20, 30)) for number in range(60)]
    tab.drop("#photo-files", *small)
    page.click("#stop")
    tab.see("#progress >> text=photos are left")
    tab.wait("document.querySelectorAll('#list li').length === 60")
    tab.wait("!document.querySelector('#photo-progress').textContent")
    tab.see("#progress >> text=of 60 photos are left")  # what is dropped after a stop waits as well
    page.click("#continue")
    tab.until_done()
    assert page.locator("#list .dots").count() == 60
    assert page.locator("#list img[loading=lazy]").count() == 60


def test_everything_goes_into_one_zip_and_buttons_say_why_they_wait(
    browser: Any, tiny_head: Path, tmp_path: Path
) -> None:
    Segmenter.load(tiny_head, learn=False).fit([Example(stripes(RED, GREY), {"red": (0, 0, 30, 40)})]).save(
        tmp_path / "red.emat"
    )
    with serving(Segmenter.load(tiny_head, learn=False), private=True) as address:
        context = browser.new_context(accept_downloads=True)
        tab = Tab(context, address)
        page = tab.page
        assert page.locator("#export").get_attribute("title") == "Add an example in step 2 first"
        assert page.locator("#save").get_attribute("aria-disabled") == "true"
        page.click("#export", force=True)
        tab.see("#messages >> text=Add an example in step 2 first.")
        fitted = {"name": "red.emat", "mimeType": "application/octet-stream"}
        page.set_input_files("#fitted-file", [{**fitted, "buffer": (tmp_path / "red.emat").read_bytes()}])
        tab.see("#examples li")
        assert page.locator("#export").get_attribute("title") == "Drop photos in step 3 first"
        tab.drop("#photo-files", photo("b.png", RED, BLUE))
        tab.until_done()
        for box in page.locator("#parts input").all():
            box.check()
        with page.expect_download() as download:
            page.click("#export")
        with zipfile.ZipFile(download.value.path()) as archive:
            names = set(archive.namelist())
            rows = list(csv.reader(io.StringIO(archive.read("scores.csv").decode())))
        assert download.value.suggested_filename == "emat-results.zip"
        expected = {"png/masks/b.png", "coco/annotations.json", "overlay/b.jpg", "objects.csv", "red.emat"}
        assert expected <= names
        assert {name.split("/")[0] for name in names} >= {"labelme", "yolo"}
        assert rows[1][0] == "b.png"
        context.close()
        assert tab.foreign == tab.problems == []


def test_sessions_survive_the_server_and_can_be_deleted(
    browser: Any, tiny_head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMAT_HOME", str(tmp_path))
    context = browser.new_context()
    segmenter = Segmenter.load(tiny_head, learn=False)
    with serving(segmenter) as address:
        port = int(address.rsplit(":", 1)[1].strip("/"))
        tab = Tab(context, address)
        teach(tab)
        tab.drop("#photo-files", photo("b.png", RED, BLUE))
        tab.until_done()
    with serving(Segmenter.load(tiny_head, learn=False), port) as address:
        tab.reload()
        tab.see("#examples li")
        tab.see("#list li")
        other = Tab(context, address)
        assert "No class yet" in other.see("#classes").inner_text(), "another tab begins with nothing"
        other.see("#saved >> text=1 example, 1 photo")
        other.page.click("#saved .open-saved")
        other.see("#examples li")
        third = Tab(context, address)
        third.page.click("#saved .cross")
        third.page.wait_for_selector("#saved", state="hidden")
        assert list((tmp_path / "studio").iterdir()) == []
    context.close()


def test_start_over_empties_the_page(tab: Tab) -> None:
    teach(tab)
    tab.page.click("#start-over")
    tab.see("#classes .empty")
    tab.see("#examples .empty")
    tab.reload()
    tab.see("#classes .empty")


def test_tabs_do_not_see_each_other(tab: Tab, address: str) -> None:
    tab.name_classes("secret", 1)
    other = Tab(tab.page.context, address)
    assert "No class yet" in other.see("#classes").inner_text()
    other.page.close()


def test_what_is_done_before_the_page_is_ready_is_not_lost(browser: Any, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    waiting: list[Any] = []

    def hold(route: Any) -> None:
        waiting.append(route)

    page.route("**/api/session", hold)
    page.goto(address)
    page.fill("#class-name", "early")
    page.press("#class-name", "Enter")
    while not waiting:
        page.wait_for_timeout(20)
    waiting[0].continue_()
    page.wait_for_selector("#classes .chip >> text=early")
    context.close()


def test_names_are_shown_and_never_run(tab: Tab) -> None:
    names = ["<img src=x onerror=document.title=1>", "${document.title=2}", "{{value}}"]
    tab.name_classes(", ".join(names), 3)
    assert [chip.inner_text() for chip in tab.page.locator("#classes .chip-name").all()] == names
    tab.draft(f"{names[0]}.png", RED, GREY)
    assert [button.inner_text() for button in tab.page.locator(".paints button").all()][:3] == names
    assert tab.page.title() == "emat studio"


def test_what_is_wrong_is_said_in_a_sentence(tab: Tab) -> None:
    tab.expected.append("422")
    tab.drop("#draft-files", photo("a.png", RED))
    tab.see("#messages >> text=Name at least one class in step 1")
    tab.name_classes("red", 1)
    tab.page.fill("#class-name", "Red")
    tab.page.press("#class-name", "Enter")
    tab.see("#messages >> text=There is already a class 'Red'")
    assert "rror" not in tab.page.locator("#messages").inner_text()


def test_paint_is_sent_to_be_kept_while_one_paints(tab: Tab) -> None:
    tab.name_classes("red", 1)
    tab.draft("a.png", RED, GREY)
    with tab.page.expect_request(lambda request: "paint?then=keep" in request.url) as sent:
        tab.drag((100.5, 100.5), (200.5, 100.5))
    paint = read_mask(sent.value.post_data_buffer)
    assert paint.shape == LARGE
    assert set(np.unique(paint)) == {0, 1}


def test_a_very_large_photo_is_made_smaller_and_the_page_says_so(tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emat.studio.photos.MAX_PIXELS", 30_000)
    smaller = "Made smaller, from 400 x 300 to 200 x 150 pixels."
    tab.name_classes("red", 1)
    tab.draft("a.png", RED, GREY)
    assert tab.page.locator("#editor-notice").inner_text() == smaller
    tab.page.click("#editor-close")
    tab.drop("#photo-files", photo("b.png", RED, GREY), photo("small.png", RED, size=(30, 40)))
    tab.see(f"#viewer #notice >> text={smaller}")
    tab.see("#list li", 1)
    tab.page.click("#list li:has-text('small.png') .card")
    tab.page.wait_for_selector("#notice", state="hidden")


def test_numbers_beside_the_photo(tab: Tab) -> None:
    page = tab.page
    teach(tab)
    tab.drop("#photo-files", photo("b.png", RED, BLUE))
    tab.until_done()
    area = "document.querySelector('.sums li')?.textContent"
    tab.wait(f"{area}?.includes(' px, 50 % of the photo')")

    page.select_option("#unit", "points")
    page.click("#two-points")
    box = page.locator(".measured-photo").bounding_box()
    for x in (0.25, 0.75):  # 200 pixels of the photo
        page.mouse.click(box["x"] + x * box["width"], box["y"] + 0.5 * box["height"])
    page.fill("#length", "100")
    page.press("#length", "Tab")
    tab.see("#measure >> text=(two points on b.png, 100mm apart)")
    tab.wait(f"{area}?.includes('mm², 50 % of the photo')")

    page.select_option("#inner", "red")
    page.select_option("#outer", "what stands out")
    tab.see(".severity")
    page.locator("#smallest").fill("100")
    tab.wait(f"{area}?.includes('red 0 objects')")
    page.locator("#smallest").fill("0")
    tab.wait(f"{area}?.includes('red 1 object,')")

    tab.expected.append("422")
    page.fill("#accept-value", "1")
    page.press("#accept-value", "Enter")
    tab.see(".message >> text=nothing is known about how well red is found")

    page.check("[name=part][value=measurements]")
    with page.expect_download() as download:
        page.click("#export")
    with zipfile.ZipFile(download.value.path()) as archive:
        rows = list(csv.DictReader(io.StringIO(archive.read("measured/photos.csv").decode())))
    assert rows[0]["class"] == "red"
    assert float(rows[0]["area_mm2"]) == pytest.approx(0.25 * float(rows[0]["area_px"]), rel=0.02)
    tab.reload()
    tab.see("#measure >> text=two points on b.png")
