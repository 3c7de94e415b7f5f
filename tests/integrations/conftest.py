"""The tiny fitted segmenter of the tests of `emat.scale`."""

from tests.scale.conftest import fitted, fitted_file, tiny_head

__all__ = ["fitted", "fitted_file", "tiny_head"]
