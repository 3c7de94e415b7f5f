"""Stacks, videos and HEIC photos in a real browser: the dialog, the strip of frames, play, and tables with frames."""

import csv
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.studio.browser_tab import NEEDS_BROWSER, Tab, photo
from tests.studio.clips import FRAMES, SIZE, frames, tiff, video
from tests.studio.conftest import BLUE, GREY, RED

pytest.importorskip("av", reason="needs PyAV (the extra video)")
pytestmark = NEEDS_BROWSER


def file(name: str, data: bytes) -> dict[str, Any]:
    return {"name": name, "mimeType": "application/octet-stream", "buffer": data}


@pytest.fixture
def clip(tmp_path: Path) -> dict[str, Any]:
    return file("clip.mp4", video(tmp_path / "clip.mp4"))


def teach(tab: Tab) -> None:
    tab.name_classes("red", 1)
    tab.draft("a.png", RED, GREY)
    tab.fill_left_half()
    tab.page.click("#editor-done")
    tab.page.wait_for_selector("#editor", state="hidden")


def test_a_video_is_a_strip_of_frames_that_plays_and_has_a_table(tab: Tab, clip: dict[str, Any]) -> None:
    page = tab.page
    teach(tab)
    tab.drop("#photo-files", clip, photo("b.png", RED, GREY))
    tab.see("#stack-says >> text=A video of 6 frames")
    tab.wait("document.querySelector('#stack-preview').naturalWidth === 128")
    assert page.locator("#stack-open").inner_text() == "Open 6 photos"
    page.click("#stack-open")
    tab.see("#strip li", FRAMES - 1)
    tab.until_done()
    assert [each.inner_text() for each in page.locator("#list b").all()] == ["b.png", "clip.mp4"]
    tab.see("#list >> text=6 frames")

    page.click("#strip li:nth-child(3) button")
    tab.see("#viewer h3 >> text=clip_t00002.png")
    assert page.locator("#strip [aria-current=true]").inner_text() == "2"
    with page.expect_response(lambda answer: "objects=1" in answer.url and "large" in answer.url) as drawn:
        page.check("#objects")
    assert drawn.value.ok
    page.uncheck("#objects")

    page.focus("#viewer .window")
    page.keyboard.press(" ")  # plays from here to the end
    tab.see("#play >> text=Pause")
    tab.see("#viewer h3 >> text=clip_t00005.png")
    tab.see("#play >> text=Play")
    assert page.locator("#frame").input_value() == "5"
    page.click("#play")  # from the beginning again
    tab.see("#viewer h3 >> text=clip_t00001.png")
    page.click("#play")
    tab.see("#play >> text=Play")
    stopped = page.locator("#viewer h3").inner_text()
    page.wait_for_timeout(400)
    assert page.locator("#viewer h3").inner_text() == stopped != "clip_t00005.png"

    with page.expect_download() as download:
        page.click("#export")
    with zipfile.ZipFile(download.value.path()) as archive:
        rows = list(csv.DictReader(io.StringIO(archive.read("objects.csv").decode())))
        assert "masks/clip_t00005.png" in archive.namelist()
    upper = [row["frame"] for row in rows if (row["photo"], row["id"]) == ("clip.mp4", "1")]
    assert upper == [str(number) for number in range(FRAMES)]

    tab.reload()
    page.click("#list li:has-text('clip.mp4') .card")
    tab.see("#strip li", FRAMES - 1)
    page.click("#list [aria-label='Remove clip.mp4']")
    page.wait_for_selector("#strip", state="hidden")
    assert [each.inner_text() for each in page.locator("#list b").all()] == ["b.png"]


