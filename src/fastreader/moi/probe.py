"""probe: a passage known to be right, moved through the places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fastreader.data.types import Example
from fastreader.errors import InputError
from fastreader.moi.gold import gold_of, right_answers
from fastreader.moi.types import FloatArray, IntArray

if TYPE_CHECKING:
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.reader import Reader


@dataclass(frozen=True, eq=False)
class Probe:
    """What the place of the gold passage does to the answer.

    Attributes:
        effects: float64 [Q, N], nats: log-likelihood of the right answer with the gold passage at each place, less
            the question's mean over the places.
        ids: of the questions.
        reader: what scored them.
        template: digest of the prompt's texts.
    """

    effects: FloatArray
    ids: list[str | None] = field(default_factory=list)
    reader: dict[str, str] = field(default_factory=dict)
    template: str = ""

    @property
    def mean(self) -> FloatArray:
        """Mean effect of each place: float64 [N], nats."""
        value: FloatArray = self.effects.mean(axis=0)
        return value

    @property
    def standard_error(self) -> FloatArray:
        """Of `mean`, over the questions: float64 [N], nats; needs two questions."""
        if len(self.effects) < 2:
            raise InputError("Probe.standard_error: expected at least 2 questions, got 1")
        value: FloatArray = self.effects.std(axis=0, ddof=1) / np.sqrt(len(self.effects))
        return value

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "effects": self.effects.tolist(),
            "ids": list(self.ids),
            "reader": dict(self.reader),
            "template": self.template,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Probe:
        """Rebuild from `to_dict`.

        Raises:
            InputError: an attribute is missing or does not fit.
        """
        try:
            effects = np.array(values["effects"], dtype=np.float64)
            if effects.ndim != 2:
                raise ValueError(f"effects must be [questions, places], got {effects.shape}")
            return cls(effects, list(values["ids"]), dict(values["reader"]), str(values["template"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"Probe.from_dict: {error!r} in values with keys {sorted(values)}") from error


def moved(gold: int, passages: int) -> IntArray:
    """The N orderings with passage `gold` at each place, the others in the retriever's order: int64 [N, N].

    >>> moved(1, 3).tolist()
    [[1, 0, 2], [0, 1, 2], [0, 2, 1]]
    """
    others = [p for p in range(passages) if p != gold]
    return np.array([[*others[:place], gold, *others[place:]] for place in range(passages)], dtype=np.int64)


def probe(
    reader: Reader,
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
        reader: scores.
        examples: of one number of passages, with `answers`; the gold passage is the first with `is_gold`, else with
            `has_answer`.
        gold: its index for each example, in place of the marks.
        template: the prompt's texts.
        max_batch_tokens, progress: as for `score_permutations`.

    Raises:
        InputError: no example; an example without answers, without a gold passage, or of another N.
    """
    from fastreader.reader.prompts.template import as_template
    from fastreader.scoring.api import score_permutations

    prompts = as_template(template)
    chosen = list(examples)
    if not chosen:
        raise InputError("examples: expected at least one, got none")
    where = [_gold(e, q, gold) for q, e in enumerate(chosen)]
    n = len(chosen[0].passages)
    for q, example in enumerate(chosen):
        if len(example.passages) != n:
            raise InputError(f"examples[{q}]: expected {n} passages as in the first, got {len(example.passages)}")
        if not right_answers(example):
            raise InputError(f"examples[{q}]: expected right answers to score, got none")
    from fastreader.core.progress import track

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
        if q >= len(gold) or not 0 <= gold[q] < len(example.passages):
            got = gold[q] if q < len(gold) else "nothing"
            raise InputError(f"gold: examples[{q}]: expected a passage in [0, {len(example.passages)}), got {got}")
        return gold[q]
    found = gold_of(example.passages)
    if found is None:
        raise InputError(f"examples[{q}]: no passage is marked as gold; mark one, or give gold")
    return found
