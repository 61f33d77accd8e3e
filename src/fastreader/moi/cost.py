"""What a re-ranking costs, in tokens, before and after it runs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from fastreader.core.tree import TreeStats
from fastreader.reader.prompts.pieces import PromptPieces


@dataclass(frozen=True)
class Cost:
    """Tokens of a re-ranking, against what MoI as printed would read.

    Attributes:
        total_tokens: tokens of all texts scored, each read alone.
        computed_tokens: tokens that go through the model.
        full: tokens of 3N whole orderings (all N! where those are fewer) with the question, each read alone.
        answer: tokens read and written to answer in the order found; 0 where nothing was answered.
        passes: scoring passes.
        cached_tokens: tokens that a session had kept (`Reader.session`); they are not in `computed_tokens`.
    """

    total_tokens: int
    computed_tokens: int
    full: int
    answer: int = 0
    passes: int = 1
    cached_tokens: int = 0

    @property
    def share(self) -> float:
        """`computed_tokens` over `full`; 0 where nothing had to be scored."""
        return self.computed_tokens / self.full if self.full else 0.0

    def add(self, stats: TreeStats) -> Cost:
        """With one more scoring pass."""
        return replace(
            self,
            total_tokens=self.total_tokens + stats.total_tokens,
            computed_tokens=self.computed_tokens + stats.computed_tokens,
            passes=self.passes + 1,
            cached_tokens=self.cached_tokens + stats.cached_tokens,
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values, `share` included."""
        return {**asdict(self), "share": self.share}


NOTHING = Cost(0, 0, 0, 0, 0)


def full_orderings(pieces: PromptPieces) -> int:
    """Tokens of 3N whole orderings with the question, each read alone."""
    n = len(pieces.passages)
    one = len(pieces.head) + len(pieces.body(range(n))) + len(pieces.question_lead) + len(pieces.question)
    return min(3 * n, math.factorial(n)) * one
