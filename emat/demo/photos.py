"""The photos of the demonstration, which come with the `gradio` package, and the masks of its two examples."""

import importlib.util
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from emat.errors import EmatError
from emat.inference.example import Example

SOURCE = "gradio"
EXAMPLES = {"cheetah": "media_assets/images/cheetah1.jpg", "lion": "media_assets/images/lion.jpg"}
QUESTIONS = {
    "a cub": "test_data/cheetah2.jpg",
    "small and fast": "media_assets/images/cheetah.jpg",
    "neither": "media_assets/images/tower.jpg",
}


@dataclass(frozen=True)
class DemoPhotos:
    """What is shown and what is asked."""

    examples: tuple[Example, ...]
    questions: dict[str, Path]  # by title


def demo_photos() -> DemoPhotos:
    """The photos on this machine; EmatError if the package that brings them is not installed."""
    found = importlib.util.find_spec(SOURCE)  # looks for it without importing it, which would take seconds
    places = found.submodule_search_locations if found else None
    if not places:
        raise EmatError('the demonstration uses photos that come with the studio: pip install "emat[studio]"')
    root = Path(places[0])
    absent = [name for name in (*EXAMPLES.values(), *QUESTIONS.values()) if not (root / name).is_file()]
    if absent:
        raise EmatError(
            f"the installed {SOURCE} has no {absent[0]}, which the demonstration uses; "
            'install the one it was made with: pip install "emat[studio]"'
        )
    masks = Path(str(resources.files("emat") / "demo"))
    return DemoPhotos(
        examples=tuple(Example(root / photo, {name: masks / f"{name}.png"}) for name, photo in EXAMPLES.items()),
        questions={title: root / photo for title, photo in QUESTIONS.items()},
    )
