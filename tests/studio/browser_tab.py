"""A tab of a real browser, driven with mouse and keys, that notes what it asked the world for and what went wrong."""

import importlib.util
import io
import re
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.studio import conftest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ABSENT = [name for name in ("uvicorn", "playwright") if importlib.util.find_spec(name) is None]
NEEDS_BROWSER = [
    pytest.mark.skipif(bool(ABSENT), reason=f"needs {' and '.join(ABSENT)}"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync "
    "--no-first-run"
)
PATIENCE = 180_000  # milliseconds; machines that run tests are often busy
LARGE = (300, 400)


class Tab:
    def __init__(self, context: Any, address: str) -> None:
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.foreign: list[str] = []
        self.problems: list[str] = []
        self.expected: list[str] = []  # parts of messages in the console that belong to the test
        self.size = LARGE
        self.page.on("request", self._note_request)
        # A message about an answer names no address of its own.
        self.page.on(
            "console",
            lambda message: self._note_problem(message.type, f"{message.text} {message.location.get('url', '')}"),
        )
        self.page.on("pageerror", lambda error: self._note_problem("error", str(error)))
        self.page.on("dialog", lambda dialog: dialog.accept())
        self.open(address)

    def open(self, address: str) -> None:
        self.page.goto(address)
        self.page.wait_for_selector("#classes .empty, #classes .chip")

    def reload(self) -> None:
        self.page.reload()
        self.page.wait_for_selector("#classes .empty, #classes .chip")

    def see(self, selector: str, index: int = 0) -> Any:
        self.page.wait_for_selector(f"{selector} >> nth={index}")
        return self.page.locator(selector).nth(index)

    def wait(self, condition: str) -> None:
        """Until a JavaScript expression is true."""
        self.page.wait_for_function(f"() => {condition}")

    def until_done(self) -> None:
        """Until all photos were sent and looked at."""
        self.wait("!document.querySelector('#photo-progress').textContent")
        self.wait("document.querySelectorAll('#list li').length && !document.querySelector('#progress').firstChild")

    def drop(self, zone: str, *files: dict[str, Any]) -> None:
        self.page.set_input_files(f"{zone} input", list(files))

    def name_classes(self, text: str, count: int) -> None:
        self.page.fill("#class-name", text)
        self.page.press("#class-name", "Enter")
        self.see("#classes .chip", count - 1)

    def draft(self, name: str, *colours: tuple[int, int, int]) -> None:
        """Drop a photo, which opens in the editor."""
        self.drop("#draft-files", photo(name, *colours, size=self.size))
        self.wait_for_editor()

    def wait_for_editor(self) -> None:
        self.page.wait_for_selector("#editor[open] [data-tool][aria-pressed=true]")
        self.page.wait_for_timeout(60)  # a frame, so that the photo has its size on the screen

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where on the screen a pixel of the photo is while the whole photo is shown."""
        box = self.page.locator("#editor canvas").bounding_box()
        height, width = self.size
        scale = min(box["width"] / width, box["height"] / height)
        left, top = (box["width"] - width * scale) / 2, (box["height"] - height * scale) / 2
        return box["x"] + left + x * scale, box["y"] + top + y * scale

    def click(self, x: float, y: float, **options: Any) -> None:
        self.page.mouse.click(*self.at(x, y), **options)

    def drag(self, *points: tuple[float, float], button: str = "left") -> None:
        mouse = self.page.mouse
        mouse.move(*self.at(*points[0]))
        mouse.down(button=button)
        for point in points[1:]:
            mouse.move(*self.at(*point), steps=4)
        mouse.up(button=button)

    def paint(self, act: Callable[[], Any] = lambda: None) -> NDArray[np.uint8]:
        """Do something to the paint, and return the PNG of it that the page would send."""
        act()
        packed = self.page.evaluate(
            """async () => [...await document.querySelector('#editor-body').editor.png()].reduce(
              (text, byte) => text + String.fromCharCode(byte), '')"""
        )
        return np.array(Image.open(io.BytesIO(packed.encode("latin-1"))))

    def settled_paint(self, act: Callable[[], Any] = lambda: None) -> NDArray[np.uint8]:
        """The same as `paint`, when all clicks are answered and all proposals are there."""
        act()
        self.page.wait_for_timeout(30)
        self.wait("(editor => !editor.waiting && !editor.searching)(document.querySelector('#editor-body').editor)")
        return self.paint()

    def fill_left_half(self) -> None:
        """Paint the left half of the photo with a broad brush."""
        self.page.keyboard.press("b")
        self.page.locator("#editor .size input").fill("60")
        rows = [(x, y) for y in range(20, 300, 40) for x in ((20, 175) if y % 80 == 20 else (175, 20))]
        self.drag(*rows)

    def _note_request(self, request: Any) -> None:
        if not re.match(r"(http://127\.0\.0\.1:\d+/|data:|blob:)", request.url):
            self.foreign.append(request.url)

    def _note_problem(self, kind: str, text: str) -> None:
        if kind == "error" and not any(part in text for part in self.expected):
            self.problems.append(text)


def photo(name: str, *colours: tuple[int, int, int], size: tuple[int, int] = LARGE) -> dict[str, Any]:
    """A photo of colours side by side, to be dropped."""
    return {"name": name, "mimeType": "image/png", "buffer": conftest.png(*colours, size=size)}
