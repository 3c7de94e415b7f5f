"""The editor: every stroke is checked in the paint that the page sends."""

from typing import Any

import numpy as np
import pytest

from emat.images import read_mask
from emat.inference.segmenter import Segmenter
from emat.studio.server import serving
from tests.inference.colour_method import ColourMethod
from tests.studio.browser_tab import NEEDS_BROWSER, Tab
from tests.studio.conftest import GREY, RED, png_of

pytestmark = NEEDS_BROWSER
BACKGROUND, UNDECIDED = 254, 255


@pytest.fixture
def painting(tab: Tab) -> Tab:
    tab.name_classes("red, blue", 2)
    tab.draft("a.png", RED, GREY)
    return tab


def test_the_default_brush_is_a_fiftieth_of_the_side_and_the_smallest_one_pixel(painting: Tab) -> None:
    page = painting.page
    assert page.locator("#editor output").inner_text() == "8 px", "of 400"
    paint = painting.paint(lambda: painting.click(100.5, 50.5))
    assert (paint == 1).sum(axis=0).max() == 8
    assert (paint == 1).sum(axis=1).max() == 8
    page.locator("#editor .size input").fill("1")
    paint = painting.paint(lambda: painting.click(200.5, 80.5))
    assert paint[80, 200] == 1
    assert (paint[70:90, 190:210] > 0).sum() == 1
    painting.paint(lambda: painting.drag((10.5, 200.5), (110.5, 200.5)))
    page.keyboard.press("]")
    assert page.locator("#editor output").inner_text() == "2 px"
    page.keyboard.press("[")
    assert page.locator("#editor output").inner_text() == "1 px"


def test_keys_choose_paints_and_the_eraser(painting: Tab) -> None:
    page = painting.page
    for key, x in (("2", 60), ("1", 120), ("0", 180), ("u", 240)):
        page.keyboard.press(key)
        painting.click(x + 0.5, 100.5)
    paint = painting.paint(lambda: painting.click(300.5, 100.5))
    assert [int(paint[100, x]) for x in (60, 120, 180, 240, 300)] == [2, 1, BACKGROUND, UNDECIDED, UNDECIDED]
    page.keyboard.press("e")
    assert page.locator("[data-tool=eraser]").get_attribute("aria-pressed") == "true"
    paint = painting.paint(lambda: painting.drag((60.5, 100.5), (130.5, 100.5)))
    assert [int(paint[100, x]) for x in (60, 120, 180)] == [0, 0, BACKGROUND]
    page.keyboard.press("b")
    paint = painting.paint(lambda: painting.click(60.5, 100.5))
    assert paint[100, 60] == UNDECIDED, "the brush has the paint that it had"


def test_undo_and_redo_by_keys_and_buttons(painting: Tab) -> None:
    page = painting.page
    assert page.locator("[data-do=undo]").is_disabled()
    painting.click(60.5, 100.5)
    painting.click(160.5, 100.5)
    both = painting.paint(lambda: painting.click(260.5, 100.5))
    one = painting.paint(lambda: (page.keyboard.press("Control+z"), page.keyboard.press("Meta+z")))
    assert [bool(one[100, x]) for x in (60, 160, 260)] == [True, False, False]
    two = painting.paint(lambda: page.keyboard.press("Control+Shift+z"))
    assert [bool(two[100, x]) for x in (60, 160, 260)] == [True, True, False]
    again = painting.paint(lambda: page.click("[data-do=redo]"))
    np.testing.assert_array_equal(again, both)
    assert page.locator("[data-do=redo]").is_disabled()
    assert not painting.paint(lambda: page.click("[data-do=clear]")).any()
    np.testing.assert_array_equal(painting.paint(lambda: page.click("[data-do=undo]")), both)


