"""Self-consistency over orders: of rankings (Tang et al. 2024) and of answers (Wang et al. 2023)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fastreader import permutations
from fastreader.core.tree import TreeStats
from fastreader.data.types import Passage
from fastreader.errors import InputError
from fastreader.moi.baselines.aggregate import borda, kemeny
from fastreader.moi.baselines.listwise import ListwisePrompt, rank_lists, rank_scores
from fastreader.moi.baselines.ordering import Ordering, by_score, check_passages
from fastreader.statistics.answers import normalise

if TYPE_CHECKING:
    from fastreader.core.protocol import ReaderProtocol, Scorer
    from fastreader.reader.prompts.template import Template

AGGREGATES = ("kemeny", "borda")


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
        reader: any reader that generates.
        question: its text.
        passages: in the retriever's order.
        count: shuffles, all distinct; N! where that is fewer.
        aggregate: "kemeny" (the paper's, exact) or "borda".
        seed: of the shuffles.
        prompt: the texts of a request.
        max_new_tokens: to write in each.
        max_batch_tokens: tokens in one pass at most.

    Raises:
        InputError: another aggregate, or a count below 1.
    """
    if aggregate not in AGGREGATES:
        raise InputError(f"aggregate: expected one of {', '.join(AGGREGATES)}, got {aggregate!r}")
    n = check_passages(passages)
    drawn = shuffles(n, count, seed)
    parsed, stats = rank_lists(reader, question, passages, drawn, prompt, max_new_tokens, max_batch_tokens)
    rankings = [[order[i] for i in p.named] for order, p in zip(drawn, parsed, strict=True)]
    details = {"shuffles": len(drawn), "named": sum(len(r) for r in rankings), "asked": n * len(drawn)}
    name = "permutation-self-consistency"
    if aggregate == "borda":
        return by_score(name, borda(rankings, n), stats, details)
    order = kemeny(rankings, n)
    return Ordering(order, name, rank_scores(order), stats, details)


@dataclass(frozen=True)
class Vote:
    """The answer given most often over several orders of the passages.

    Attributes:
        answer: as it was first written; "" where every answer is empty in normal form.
        share: of the orders that gave it, in normal form.
        answers: for each order what was written.
        orders: the orders.
        stats: tokens given and computed.
    """

    answer: str
    share: float
    answers: list[str]
    orders: list[list[int]]
    stats: TreeStats

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self)


def self_consistency(
    reader: Scorer,
    question: str,
    passages: Sequence[Passage],
    *,
    count: int = 30,
    seed: int = 0,
    template: Template | None = None,
    max_new_tokens: int = 32,
    stop: Sequence[str] = ("\n",),
    max_batch_tokens: int | None = None,
) -> Vote:
    """Answer greedily after `count` random orders of the passages, all in one call, and take the majority.

    Args:
        reader: writes the answers; or a session of one (`Reader.session`).
        question: its text.
        passages: in the retriever's order.
        count: orders, all distinct; MoI takes 30; N! where that is fewer.
        seed: of the orders.
        template: the prompt's texts.
        max_new_tokens: of an answer.
        stop: texts that end it.
        max_batch_tokens: tokens in one pass at most.
    """
    from fastreader.moi.reading import reading_prompts

    orders = shuffles(check_passages(passages), count, seed)
    prompts = reading_prompts(reader, question, passages, orders, template)
    results = reader.generate(prompts, max_new_tokens=max_new_tokens, stop=stop, max_batch_tokens=max_batch_tokens)
    answers = [texts[0].text.strip() for texts in results]
    answer, share = majority(answers)
    return Vote(answer, share, answers, orders, results.stats)


def majority(answers: Sequence[str]) -> tuple[str, float]:
    """(the most frequent answer, its share): counted in SQuAD's normal form, ties to the one that came first.

    Answers of empty normal form are no answers: they count for the share's denominator only.
    """
    if not answers:
        raise InputError("majority: expected at least one answer, got none")
    counts = Counter(n for n in map(normalise, answers) if n)
    if not counts:
        return "", 0.0
    winner, votes = counts.most_common(1)[0]  # insertion order among equals
    return next(a for a in answers if normalise(a) == winner), votes / len(answers)


def shuffles(n: int, count: int, seed: int) -> list[list[int]]:
    """The random orders that both kinds of self-consistency read: distinct, N! where that is fewer than `count`."""
    if count < 1:
        raise InputError(f"count: expected at least 1, got {count}")
    rows = permutations.random(n, min(count, math.factorial(n)), seed).permutations
    return [[int(p) for p in row] for row in rows]
