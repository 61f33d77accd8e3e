"""Pairwise ranking prompting (Qin et al. 2023, PRP-Allpair): which of two passages says more to the question?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fastreader.data.types import Passage
from fastreader.errors import InputError
from fastreader.moi.baselines.ordering import FloatArray, Ordering, by_score, check_passages, show

if TYPE_CHECKING:
    from fastreader.core.protocol import ReaderProtocol

AGGREGATES = ("wins", "margin")


@dataclass(frozen=True)
class PairwisePrompt:
    """The texts of a comparison, in the order of the prompt.

    Attributes:
        instruction: field {question}; first, so that all comparisons share it.
        first, second: a passage; field {passage}.
        ask: the request.
        labels: the two answers.
    """

    instruction: str = 'Two passages follow. Decide which of them is more relevant to the query "{question}".\n\n'
    first: str = "Passage A: {passage}\n\n"
    second: str = "Passage B: {passage}\n\n"
    ask: str = "Answer with Passage A or Passage B, and nothing else."
    labels: tuple[str, str] = ("Passage A", "Passage B")


def pairwise(
    reader: ReaderProtocol,
    question: str,
    passages: Sequence[Passage],
    *,
    prompt: PairwisePrompt | None = None,
    aggregate: str = "wins",
    max_batch_tokens: int | None = None,
) -> Ordering:
    """Every passage against every other, in both orders, all N(N-1) prompts in one pass.

    A comparison is the log-likelihood of the first label less the second's. "wins": a passage gets 1 where it wins in
    both orders, 1/2 where the orders disagree (the paper's rule); "margin": the mean over its comparisons of half
    the difference of the two orders' log-odds, in nats, which leaves out what the place alone does.

    Args:
        reader: any reader.
        question: its text.
        passages: in the retriever's order.
        prompt: the texts.
        aggregate: "wins" or "margin".
        max_batch_tokens: tokens in one pass at most.

    Raises:
        InputError: another aggregate.
    """
    if aggregate not in AGGREGATES:
        raise InputError(f"aggregate: expected one of {', '.join(AGGREGATES)}, got {aggregate!r}")
    count, texts = check_passages(passages), prompt or PairwisePrompt()
    if count == 1:
        return by_score("pairwise", [0.0])
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    labels = [reader.continuation(label) for label in texts.labels]
    shown = [show(p) for p in passages]
    contexts = [
        reader.prompt(
            [
                texts.instruction.format(question=question.strip()),
                texts.first.format(passage=shown[a]),
                texts.second.format(passage=shown[b]),
                texts.ask,
            ]
        )
        for a, b in pairs
    ]
    results = reader.loglikelihood(
        [(context, label) for context in contexts for label in labels], max_batch_tokens=max_batch_tokens
    )
    margin = np.zeros((count, count))
    for i, (a, b) in enumerate(pairs):
        margin[a, b] = results[2 * i].logprob - results[2 * i + 1].logprob
    scores = wins(margin) if aggregate == "wins" else (margin - margin.T).sum(axis=1) / (2 * (count - 1))
    return by_score("pairwise", scores, results.stats, {"aggregate": aggregate, "consistent": consistent(margin)})


def wins(margin: FloatArray) -> FloatArray:
    """Points of each passage: float64 [N].

    Args:
        margin: float64 [N, N], log-odds that the first of (row, column) is the better; the diagonal is not read.
    """
    first_wins = np.sign(margin)
    both = first_wins - first_wins.T  # 2: row wins in both orders, -2: loses in both
    points = np.where(both == 2, 1.0, np.where(both == -2, 0.0, 0.5))
    np.fill_diagonal(points, 0.0)
    total: FloatArray = points.sum(axis=1)
    return total


def consistent(margin: FloatArray) -> float:
    """Share of the pairs in which both orders prefer the same passage."""
    above = np.triu_indices(len(margin), 1)
    return float((margin[above] * margin.T[above] < 0).mean())
