"""Compare answers: exact match, token F1, BERTScore, entailment, and any function of two texts."""

from __future__ import annotations

from collections.abc import Callable

from fastreader.core.checked import checked
from fastreader.core.checks import given
from fastreader.core.protocol import ReaderProtocol
from fastreader.eor.similarity.base import Function, Pair, Similarity, tensor
from fastreader.eor.similarity.bertscore import BertScore, Idf
from fastreader.eor.similarity.lexical import F1, Exact
from fastreader.eor.similarity.nli import CrossEncoderNli, NliTexts, ReaderNli
from fastreader.errors import InputError

__all__ = [
    "F1",
    "BertScore",
    "CrossEncoderNli",
    "Exact",
    "Function",
    "Idf",
    "NliTexts",
    "Pair",
    "ReaderNli",
    "Similarity",
    "resolve",
    "tensor",
]

SimilarityLike = str | Similarity | Callable[[str, str], float]


@checked
def resolve(found: SimilarityLike, *, reader: ReaderProtocol | None = None) -> Similarity:
    """Return a similarity from its name.

    Args:
        found: "exact", "exact:words", "exact:equal", "f1", "bertscore" or "bertscore:ENCODER", "nli:MODEL",
            "nli:reader"; or a `Similarity`; or a function of two texts.
        reader: the reader that scores "nli:reader".

    Raises:
        InputError: if the name is unknown, or is "nli:reader" without a reader.
    """
    if isinstance(found, Similarity):
        return found
    if isinstance(found, str):
        kind, _, rest = found.partition(":")
        if kind == "exact":
            return Exact(rest or "contains")
        if found == "f1":
            return F1()
        if kind == "bertscore":
            return BertScore(rest) if rest else BertScore()
        if found == ReaderNli.name:
            needs = "similarity 'nli:reader': needs a reader; pass eor.ReaderNli(reader) instead of the name"
            return ReaderNli(given(reader, needs))
        if kind == "nli" and rest:
            return CrossEncoderNli(rest)
    elif callable(found):
        return Function(getattr(found, "__name__", "function"), found)
    raise InputError(
        f"similarity: expected exact, f1, bertscore[:ENCODER], nli:MODEL, a Similarity or a function, got {found!r}"
    )
