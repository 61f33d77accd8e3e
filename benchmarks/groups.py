"""Sequences grouped by their context, as the usual ways want them."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """One context and what is scored after it.

    Attributes:
        context: token ids.
        continuations: token ids of each.
        scored_from: where in the context scoring of the context itself starts; None: it is not scored.
    """

    context: list[int]
    continuations: list[list[int]]
    scored_from: int | None = None

    def sequences(self) -> list[tuple[list[int], list[int]]]:
        """(context, continuation) pairs, the context's own last."""
        pairs = [(self.context, continuation) for continuation in self.continuations]
        if self.scored_from is not None:
            pairs.append((self.context[: self.scored_from], self.context[self.scored_from :]))
        return pairs


def cyclic_groups(
    vocabulary: int, passages: int, passage_tokens: int, candidates: int, candidate_tokens: int, seed: int = 0
) -> list[Group]:
    """Random token ids in the shape of one question: N passages in cyclic orders, K candidates after each.

    Args:
        vocabulary: ids are drawn below this.
        passages: N.
        passage_tokens: tokens of each.
        candidates: K.
        candidate_tokens: tokens of each.
        seed: of the ids.
    """
    generator = random.Random(seed)  # nosec B311 # draws of a benchmark

    def draw(count: int) -> list[int]:
        return [generator.randrange(vocabulary) for _ in range(count)]

    header, question = draw(12), draw(16)
    texts = [draw(passage_tokens) for _ in range(passages)]
    answers = [draw(candidate_tokens) for _ in range(candidates)]
    groups = []
    for first in range(passages):
        body = [token for i in range(passages) for token in texts[(first + i) % passages]]
        groups.append(Group(header + body + question, answers))
    return groups
