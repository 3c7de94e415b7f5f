"""Few-shot classification and segmentation with the Efficient Masked Attention Transformer (EMAT).

Letters used for shapes everywhere in the package:

=====  =======================================================================================
B      pairs of (query image, support image with one class's mask) in a batch
C      correlation channels: (head, block) of a ViT, (group, block) of a CNN
T      patch tokens of an image, ``h * w`` of its grid; the class token is not counted
d      width of one token in one channel
t_q    query tokens of a pair, the T of the query image
t_s    support tokens of a pair: 1 class token + grid² image tokens, as the paper counts them
t_d    support tokens after a layer's downscaling
E      channels of an attention layer's output; its hidden width is E / 2, split into 8 heads
=====  =======================================================================================
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emat.inference.example import Example
    from emat.inference.prediction import Prediction, Thresholds
    from emat.inference.segmenter import Segmenter
    from emat.refine.click import Clicker, click

__version__ = "0.1.0"
__all__ = ["Clicker", "Example", "Prediction", "Segmenter", "Thresholds", "__version__", "click"]

_MODULES = {
    "Clicker": "emat.refine.click",
    "Example": "emat.inference.example",
    "Prediction": "emat.inference.prediction",
    "Segmenter": "emat.inference.segmenter",
    "Thresholds": "emat.inference.prediction",
    "click": "emat.refine.click",
}


def __getattr__(name: str) -> object:
    """Load the public names when they are first asked for, since they bring torch with them."""
    if name not in _MODULES:
        raise AttributeError(f"module 'emat' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)
