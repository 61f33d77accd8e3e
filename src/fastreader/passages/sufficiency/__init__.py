"""Whether the passages of a question hold an answer to it."""

from fastreader.passages.sufficiency.results import Sufficiency
from fastreader.passages.sufficiency.sufficient import sufficient

__all__ = ["Sufficiency", "sufficient"]
