"""Scoring with a cache of passages, if the reader has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fastreader.core.checks import expect
from fastreader.core.protocol import ScoringReader, SequenceScores
from fastreader.core.tree import TokenPairs

if TYPE_CHECKING:
    from fastreader.models.passage_cache.cache import PassageCache

AnyReader = TypeVar("AnyReader")


def score_after(
    reader: ScoringReader, sequences: TokenPairs, ends: Sequence[Sequence[int]], **options: Any
) -> SequenceScores:
    """Score pairs by a reader, which takes the tokens before `ends` from its cache of passages if it has one.

    Args:
        reader: scores them.
        sequences: (context, continuation) pairs of token ids.
        ends: see `PassageReader.score`.
        **options: of `ScoringReader.score`.
    """
    if getattr(reader, "passage_cache", None) is not None:
        options["ends"] = ends
    return reader.score(sequences, **options)


def with_cache(reader: AnyReader, cache: PassageCache | None) -> AnyReader:
    """Return a reader with a cache of passages, or the reader itself without one.

    Raises:
        InputError: if there is a cache, and the model is not in this process, or the reader is a session.
    """
    if cache is None:
        return reader
    add: Any = getattr(reader, "with_cache", None)
    expect(add is not None, "cache", f"None for a {type(reader).__name__}, or a Reader to compute with it", cache)
    found: AnyReader = add(cache)
    return found
