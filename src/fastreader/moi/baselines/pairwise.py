"""Pairwise ranking prompting (Qin et al. 2023, PRP-Allpair): the reader compares two passages at a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_choice
from fastreader.data.types import Passage
from fastreader.moi.baselines.ordering import Ordering, by_score, check_passages, show
from fastreader.moi.quantities.observations import FloatArray
from fastreader.reader.prompts.texts import PromptTexts

if TYPE_CHECKING:
    from fastreader.core.protocol import ReaderProtocol

AGGREGATES = ("wins", "margin")


@checked
@dataclass(frozen=True)
class PairwisePrompt(PromptTexts):
    """The texts of a comparison, in the order of the prompt.

    Attributes:
        instruction: field {question}; first, so that all comparisons share it.
        first, second: a passage; field {passage}.
        ask: the request.
        first_label, second_label: the two answers.
    """

    instruction: str = 'Two passages follow. Decide which of them is more relevant to the query "{question}".\n\n'
    first: str = "Passage A: {passage}\n\n"
    second: str = "Passage B: {passage}\n\n"
    ask: str = "Answer with Passage A or Passage B, and nothing else."
    first_label: str = "Passage A"
    second_label: str = "Passage B"


@checked
def pairwise(
    reader: ReaderProtocol,
    question: str,
    passages: Sequence[Passage],
    *,
    prompt: PairwisePrompt | None = None,
    aggregate: str = "wins",
    max_batch_tokens: int | None = None,
) -> Ordering:
    """Compare every passage with every other, in both orders, with all N(N-1) prompts in one pass.

    A comparison is the log-likelihood of the first label less that of the second. "wins": a passage gets 1 for each
    pair that it wins in both orders and 1/2 for each pair whose orders disagree (the paper's rule). "margin": half the
    difference of the two orders' log-odds, in nats, which cancels the effect of the place; mean over the passage's
    comparisons.

    Args:
        prompt: texts of a comparison.
        aggregate: "wins" or "margin".

    Raises:
        InputError: if `aggregate` is something else.
    """
    check_choice("aggregate", aggregate, AGGREGATES)
    count, texts = check_passages(passages), prompt or PairwisePrompt()
    if count == 1:
        return by_score("pairwise", [0.0])
    instruction = texts.instruction.format(question=question.strip())
    first, second = ([text.format(passage=show(p)) for p in passages] for text in (texts.first, texts.second))
    labels = [reader.continuation(label) for label in (texts.first_label, texts.second_label)]
    pairs = list(itertools.permutations(range(count), 2))
    contexts = [reader.prompt([instruction, first[a], second[b], texts.ask]) for a, b in pairs]
    results = reader.loglikelihood(list(itertools.product(contexts, labels)), max_batch_tokens=max_batch_tokens)
    margin = np.zeros((count, count))
    for i, pair in enumerate(pairs):
        margin[pair] = results[2 * i].logprob - results[2 * i + 1].logprob
    scores = wins(margin) if aggregate == "wins" else (margin - margin.T).sum(axis=1) / (2 * (count - 1))
    return by_score("pairwise", scores, results.stats, {"aggregate": aggregate, "consistent": consistent(margin)})


def wins(margin: FloatArray) -> FloatArray:
    """Return the points of each passage: float64 [N].

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
    """Return the share of the pairs in which both orders prefer the same passage."""
    above = np.triu_indices(len(margin), 1)
    return float((margin[above] * margin.T[above] < 0).mean())
