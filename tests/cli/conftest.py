"""The tiny head, for verbs that predict."""

from tests.inference.conftest import tiny_head

__all__ = ["tiny_head"]
