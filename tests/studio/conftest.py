"""A session whose answers can be told beforehand: its method knows colours. The rest is the real thing."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from emat.backbone.mobilesam import find_mobilesam
from emat.features import FeatureCache
from emat.inference.segmenter import Segmenter
from emat.studio.examples import add_classes, add_draft, add_example, add_photo
from emat.studio.search import Search
from emat.studio.server import serving
from emat.studio.session import Session, new_session
from tests.inference.colour_method import ColourMethod
from tests.inference.conftest import tiny_head
from tests.studio import browser_tab

__all__ = ["tiny_head"]

RED, BLUE, GREY = (230, 20, 20), (20, 20, 230), (90, 90, 90)
SIZE = (40, 60)
WEIGHTS = find_mobilesam()  # before any test changes the home folder


@pytest.fixture(autouse=True)
def empty_home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Without MobileSAM, wherever the tests run: refining every photo would take minutes."""
    monkeypatch.setenv("EMAT_HOME", str(tmp_path_factory.getbasetemp() / "empty-home"))


@pytest.fixture
def with_mobilesam(empty_home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With MobileSAM, for tests that need it."""
    if WEIGHTS is None:
        pytest.skip("MobileSAM's weights are not here: run `emat weights fetch mobilesam`")
    monkeypatch.setenv("EMAT_HOME", str(WEIGHTS.parents[1]))


@pytest.fixture
def method() -> ColourMethod:
    return ColourMethod()


@pytest.fixture
def session(method: ColourMethod, tmp_path: Path) -> Session:
    return new_session(Segmenter(method, cache=FeatureCache(method, memory_bytes=10**8)), tmp_path / "sessions")


@pytest.fixture
def session_with_classes(session: Session) -> Session:
    add_classes(session, "red, blue")
    return session


@pytest.fixture
def answered(session_with_classes: Session) -> Session:
    """One example of red, and two photos with answers, one of them larger than the page works with."""
    session = session_with_classes
    show(session, "a.png", RED, GREY)
    add_photo(session, png(RED, BLUE), "b.png")
    add_photo(session, png(BLUE, RED, size=(300, 2400)), "c.png")
    look(session)
    return session


def stripes(*colours: tuple[int, int, int], size: tuple[int, int] = SIZE) -> NDArray[np.uint8]:
    """A photo of colours side by side."""
    photo = np.zeros((*size, 3), np.uint8)
    for index, colour in enumerate(colours):
        photo[:, index * size[1] // len(colours) : (index + 1) * size[1] // len(colours)] = colour
    return photo


def png(*colours: tuple[int, int, int], size: tuple[int, int] = SIZE) -> bytes:
    """The file of a photo of colours side by side."""
    return png_of(stripes(*colours, size=size))


def png_of(array: NDArray[np.generic]) -> bytes:
    data = io.BytesIO()
    Image.fromarray(array).save(data, "PNG")
    return data.getvalue()


def left_half(value: int = 1, size: tuple[int, int] = SIZE) -> NDArray[np.uint8]:
    """Paint on the first of two stripes."""
    paint = np.zeros(size, np.uint8)
    paint[:, : size[1] // 2] = value
    return paint


def show(session: Session, name: str, *colours: tuple[int, int, int], number: int = 1) -> None:
    """Paint the left half of a photo with a class and add it as an example."""
    draft = add_draft(session, png(*colours), name)
    add_example(session, draft.key, left_half(number))


def look(session: Session) -> None:
    """Look at all photos."""
    search = Search(session)
    search.start()
    search.wait()


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_tab.CHROMIUM, args=browser_tab.FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def shown_method() -> ColourMethod:
    """The method of the server that all browser tests share."""
    return ColourMethod()


@pytest.fixture(scope="package")
def address(shown_method: ColourMethod, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server without MobileSAM, whose home folder is empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMAT_HOME", str(tmp_path_factory.mktemp("home")))
        with serving(Segmenter(shown_method)) as address:
            yield address


@pytest.fixture
def tab(browser: Any, address: str) -> Iterator["browser_tab.Tab"]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    tab = browser_tab.Tab(context, address)
    yield tab
    context.close()
    assert tab.foreign == [], "no request leaves the machine"
    assert tab.problems == [], "the console has no errors"
