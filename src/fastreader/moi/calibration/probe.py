"""Move a passage known to be right through the places, and find the marks of right passages and answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_choice, expect, given
from fastreader.core.progress import track
from fastreader.data.record import SavedRecord
from fastreader.data.types import Example, Passage
from fastreader.moi.quantities.observations import FloatArray, IntArray

if TYPE_CHECKING:
    from fastreader.core.protocol import ScoringReader
    from fastreader.reader.prompts.template import Template

MARKS = ("is_gold", "has_answer")


@checked
@dataclass(frozen=True, eq=False)
class Probe(SavedRecord):
    """The effect of the gold passage's place on the right answer.

    Attributes:
        effects: float64 [Q, N], nats: log-likelihood of the right answer with the gold passage at each place, less
            the question's mean over the places.
        ids: of the questions.
        reader: the scoring reader, as `Reader.describe` returns it.
        template: digest of the prompt's texts.
    """

    effects: FloatArray
    ids: list[str | None] = field(default_factory=list)
    reader: dict[str, str] = field(default_factory=dict)
    template: str = ""

    _shapes: ClassVar = {"effects": "Q N"}

    @property
    def mean(self) -> FloatArray:
        """Mean effect of each place: float64 [N], nats."""
        return np.asarray(self.effects.mean(axis=0), dtype=np.float64)

    @property
    def standard_error(self) -> FloatArray:
        """Standard error of `mean` over at least two questions: float64 [N], nats."""
        expect(len(self.effects) > 1, "Probe.standard_error", "at least 2 questions", len(self.effects))
        return np.asarray(self.effects.std(axis=0, ddof=1) / np.sqrt(len(self.effects)), dtype=np.float64)


@checked
def gold_of(passages: Sequence[Passage], marks: Sequence[str] = MARKS) -> int | None:
    """Return the index of the first passage with the first of `marks` that any passage has, or None."""
    for mark in marks:
        check_choice("marks", mark, MARKS)
    return next((p for mark in marks for p, passage in enumerate(passages) if getattr(passage, mark)), None)


def right_answers(example: Example) -> list[str]:
    """Return the answers to score and match: stripped, without blank ones, each text once."""
    return list(dict.fromkeys(answer.strip() for answer in example.answers if answer.strip()))


def moved(gold: int, passages: int) -> IntArray:
    """Return the N orderings with passage `gold` at each place, the others in the retriever's order: int64 [N, N].

    >>> moved(1, 3).tolist()
    [[1, 0, 2], [0, 1, 2], [0, 2, 1]]
    """
    others = [p for p in range(passages) if p != gold]
    return np.array([[*others[:place], gold, *others[place:]] for place in range(passages)], dtype=np.int64)


@checked
def probe(
    reader: ScoringReader,
    examples: Iterable[Example],
    gold: Sequence[int] | None = None,
    *,
    template: Template | None = None,
    max_batch_tokens: int | None = None,
    progress: bool | None = None,
) -> Probe:
    """Move the gold passage of each question through the places and score the right answers there.

    Several right answers count by the log of the sum of their likelihoods, each text once.

    Args:
        reader: scores the answers.
        examples: with one number of passages, and with `answers`; the gold passage is the first with `is_gold`, else
            with `has_answer`.
        gold: its index for each example, instead of the marks.
        template, max_batch_tokens, progress: same as `score_permutations`.

    Raises:
        InputError: if there are no examples, or one has no answers, no gold passage or another N.
    """
    from fastreader.reader.prompts.template import as_template
    from fastreader.scoring.api import score_permutations

    prompts = as_template(template)
    chosen = list(examples)
    expect(bool(chosen), "examples", "at least one", 0)
    where = [_gold(e, q, gold) for q, e in enumerate(chosen)]
    n = len(chosen[0].passages)
    for q, example in enumerate(chosen):
        count = len(example.passages)
        expect(count == n, f"examples[{q}]", f"{n} passages as in the first", count)
        expect(bool(right_answers(example)), f"examples[{q}]", "right answers to score", example.answers)
    effects = []
    with track("probing", len(chosen), "questions", progress) as advance:
        for example, index in zip(chosen, where, strict=True):
            scored = score_permutations(
                reader,
                example,
                candidates=right_answers(example),
                permutations=moved(index, n),
                template=prompts,
                max_batch_tokens=max_batch_tokens,
            )
            nats = np.logaddexp.reduce(scored.logprobs, axis=1)
            effects.append(nats - nats.mean())
            advance(1)
    return Probe(np.stack(effects), [e.id for e in chosen], reader.describe(), prompts.digest())


def _gold(example: Example, q: int, gold: Sequence[int] | None) -> int:
    if gold is not None:
        n = len(example.passages)
        expect(q < len(gold) and 0 <= gold[q] < n, f"gold: examples[{q}]", f"a passage in [0, {n})", gold[q : q + 1])
        return gold[q]
    return given(gold_of(example.passages), f"examples[{q}]: no passage is marked as gold; mark one, or give gold")
