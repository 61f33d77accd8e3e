"""Self-consistency over orders: of rankings (Tang et al. 2024) and of answers (Wang et al. 2023)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastreader import permutations
from fastreader.core.checked import checked, checked_methods
from fastreader.core.checks import check_choice, check_int, expect
from fastreader.core.tree import TreeStats
from fastreader.data.record import Record
from fastreader.data.types import Passage
from fastreader.moi.baselines.aggregate import borda, kemeny
from fastreader.moi.baselines.listwise import ListwisePrompt, rank_lists, rank_scores
from fastreader.moi.baselines.ordering import Ordering, by_score, check_passages
from fastreader.statistics.measures.answers import normalise

if TYPE_CHECKING:
    from fastreader.core.protocol import ReaderProtocol, ScoringReader
    from fastreader.reader.prompts.template import Template

AGGREGATES = ("kemeny", "borda")


@checked
def permutation_self_consistency(
    reader: ReaderProtocol,
    question: str,
    passages: Sequence[Passage],
    *,
    count: int = 20,
    aggregate: str = "kemeny",
    seed: int = 0,
    prompt: ListwisePrompt | None = None,
    max_new_tokens: int | None = None,
    max_batch_tokens: int | None = None,
) -> Ordering:
    """Re-rank `count` shuffles of the passages listwise, and take the order nearest to all the rankings.

    Args:
        count: number of shuffles, all distinct; at most N!.
        aggregate: "kemeny" (the paper's, exact) or "borda".
        seed: seed of the shuffles.
        prompt, max_new_tokens: same as `rank_lists`.

    Raises:
        InputError: if `aggregate` is something else or `count` < 1.
    """
    check_choice("aggregate", aggregate, AGGREGATES)
    n = check_passages(passages)
    drawn = shuffles(n, count, seed)
    limits: dict[str, Any] = {"max_new_tokens": max_new_tokens, "max_batch_tokens": max_batch_tokens}
    parsed, stats = rank_lists(reader, question, passages, drawn, prompt=prompt, **limits)
    rankings = [[order[i] for i in p.named] for order, p in zip(drawn, parsed, strict=True)]
    details = {"shuffles": len(drawn), "named": sum(len(r) for r in rankings), "asked": n * len(drawn)}
    name = "permutation-self-consistency"
    if aggregate == "borda":
        return by_score(name, borda(rankings, n), stats, details)
    order = kemeny(rankings, n)
    return Ordering(order, name, rank_scores(order), stats, details)


@checked_methods
@dataclass(frozen=True)
class ConsistencyVote(Record):
    """The most frequent answer over several orders of the passages.

    Attributes:
        answer: as it was first generated; "" if every answer is empty in normal form.
        share: share of the orders whose answer equals it in normal form.
        answers: the answer after each order.
        orders: the orders.
        stats: tokens given and computed.
    """

    answer: str
    share: float
    answers: list[str]
    orders: list[list[int]]
    stats: TreeStats


@checked
def self_consistency(
    reader: ScoringReader,
    question: str,
    passages: Sequence[Passage],
    *,
    count: int = 30,
    seed: int = 0,
    template: Template | None = None,
    max_new_tokens: int = 32,
    stop: Sequence[str] = ("\n",),
    **options: Any,
) -> ConsistencyVote:
    """Answer greedily after `count` random orders of the passages, all in one call, and take the majority.

    Args:
        reader: generates the answers; may be a session (`Reader.session`).
        count: number of orders, all distinct; MoI takes 30; at most N!.
        seed: seed of the orders.
        template: texts of the prompt.
        max_new_tokens, stop, options: same as `Reader.generate`.
    """
    from fastreader.scoring.reading import reading_prompts

    orders = shuffles(check_passages(passages), count, seed)
    prompts = reading_prompts(reader, question, passages, orders, template)
    results = reader.generate(prompts, max_new_tokens=max_new_tokens, stop=stop, **options)
    answers = [texts[0].text.strip() for texts in results]
    answer, share = majority(answers)
    return ConsistencyVote(answer, share, answers, orders, results.stats)


def majority(answers: Sequence[str]) -> tuple[str, float]:
    """Return (the most frequent answer, its share), counted in SQuAD's normal form, the first of a tie.

    Answers of empty normal form are no answers: they count for the share's denominator only.
    """
    expect(bool(answers), "answers", "at least one answer", answers)
    counts = Counter(n for n in map(normalise, answers) if n)
    if not counts:
        return "", 0.0
    winner, votes = counts.most_common(1)[0]  # insertion order among equals
    return next(a for a in answers if normalise(a) == winner), votes / len(answers)


def shuffles(n: int, count: int, seed: int) -> list[list[int]]:
    """Draw the orders that both kinds of self-consistency read: `count` distinct ones, at most N!."""
    check_int("count", count)
    rows: list[list[int]] = permutations.random(n, min(count, math.factorial(n)), seed).permutations.tolist()
    return rows
