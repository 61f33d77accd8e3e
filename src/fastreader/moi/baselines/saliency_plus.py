"""Bayes saliency +: pick passages one after another, each given those before (MoI, equation 2)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastreader.core.checked import checked
from fastreader.core.checks import expect
from fastreader.data.types import Passage
from fastreader.errors import OutOfBudgetError
from fastreader.moi.baselines.ordering import NOTHING_READ, Ordering, check_passages

if TYPE_CHECKING:
    from fastreader.core.protocol import ScoringReader
    from fastreader.reader.prompts.template import Template


@checked
def bayes_saliency_plus(
    reader: ScoringReader,
    question: str,
    passages: Sequence[Passage],
    *,
    template: Template | None = None,
    max_batch_tokens: int | None = None,
) -> Ordering:
    """Pick greedily the passage of the largest ``P(q | p_1..p_k, p) P(p | p_1..p_k)`` at each step.

    MoI prints p_N in the last factor; here it is p_k, the last passage picked so far. Each step scores all remaining
    passages in one pass; there are N - 1 steps, since the last passage is no choice. A reader with sessions
    (`Reader.session`) reads the picked passages once, others read them in each step. A session opens another session.

    Returns:
        The order of picking. It has no `scores`, since values of different steps do not compare; `details` has the
        value of each step's pick, nats.

    Raises:
        InputError: if the template puts the question first, so that passages do not condition it.
    """
    from fastreader.reader.prompts.pieces import encode
    from fastreader.reader.prompts.template import as_template

    left = list(range(check_passages(passages)))
    pieces = encode(reader.encoder, as_template(template), question, passages, [])
    after = pieces.question_at is None
    expect(after, "template", "the question after the passages, which condition it", "the question first")
    picked: list[int] = []
    details: dict[str, Any] = {"values": []}
    stats, session = NOTHING_READ, None
    open_session = getattr(reader, "session", None)
    with ExitStack() as opened:
        while len(left) > 1:
            before = pieces.head + pieces.body(picked)
            if open_session is not None and "notes" not in details:
                try:
                    if session is None:
                        session = opened.enter_context(open_session(before))
                    else:
                        session.prefill(before)
                except OutOfBudgetError as error:
                    note = f"from {len(before)} tokens on, the beginning was read again in each step: {error}"
                    details["notes"] = [note]
            added = [pieces.passage(p, len(picked)) for p in left]
            sequences = [(before + tokens + pieces.question_lead, pieces.question) for tokens in added]
            sequences += [(before, tokens) for tokens in added]
            scored = (reader if session is None else session).score(sequences, max_batch_tokens=max_batch_tokens)
            values = scored.logprob[: len(left)] + scored.logprob[len(left) :]
            best = int(values.argmax())  # the first among equals: the retriever's order
            details["values"].append(float(values[best]))
            picked.append(left.pop(best))
            stats = stats + scored.stats
    if session is not None:  # the beginnings were computed apart
        stats = replace(stats, computed_tokens=stats.computed_tokens + session.stats.computed_tokens)
    return Ordering([*picked, *left], "bayes-saliency-plus", None, stats, details)
