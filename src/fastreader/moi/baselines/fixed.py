"""Orders that need no reader: the retriever's, random, reversed, best at the ends, and the oracle's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastreader.core.checks import random_generator
from fastreader.data.types import Passage
from fastreader.errors import InputError
from fastreader.moi.baselines.ordering import Ordering, check_passages
from fastreader.moi.baselines.placed import check_own, outside_bias
from fastreader.moi.gold import gold_of
from fastreader.moi.types import PositionBias


def retriever(reader: Any, question: str, passages: Sequence[Passage]) -> Ordering:
    """The order the passages came in."""
    return Ordering(list(range(check_passages(passages))), "retriever")


def random(reader: Any, question: str, passages: Sequence[Passage], *, seed: int = 0) -> Ordering:
    """One order drawn uniformly; a seed gives every question of the same number of passages the same one."""
    order = random_generator(seed).permutation(check_passages(passages))
    return Ordering(order.tolist(), "random", details={"seed": seed})


def backwards(reader: Any, question: str, passages: Sequence[Passage]) -> Ordering:
    """The retriever's order reversed: its best passage last, next to the question."""
    return Ordering(list(range(check_passages(passages)))[::-1], "reversed")


def best_at_the_ends(reader: Any, question: str, passages: Sequence[Passage]) -> Ordering:
    """The retriever's ranks from the outside in: 1, 3, 5, ..., 6, 4, 2.

    What Haystack ships against "lost in the middle" (Liu et al. 2024), as LostInTheMiddleRanker.
    """
    return Ordering(_outside_in(check_passages(passages)), "best-at-the-ends")


def long_context_reorder(reader: Any, question: str, passages: Sequence[Passage]) -> Ordering:
    """Best at the ends as LangChain and LlamaIndex ship it, as LongContextReorder.

    As `best_at_the_ends` for an odd number of passages, its mirror image for an even one: 2, 4, ..., 3, 1.
    """
    count = check_passages(passages)
    return Ordering(_outside_in(count)[:: 1 if count % 2 else -1], "long-context-reorder")


def _outside_in(count: int) -> list[int]:
    ranks = list(range(count))
    return ranks[::2] + ranks[1::2][::-1]


def oracle(
    reader: Any,
    question: str,
    passages: Sequence[Passage],
    *,
    bias: PositionBias | None = None,
    place: int | None = None,
) -> Ordering:
    """The right passage at the best place, the others around it in the retriever's order.

    It reads the annotation, so it is a bound on what an order of one passage can give, and no method.

    Args:
        reader: None, or the one that the bias is of.
        question: unused.
        passages: one of them with `is_gold`, else with `has_answer`; the first counts.
        bias: the best place is that of its largest weight.
        place: the place itself, from 0, in place of a bias.

    Raises:
        InputError: no passage is known to be right, both or neither of bias and place, a place out of range, or a
            bias of undetermined sign or of another reader.
    """
    count = check_passages(passages)
    gold = gold_of(passages)
    if gold is None:
        raise InputError("oracle: no passage is marked is_gold or has_answer")
    if (bias is None) == (place is None):
        raise InputError("oracle: expected a bias or a place, one of the two")
    if bias is not None:
        place = int(outside_bias(bias, count).argmax())
        check_own(bias, reader)
    assert place is not None
    if not 0 <= place < count:
        raise InputError(f"oracle: place must be in [0, {count}), got {place}")
    others = [p for p in range(count) if p != gold]
    return Ordering([*others[:place], gold, *others[place:]], "oracle", details={"gold": gold, "place": place})