def test_wheel_and_keys_zoom_and_the_middle_button_moves(painting: Tab) -> None:
    page = painting.page
    x, y = painting.at(100.5, 50.5)
    page.mouse.move(x, y)
    page.mouse.wheel(0, -1000)
    page.wait_for_timeout(100)
    page.locator("#editor .size input").fill("1")
    paint = painting.paint(lambda: page.mouse.click(x, y))
    assert np.argwhere(paint).tolist() == [[50, 100]], "what is under the pointer stays there"
    near = painting.paint(lambda: page.mouse.click(x + 6, y))
    assert len(np.argwhere(near)) <= 2, "six pixels of the screen are less than two of the photo now"
    page.mouse.move(x, y)
    page.mouse.down(button="middle")
    page.mouse.move(x + 100, y, steps=3)
    page.mouse.up(button="middle")
    moved = painting.paint(lambda: page.mouse.click(x + 100, y + 30))
    row, column = max(np.argwhere(moved).tolist())
    assert column == 100
    assert row > 50
    page.keyboard.press("f")
    whole = painting.paint(lambda: painting.click(300.5, 250.5))
    assert whole[250, 300] == 1
    page.keyboard.press("+")
    page.keyboard.press("-")
    assert painting.paint(lambda: painting.click(310.5, 250.5))[250, 310] == 1


def test_the_photo_stays_where_it_is_while_one_works(painting: Tab) -> None:
    page = painting.page
    box = page.locator("#editor canvas").bounding_box()
    painting.click(60.5, 100.5)
    painting.click(60.5, 100.5, button="right")
    painting.see("#editor .status >> text=Removed")
    page.keyboard.press("e")
    painting.see("#editor .status >> text=Drag to erase")
    assert page.locator("#editor canvas").bounding_box() == box, "or the next click would miss"
    x, y = painting.at(100, 100)
    page.mouse.move(x, y)
    page.mouse.wheel(0, -500)
    painting.wait("document.querySelector('#editor-body').editor.scale > 3")
    scale = page.evaluate("document.querySelector('#editor-body').editor.scale")
    page.set_viewport_size({"width": 1000, "height": 800})
    painting.wait("document.querySelector('#editor canvas').getBoundingClientRect().width < 1000")
    assert page.evaluate("document.querySelector('#editor-body').editor.scale") == scale, "another window, same zoom"
    page.keyboard.press("f")
    page.set_viewport_size({"width": 1280, "height": 900})
    painting.wait(
        "(editor => editor.scale === Math.min(editor.boxWidth / 400, editor.boxHeight / 300) && editor.boxWidth > 1000)"
        "(document.querySelector('#editor-body').editor)"
    )


def test_two_fingers_zoom_and_do_not_paint(browser: Any, address: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    tab = Tab(context, address)
    tab.name_classes("red", 1)
    tab.draft("a.png", RED, GREY)
    session = context.new_cdp_session(tab.page)
    x, y = tab.at(200, 150)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        fingers = [{"x": x, "y": y, "id": index} for index, (x, y) in enumerate(points)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})

    touch("touchStart", (x - 20, y))
    touch("touchStart", (x - 20, y), (x + 20, y))
    for apart in (30, 50, 80):
        touch("touchMove", (x - apart, y), (x + apart, y))
    touch("touchEnd")
    tab.page.locator("#editor .size input").fill("1")
    touch("touchStart", (x, y))
    paint = tab.paint(lambda: touch("touchEnd"))
    assert paint.any()
    assert len(np.argwhere(paint)) == 1, "the two fingers left no paint"
    row, column = np.argwhere(paint)[0]
    assert abs(row - 150) <= 1
    assert abs(column - 200) <= 1
    touch("touchStart", (x + 40, y))
    paint = tab.paint(lambda: touch("touchEnd"))
    columns = sorted(np.argwhere(paint)[:, 1].tolist())
    before = 40 * 400 / tab.page.locator("#editor canvas").bounding_box()["width"]
    assert columns[1] - columns[0] < 0.5 * before, "it is larger on the screen now"
    context.close()


def test_a_right_click_or_shift_click_removes_a_whole_blob(painting: Tab) -> None:
    page = painting.page
    page.locator("#editor .size input").fill("20")
    painting.drag((40.5, 60.5), (90.5, 60.5))
    two = painting.paint(lambda: painting.drag((200.5, 60.5), (260.5, 60.5)))
    assert two[60, 60]
    assert two[60, 230]
    one = painting.paint(lambda: painting.click(60.5, 60.5, button="right"))
    assert not one[:, :150].any()
    assert one[60, 230]
    page.keyboard.down("Shift")
    none = painting.paint(lambda: painting.click(230.5, 60.5))
    page.keyboard.up("Shift")
    assert not none.any()
    np.testing.assert_array_equal(
        painting.paint(lambda: (page.keyboard.press("Control+z"), page.keyboard.press("Control+z"))), two
    )


