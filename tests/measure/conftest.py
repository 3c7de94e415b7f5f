"""The tiny head, for verdicts that predict examples."""

from tests.inference.conftest import tiny_head

__all__ = ["tiny_head"]