def test_a_frame_that_is_painted_is_the_first_example_of_all(tab: Tab, clip: dict[str, Any]) -> None:
    page = tab.page
    tab.size = SIZE
    tab.name_classes("red", 1)
    tab.drop("#photo-files", clip)
    page.click("#stack-open")
    tab.see("#strip .waiting", FRAMES - 1)
    assert page.locator("#correct").inner_text() == "Paint it as an example"
    page.click("#correct")
    tab.see("#editor-title >> text=Paint clip_t00000.png")
    tab.wait_for_editor()
    page.click("#editor-done")
    tab.see("#editor-problem >> text=Nothing is painted yet")
    page.locator("#editor .size input").fill("12")
    for top in (22, 62):
        left = 8 if top < 50 else 40
        tab.drag((left + 6, top), (left + 18, top), (left + 18, top + 12), (left + 6, top + 12), (left + 6, top))
    page.click("#editor-done")
    tab.see("#examples li:has-text('clip_t00000.png')")
    tab.until_done()
    assert page.locator("#strip .painted").count() == 1
    assert page.locator("#strip .waiting").count() == 0
    tab.see("#list >> text=6 frames")


def test_pages_depths_and_channels_are_chosen_in_a_dialog(tab: Tab) -> None:
    page = tab.page
    teach(tab)
    values = np.zeros((2, 3, 40, 60), np.uint8)  # ZCYX
    values[:, 0], values[1, 1] = 200, 90
    tab.drop(
        "#photo-files",
        file("cells.tif", tiff(values, "ZCYX", ("DAPI", "GFP", "RFP"))),
        file("pages.tif", tiff(frames())),
    )
    tab.see("#stack-says >> text=A stack of 2 depths, 3 channels")
    for name in ("DAPI", "GFP", "RFP"):
        page.uncheck(f"#stack [value={name}]")
    tab.see("#stack-problem >> text=Choose at least one channel")
    assert page.locator("#stack-open").is_disabled()
    page.check("#stack [value=GFP]")
    page.select_option("#stack-depths", "none")
    tab.see("#stack-open >> text=Open 2 photos")
    page.select_option("#stack-depths", "1")
    tab.see("#stack-open >> text=Open 1 photo")
    page.click("#stack-open")
    tab.see("#stack-says >> text=A TIFF file of 6 pages")  # the next file is asked about
    page.fill("#stack-first", "3")
    page.fill("#stack-last", "2")
    tab.see("#stack-problem >> text=The first comes before the last")
    page.fill("#stack-last", "6")
    page.fill("#stack-every", "3")
    tab.see("#stack-open >> text=Open 2 photos")
    page.click("#stack-open")
    page.wait_for_selector("#stack", state="hidden")
    tab.until_done()
    assert [each.inner_text() for each in page.locator("#list b").all()] == ["cells.png", "pages.tif"]
    shown = page.evaluate(
        """async () => {
          const image = new Image();
          image.src = document.querySelector('#viewer .stage img').src;
          await image.decode();
          const screen = Object.assign(document.createElement('canvas'), {width: 1, height: 1}).getContext('2d');
          screen.drawImage(image, 0, 0);
          return [...screen.getImageData(0, 0, 1, 1).data];
        }"""
    )
    assert shown[:3] == [90, 90, 90], "the green channel of the second depth, as grey"


def test_a_stack_in_step_2_is_painted_and_can_be_left_out(tab: Tab) -> None:
    page = tab.page
    tab.name_classes("red", 1)
    tab.drop("#draft-files", file("pages.tif", tiff(frames())))
    tab.see("#stack-says >> text=What should be painted?")
    page.keyboard.press("Escape")
    page.wait_for_selector("#stack", state="hidden")
    assert page.locator("#drafts li").count() == 0
    tab.drop("#draft-files", file("pages.tif", tiff(frames())))
    tab.see("#stack-open >> text=Open 3 photos")
    page.click("#stack-open")
    tab.see("#editor-title >> text=Paint pages_t00001.png, 2 more waiting")


def test_a_heic_photo_is_looked_at_like_any_other(tab: Tab) -> None:
    pillow_heif = pytest.importorskip("pillow_heif", reason="needs the extra heic")
    teach(tab)
    pixels = np.full((64, 96, 3), GREY, np.uint8)
    pixels[:, :48] = RED
    data = io.BytesIO()
    pillow_heif.from_bytes("RGB", (96, 64), pixels.tobytes()).save(data, quality=90)
    tab.drop("#photo-files", file("phone.heic", data.getvalue()), file("b.png", photo("b.png", BLUE)["buffer"]))
    tab.until_done()
    tab.see("#list li:has-text('phone.heic') .dots >> text=red")
