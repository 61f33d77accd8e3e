"""Orders that need no reader: the retriever's, random, reversed, best at the ends, and the oracle's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, expect, given, random_generator
from fastreader.data.types import Passage
from fastreader.moi.baselines.ordering import Ordering, check_passages
from fastreader.moi.baselines.placed import check_own, outside_bias
from fastreader.moi.calibration.probe import gold_of
from fastreader.moi.quantities.position_bias import PositionBias


@checked
def retriever(reader: Any, question: str, passages: Sequence[Passage]) -> Ordering:
    """Keep the order of the passages."""
    return Ordering(list(range(check_passages(passages))), "retriever")


@checked
def random(reader: Any, question: str, passages: Sequence[Passage], *, seed: int = 0) -> Ordering:
    """Draw one order uniformly, the same for all questions of equal N and seed."""
    order = random_generator(seed).permutation(check_passages(passages))
    return Ordering(order.tolist(), "random", details={"seed": seed})


@checked
def backwards(reader: Any, question: str, passages: Sequence[Passage]) -> Ordering:
    """Reverse the retriever's order: its best passage comes last, next to the question."""
    return Ordering(list(range(check_passages(passages)))[::-1], "reversed")


@checked
def best_at_the_ends(reader: Any, question: str, passages: Sequence[Passage]) -> Ordering:
    """Order the retriever's ranks from the outside in: 1, 3, 5, ..., 6, 4, 2.

    This is Haystack's LostInTheMiddleRanker, against "lost in the middle" (Liu et al. 2024).
    """
    return Ordering(_outside_in(check_passages(passages)), "best-at-the-ends")


@checked
def long_context_reorder(reader: Any, question: str, passages: Sequence[Passage]) -> Ordering:
    """Put the best at the ends as LangChain's and LlamaIndex's LongContextReorder do.

    Equals `best_at_the_ends` for an odd number of passages, and its mirror image for an even one: 2, 4, ..., 3, 1.
    """
    count = check_passages(passages)
    return Ordering(_outside_in(count)[:: 1 if count % 2 else -1], "long-context-reorder")


def _outside_in(count: int) -> list[int]:
    ranks = list(range(count))
    return ranks[::2] + ranks[1::2][::-1]


@checked
def oracle(
    reader: Any,
    question: str,
    passages: Sequence[Passage],
    *,
    bias: PositionBias | None = None,
    place: int | None = None,
) -> Ordering:
    """Put the right passage at the best place, and the others around it in the retriever's order.

    It reads the annotation, so it is a bound on the gain from placing one passage, not a method.

    Args:
        reader: None, or the reader that the bias was measured on.
        passages: one of them with `is_gold`, else with `has_answer`; the first counts.
        bias: its largest weight is the best place.
        place: the place itself, from 0, instead of a bias.

    Raises:
        InputError: if no passage is marked, if not exactly one of `bias` and `place` is given, if `place` is out of
            range, or if the bias has an undetermined sign or belongs to another reader.
    """
    count = check_passages(passages)
    gold = given(gold_of(passages), "oracle: no passage is marked is_gold or has_answer")
    one = (bias is None) != (place is None)
    expect(one, "oracle", "a bias or a place, one of the two", "neither" if bias is None else "both")
    if bias is not None:
        place = int(outside_bias(bias, count).argmax())
        check_own(bias, reader)
    check_int("place", place, 0, count - 1)
    others = [p for p in range(count) if p != gold]
    return Ordering([*others[:place], gold, *others[place:]], "oracle", details={"gold": gold, "place": place})
