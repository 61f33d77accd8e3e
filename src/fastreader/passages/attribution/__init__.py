"""How much each passage contributes to an answer: alone, left out, by Shapley values and by a linear surrogate."""

from fastreader.passages.attribution.attribute import attribute
from fastreader.passages.attribution.results import Attribution

__all__ = ["Attribution", "attribute"]
