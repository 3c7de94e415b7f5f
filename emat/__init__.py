"""Few-shot classification and segmentation with the Efficient Masked Attention Transformer (EMAT).

What happens between a photo and a mask, with the package that does it:

1. `images` reads the photo and makes pixels of it.
2. `backbone` turns pixels into tokens; `features` keeps them, so that a photo is encoded once.
3. `model` compares the tokens of a query with those of a support: is the class there, and where?
4. `methods` joins the answers of all supports. `methods.label_map` is the rule that decides the class of a pixel.
   `pixel_learner` adds what was learnt from the examples.
5. `inference` is `Segmenter`, which takes these steps for a user's photos. `refine` makes the masks crisp.
6. `formats` writes the masks for other programs, and reads theirs.

`datasets` and `tasks` make the tasks of benchmarks, which `evaluation` answers and `training` trains on, in the same
steps. `cli`, `studio` and `reports` are what people see. The docstring of `emat.model` explains the letters in shapes.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emat.inference.cross_validation import cross_validate
    from emat.inference.example import Example
    from emat.inference.prediction import Prediction, Thresholds
    from emat.inference.segmenter import Segmenter
    from emat.refine.click import Clicker, click

__version__ = "0.2.0"
__all__ = ["Clicker", "Example", "Prediction", "Segmenter", "Thresholds", "__version__", "click", "cross_validate"]

_MODULES = {
    "Clicker": "emat.refine.click",
    "Example": "emat.inference.example",
    "Prediction": "emat.inference.prediction",
    "Segmenter": "emat.inference.segmenter",
    "Thresholds": "emat.inference.prediction",
    "click": "emat.refine.click",
    "cross_validate": "emat.inference.cross_validation",
}


def __getattr__(name: str) -> object:
    """Load the public names when they are first asked for, since they bring torch with them."""
    if name not in _MODULES:
        raise AttributeError(f"module 'emat' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """The public names, also those that are not loaded yet."""
    return sorted(__all__)
