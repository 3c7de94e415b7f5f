"""A session whose answers can be told beforehand: its method knows colours. The rest is the real thing."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from emat.features import FeatureCache
from emat.inference.segmenter import Segmenter
from emat.studio.actions import add_classes
from emat.studio.session import Session, new_session
from tests.inference.colour_method import ColourMethod
from tests.inference.conftest import tiny_head

__all__ = ["tiny_head"]

RED, BLUE, GREY = (230, 20, 20), (20, 20, 230), (90, 90, 90)
Files = Callable[..., Path]


@pytest.fixture
def method() -> ColourMethod:
    return ColourMethod()


@pytest.fixture
def session(method: ColourMethod) -> Session:
    return new_session(Segmenter(method, cache=FeatureCache(method, memory_bytes=10**8)))


@pytest.fixture
def session_with_classes(session: Session) -> Session:
    add_classes(session, "red, blue")
    return session


@pytest.fixture
def photo_file(tmp_path: Path) -> Files:
    """Write a photo of colours side by side."""

    def write(name: str, *colours: tuple[int, int, int], size: tuple[int, int] = (40, 60)) -> Path:
        Image.fromarray(stripes(*colours, size=size)).save(tmp_path / name)
        return tmp_path / name

    return write


def stripes(*colours: tuple[int, int, int], size: tuple[int, int] = (40, 60)) -> NDArray[np.uint8]:
    """A photo of colours side by side."""
    photo = np.zeros((*size, 3), np.uint8)
    for index, colour in enumerate(colours):
        photo[:, index * size[1] // len(colours) : (index + 1) * size[1] // len(colours)] = colour
    return photo


def paint(colour: tuple[int, int, int], where: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """A layer of the editor."""
    layer = np.zeros((*where.shape, 4), np.uint8)
    layer[where] = (*colour, 140)
    return layer


def left_half(size: tuple[int, int] = (40, 60)) -> NDArray[np.bool_]:
    """The mask of the first of two stripes."""
    mask = np.zeros(size, bool)
    mask[:, : size[1] // 2] = True
    return mask
