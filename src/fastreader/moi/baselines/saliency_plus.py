"""Bayes saliency +: passages picked one after another, each given those before (MoI, equation 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fastreader.core.tree import TreeStats
from fastreader.data.types import Passage
from fastreader.errors import InputError, OutOfBudgetError
from fastreader.moi.baselines.ordering import NOTHING_READ, Ordering, check_passages

if TYPE_CHECKING:
    from fastreader.core.protocol import Scorer, SequenceScores
    from fastreader.reader.prompts.pieces import PromptPieces
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.session import Session


def bayes_saliency_plus(
    reader: Scorer,
    question: str,
    passages: Sequence[Passage],
    *,
    template: Template | None = None,
    max_batch_tokens: int | None = None,
) -> Ordering:
    """Greedy: at each step the passage of the largest ``P(q | p_1..p_k; p) P(p | p_1..p_k)`` comes next.

    MoI prints p_N in the last factor; it is read as p_k, the passages picked so far. Each step scores all remaining
    passages in one pass; N - 1 steps follow one another, since the last passage is no choice. The passages picked are
    read once where the reader keeps them (`Reader.session`; a session given has another opened beside it), and in
    each step otherwise.

    Returns:
        The order of picking. It has no `scores`, since values of different steps do not compare; `details` has the
        value of each step's pick, nats.

    Raises:
        InputError: the template puts the question first, where passages do not condition it.
    """
    from fastreader.reader.prompts.pieces import encode
    from fastreader.reader.prompts.template import as_template

    count = check_passages(passages)
    pieces = encode(reader.encoder, as_template(template), question, passages, [])
    if pieces.question_at is not None:
        raise InputError("bayes_saliency_plus: with the question first, passages do not condition it")
    picked: list[int] = []
    stats, values_picked = NOTHING_READ, []
    left = list(range(count))
    with _Beginning(reader) as beginning:
        while len(left) > 1:
            before = pieces.head + pieces.body(picked)
            scored = _step(beginning.after(before), pieces, before, len(picked), left, max_batch_tokens)
            values = scored.logprob[: len(left)] + scored.logprob[len(left) :]
            best = int(values.argmax())  # the first among equals: the retriever's order
            values_picked.append(float(values[best]))
            picked.append(left.pop(best))
            stats = stats + scored.stats
    details = {"values": values_picked, **({"notes": beginning.notes} if beginning.notes else {})}
    return Ordering([*picked, *left], "bayes-saliency-plus", None, stats + beginning.stats, details)


def _step(
    reader: Scorer, pieces: PromptPieces, before: list[int], place: int, left: list[int], most: int | None
) -> SequenceScores:
    """log P(q | picked, p) of each passage left, then log P(p | picked) of each: [2 len(left)], nats."""
    added = [pieces.passage(p, place) for p in left]
    sequences = [(before + tokens + pieces.question_lead, pieces.question) for tokens in added]
    sequences += [(before, tokens) for tokens in added]
    return reader.score(sequences, max_batch_tokens=most)


class _Beginning:
    """What all sequences of a step begin with, read once where the reader keeps keys and values (`Reader.session`).

    Attributes:
        stats: what was computed for it alone.
        notes: why something was read anew in each step.
    """

    def __init__(self, reader: Scorer) -> None:
        self.notes: list[str] = []
        self._reader = reader
        self._open: Callable[..., Session] | None = getattr(reader, "session", None)
        self._session: Session | None = None

    @property
    def stats(self) -> TreeStats:
        return (
            NOTHING_READ
            if self._session is None
            else replace(NOTHING_READ, computed_tokens=self._session.stats.computed_tokens)
        )

    def after(self, before: list[int]) -> Scorer:
        """What scores sequences that begin with `before`, which begins as the one before did."""
        if self._open is not None and not self.notes:
            try:
                if self._session is None:
                    self._session = self._open(before)
                else:
                    self._session.prefill(before)
            except OutOfBudgetError as error:
                self.notes.append(f"from {len(before)} tokens on, the beginning was read anew in each step: {error}")
        return self._reader if self._session is None else self._session

    def __enter__(self) -> _Beginning:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close()
