"""Functions that score with a `Reader`, as programs: what they score is packed with what other programs ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from fastreader.core.protocol import Loglikelihood, SequenceScores
from fastreader.core.tree import TreeStats
from fastreader.reader.programs.requests import Program, score
from fastreader.study.cached_reader import CachedReader, CachedTreeReader

T = TypeVar("T")
Pair = tuple[tuple[int, ...], tuple[int, ...]]


def scoring(stage: str, reader: CachedReader, function: Callable[[CachedTreeReader], T]) -> Program[T]:
    """`yield from` it: what `function` returns when it is called with a reader.

    It is called until it ends: each time with the scores it asked for so far, and each further score becomes a
    request. It must do the same every time.
    """
    known: dict[Pair, Loglikelihood] = {}
    asking = _AskingReader(reader, known)
    while True:
        try:
            return function(asking)
        except _Ask as ask:
            pairs = ask.pairs
        replies = yield from score(stage, pairs)
        known.update(zip(pairs, replies, strict=True))


class _Ask(Exception):
    """Scores that are not known yet."""

    def __init__(self, pairs: list[Pair]) -> None:
        super().__init__()
        self.pairs = pairs


class _AskingReader(CachedTreeReader):
    """Knows some scores, and asks for others by `_Ask`."""

    def __init__(self, cached: CachedReader, known: dict[Pair, Loglikelihood]) -> None:
        super().__init__(cached)
        self._known = known

    def score(self, sequences: Sequence[tuple[Any, Any]], **_: Any) -> SequenceScores:
        """As `Reader.score`, without each token's value; what it costs is counted where it is asked."""
        pairs: list[Pair] = [(tuple(context), tuple(text)) for context, text in sequences]
        if missing := [pair for pair in dict.fromkeys(pairs) if pair[1] and pair not in self._known]:
            raise _Ask(missing)
        nothing = Loglikelihood(0.0, 0, True)  # of no tokens
        found = [self._known[pair] if pair[1] else nothing for pair in pairs]
        return SequenceScores(
            logprob=np.array([one.logprob for one in found], dtype=np.float64),
            num_tokens=np.array([one.num_tokens for one in found], dtype=np.int64),
            is_greedy=np.array([one.is_greedy for one in found], dtype=bool),
            token_logprobs=[],
            stats=TreeStats(0, 0, 0, 0),
            passes=0,
            seconds=0.0,
        )
