"""Bayes saliency +: passages picked one after another, each given those before (MoI, equation 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastreader.data.types import Passage
from fastreader.errors import InputError
from fastreader.moi.baselines.ordering import NOTHING_READ, FloatArray, Ordering, check_passages
from fastreader.tree import TreeStats

if TYPE_CHECKING:
    from fastreader.prompts import PromptPieces, Template
    from fastreader.reader import Reader


def bayes_saliency_plus(
    reader: Reader,
    question: str,
    passages: Sequence[Passage],
    *,
    template: Template | None = None,
    max_tokens: int | None = None,
) -> Ordering:
    """Greedy: at each step the passage of the largest ``P(q | p_1..p_k; p) P(p | p_1..p_k)`` comes next.

    MoI prints p_N in the last factor; it is read as p_k, the passages picked so far. Each step scores all remaining
    passages in one pass over their shared beginning; N - 1 steps follow one another, since the last passage is no
    choice.

    Returns:
        The order of picking. It has no `scores`, since values of different steps do not compare; `details` has the
        value of each step's pick, nats.

    Raises:
        InputError: the template puts the question first, where passages do not condition it.
    """
    from fastreader.prompts import Template, encode

    count = check_passages(passages)
    pieces = encode(reader.encoder, template or Template(), question, passages, [])
    if pieces.question_at is not None:
        raise InputError("bayes_saliency_plus: with the question first, passages do not condition it")
    picked: list[int] = []
    stats, values_picked = NOTHING_READ, []
    left = list(range(count))
    while len(left) > 1:
        values, spent = _step(reader, pieces, picked, left, max_tokens)
        best = int(values.argmax())  # the first among equals: the retriever's order
        values_picked.append(float(values[best]))
        picked.append(left.pop(best))
        stats = stats + spent
    return Ordering([*picked, left[0]], "bayes-saliency-plus", None, stats, {"values": values_picked})


def _step(
    reader: Reader, pieces: PromptPieces, picked: list[int], left: list[int], max_tokens: int | None
) -> tuple[FloatArray, TreeStats]:
    """log P(q | picked, p) + log P(p | picked) of each passage left: float64 [len(left)], nats."""
    before = pieces.head + pieces.body(picked)
    added = [pieces.passage(p, len(picked)) for p in left]
    sequences = [(before + tokens + pieces.question_lead, pieces.question) for tokens in added]
    sequences += [(before, tokens) for tokens in added]
    scored = reader.score(sequences, max_tokens=max_tokens)
    values: FloatArray = scored.logprob[: len(left)] + scored.logprob[len(left) :]
    return values, scored.stats