def test_it_is_painted_with_the_keyboard_alone(painting: Tab) -> None:
    page = painting.page
    page.keyboard.press("2")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    paint = painting.paint(lambda: page.keyboard.press(" "))
    rows, columns = np.nonzero(paint == 2)
    assert (rows.mean(), columns.mean()) == (pytest.approx(149.5, abs=1), pytest.approx(223.5, abs=1))
    assert not painting.paint(lambda: page.keyboard.press("Shift+ ")).any(), "and taken away again"
    page.keyboard.press("Escape")
    page.wait_for_selector("#editor", state="hidden")


def test_paint_survives_a_reload(painting: Tab) -> None:
    with painting.page.expect_response(lambda answer: "paint?then=keep" in answer.url):
        painting.fill_left_half()
    painting.page.wait_for_timeout(500)  # the stroke may have been longer than the page waits
    painting.reload()
    painting.page.click("#drafts .card")
    painting.wait_for_editor()
    paint = painting.paint(lambda: painting.click(350.5, 20.5))
    assert (paint[:, 20:170] == 1).mean() > 0.95


def test_without_mobilesam_the_brush_is_there_and_the_page_offers_to_download_it(
    painting: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = painting.page
    button = page.locator("[data-tool=click]")
    assert button.get_attribute("aria-disabled") == "true"
    assert "not on this machine" in button.get_attribute("title")
    assert page.locator("[data-tool=brush]").get_attribute("aria-pressed") == "true"
    monkeypatch.setenv("EMAT_OFFLINE", "1")  # of the server, which runs in this process
    button.click(force=True)  # the reason is said on a click, too
    painting.see("#editor .status >> text=the network is turned off")
    monkeypatch.setenv("EMAT_OFFLINE", "0")
    button.click(force=True)
    painting.see(".question >> text=Clicking needs MobileSAM")
    monkeypatch.setenv("EMAT_OFFLINE", "1")
    page.click(".question button:has-text('Download (41 MB)')")
    painting.see("#editor .status >> text=the network is forbidden")


PLACES = ((110, 110), (300, 220), (300, 60))  # (x, y) of the three objects below
BOXES = (np.s_[60:160, 50:170], np.s_[180:260, 250:350], np.s_[30:90, 260:340])


def three_objects() -> dict[str, Any]:
    photo = np.full((300, 400, 3), 90, np.uint8)
    for box, colour in zip(BOXES, ((230, 40, 40), (40, 200, 60), (230, 40, 40)), strict=True):
        photo[box] = colour
    return {"name": "a.png", "mimeType": "image/png", "buffer": png_of(photo)}


@pytest.mark.usefixtures("with_mobilesam")
def test_one_click_for_each_object_and_none_is_lost(browser: Any) -> None:
    with serving(Segmenter(ColourMethod()), private=True) as address:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        tab = Tab(context, address)
        page = tab.page
        tab.name_classes("red, green", 2)
        tab.drop("#draft-files", three_objects())
        tab.wait_for_editor()
        assert page.locator("[data-tool=click]").get_attribute("aria-pressed") == "true"

        # Clicks that come quicker than their answers wait for each other.
        tab.click(*PLACES[0])
        tab.click(*PLACES[2])
        page.keyboard.press("2")
        tab.click(*PLACES[1])
        three = tab.settled_paint()
        assert _iou(three == 2, BOXES[1]) > 0.9
        assert _iou((three == 1)[:, :200], BOXES[0]) > 0.9
        assert _iou((three == 1)[:, 200:], np.s_[30:90, 60:140]) > 0.9

        # Ctrl+Z takes back one click after the other.
        two = tab.settled_paint(lambda: page.keyboard.press("Control+z"))
        assert not (two == 2).any()
        np.testing.assert_array_equal(two == 1, three == 1)
        one = tab.settled_paint(lambda: page.keyboard.press("Control+z"))
        assert not one[:, 200:].any()
        np.testing.assert_array_equal(
            tab.settled_paint(lambda: (page.keyboard.press("Control+y"), page.keyboard.press("Control+y"))), three
        )

        # Inside: the same object. Beside it with Ctrl or the switch: the same object, too. Right button: take away.
        def points_of(act: Any) -> list[int]:
            with page.expect_request(lambda request: request.url.endswith("/click")) as asked:
                act()
            tab.settled_paint()
            return [point["inside"] for point in asked.value.post_data_json["points"]]

        assert points_of(lambda: tab.click(280, 200)) == [1, 1], "inside"
        page.keyboard.down("Control")
        assert points_of(lambda: tab.click(345, 255)) == [1, 1, 1]
        page.keyboard.up("Control")
        page.click("[data-do=same]")
        assert points_of(lambda: tab.click(20, 280)) == [1, 1, 1, 1]
        assert points_of(lambda: tab.click(20, 280, button="right")) == [1, 1, 1, 1, 0]
        page.locator("#editor canvas").focus()
        page.keyboard.press("Escape")
        page.wait_for_selector(".object-actions", state="hidden")
        assert page.locator("#editor").is_visible(), "Escape removes the object first"
        assert not (tab.settled_paint() == 2).any()

        gone = tab.settled_paint(lambda: tab.click(*PLACES[0], button="right"))
        assert not gone[:, :200].any(), "a wrong object goes with one click"
        tab.drag((240, 170), (360, 270))
        assert _iou(tab.settled_paint() == 2, BOXES[1]) > 0.9, "a box"
        assert not (tab.settled_paint(lambda: page.click("[data-do=erase]"))[190:250, 260:340] > 0).any()

        # What was clicked last is a part of the example, although nobody pressed Enter.
        page.keyboard.press("1")
        with page.expect_request(lambda request: "then=example" in request.url) as sent:
            tab.click(*PLACES[0])
            page.click("#editor-done")
        assert _iou((read_mask(sent.value.post_data_buffer) == 1)[:, :200], BOXES[0]) > 0.9
        tab.see("#examples li")
        context.close()
        assert tab.foreign == tab.problems == []


def test_paint_over_another_class_is_asked_about_and_both_may_stay(painting: Tab) -> None:
    page = painting.page
    page.locator("#editor .size input").fill("20")
    painting.drag((50.5, 100.5), (150.5, 100.5))
    page.keyboard.press("2")
    kept = painting.paint(lambda: painting.drag((100.5, 60.5), (100.5, 140.5)))
    assert kept[100, 100] == 1, "the first class stays until the user has answered"
    assert kept[70, 100] == kept[130, 100] == 2
    painting.see(".question >> text=red is painted on")
    over = painting.paint(lambda: page.click(".question button:has-text('Paint over it')"))
    assert over[100, 100] == 2
    again = painting.paint(lambda: painting.drag((130.5, 60.5), (130.5, 140.5)))
    assert again[100, 130] == 2, "the answer counts for the rest of the photo"
    assert page.locator(".question").is_hidden()
    undone = painting.paint(lambda: [page.keyboard.press("Control+z") for _ in range(3)])
    assert undone[100, 100] == 1
    assert undone[70, 100] == 0
    # Where a class lies on another one, both stay, and nobody is asked.
    page.evaluate(
        "const {editor} = document.querySelector('#editor-body'); editor.over = 'ask'; editor.classes[0].liesOn = [2]"
    )
    both = painting.paint(lambda: painting.drag((100.5, 60.5), (100.5, 140.5)))
    assert both[100, 100] == 1
    assert page.locator(".question").is_hidden()


def _iou(mask: Any, where: Any) -> float:
    true = np.zeros(mask.shape, bool)
    true[where] = True
    return float((mask & true).sum() / (mask | true).sum())


def test_only_what_was_painted_counts_if_the_switch_says_so(browser: Any, tiny_head: Any) -> None:
    with serving(Segmenter.load(tiny_head, learn=True), private=True) as address:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        tab = Tab(context, address)
        tab.name_classes("red", 1)
        tab.draft("a.png", RED, GREY)
        switch = tab.page.locator("#sparse")
        assert switch.is_checked()
        assert "counts as not belonging" in tab.see("#sparse-hint").inner_text()
        switch.uncheck()
        tab.see("#sparse-hint >> text=only what you painted counts")
        tab.page.keyboard.press("b")
        tab.drag((50, 50), (100, 100))
        tab.page.locator("#editor canvas").focus()
        tab.page.keyboard.press("0")
        tab.drag((300, 50), (350, 100))
        tab.page.click("#editor-done")
        tab.see("#examples li >> text=scribbles")
        context.close()
        assert tab.problems == []
