"""What a request cost: from the reader's own count, or counted from its tokens where it was packed with others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastreader.core.protocol import TextOrTokens
from fastreader.core.tree import PrefixTree, TreeStats
from fastreader.reader.programs.requests import Request, Score


def stage_cost(request: Request, replies: Sequence[Any], stats: TreeStats, seconds: float) -> StageCost:
    """The cost of a request that had a call of its own: what the reader counted."""
    return StageCost(_calls(request), stats.total_tokens, stats.computed_tokens, _new(request, replies), seconds)


def packed_cost(
    request: Request,
    replies: Sequence[Any],
    stats: TreeStats,
    seconds: float,
    known: Callable[[Sequence[Sequence[int]]], int] | None = None,
) -> StageCost:
    """The cost of a request that shared a call, as if it had been alone in it; unknown where prompts are texts.

    Args:
        request, replies: the request, with what came back.
        stats, seconds: of the call.
        known: tells how many tokens of prompts the reader had kept; None where it keeps none.
    """
    calls, new = _calls(request), _new(request, replies)
    texts: list[TextOrTokens] = (
        list(request.prompts) if not isinstance(request, Score) else [p for p, _ in request.pairs]
    )
    if any(isinstance(text, str) for text in texts):
        return StageCost(calls, None, None, new, seconds)
    if isinstance(request, Score):
        alone = PrefixTree.build(request.pairs).stats  # type: ignore[arg-type]
        return StageCost(calls, alone.total_tokens, alone.computed_tokens, new, seconds)
    alone = PrefixTree.build([(prompt, ()) for prompt in texts]).stats  # type: ignore[misc]
    read = alone.computed_tokens - (0 if known is None else known(texts))  # type: ignore[arg-type]
    return StageCost(calls, request.n * alone.total_tokens + new, read + new, new, seconds)


def _calls(request: Request) -> int:
    return len(request.pairs) if isinstance(request, Score) else request.n * len(request.prompts)


def _new(request: Request, replies: Sequence[Any]) -> int:
    if isinstance(request, Score):
        return 0
    return sum(len(generation.token_ids) for generations in replies for generation in generations)


@dataclass(frozen=True)
class StageCost:
    """What one stage of one question cost; tokens as if the question had run alone.

    Attributes:
        calls: prompts continued and texts scored; each label is a call.
        total_tokens: tokens of all calls, prompts, labels and new tokens, as separate calls would read them; None if
            the question was packed with others and its prompts are texts, whose tokens only the reader can count.
        computed_tokens: tokens that went through the model; None likewise.
        new_tokens: tokens written, n texts of each prompt together.
        seconds: wall clock of the reader's calls, shared with the questions packed together.
    """

    calls: int
    total_tokens: int | None
    computed_tokens: int | None
    new_tokens: int
    seconds: float

    def __add__(self, other: StageCost) -> StageCost:
        return StageCost(
            self.calls + other.calls,
            None if self.total_tokens is None or other.total_tokens is None else self.total_tokens + other.total_tokens,
            None
            if self.computed_tokens is None or other.computed_tokens is None
            else self.computed_tokens + other.computed_tokens,
            self.new_tokens + other.new_tokens,
            self.seconds + other.seconds,
        )
