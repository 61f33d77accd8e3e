"""Measure the answers after passages in given orders: log-likelihood, EM, containment, F1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fastreader.core.checks import expect
from fastreader.core.tree import TreeStats
from fastreader.data.record import Record
from fastreader.data.types import Example
from fastreader.moi.calibration.probe import right_answers
from fastreader.scoring.reading import reading_prompts
from fastreader.statistics.measures import answers

if TYPE_CHECKING:
    from fastreader.core.protocol import ScoringReader
    from fastreader.reader.prompts.template import Template

MEASURES = ("nats", "em", "contained", "f1")


@dataclass(frozen=True)
class Outcome(Record):
    """One reading of a question's passages.

    Attributes:
        nats: log of the summed likelihoods of the right answers, each with its end.
        text: the answer generated greedily; "" with ``write=False``.
        em, contained, f1: of `text` against the right answers, in [0, 1]; 0 with ``write=False``.
    """

    nats: float
    text: str = ""
    em: float = 0.0
    contained: float = 0.0
    f1: float = 0.0


def outcomes(
    reader: ScoringReader,
    example: Example,
    orders: Sequence[Sequence[int]],
    *,
    template: Template | None = None,
    write: bool = True,
    max_new_tokens: int = 32,
    stop: Sequence[str] = ("\n",),
    max_batch_tokens: int | None = None,
) -> tuple[list[Outcome], TreeStats]:
    """Read the passages in every order, and repeated orders once.

    All right answers after all orders are scored in one packed pass, all answers are generated in one call.

    Args:
        reader: reads; a session (`Reader.session`) that holds the orders' prompts (`reading.reading_prompts`) reads
            each once for both.
        example: the question, its passages and its right answers.
        orders: of the passages.
        template: the prompt's texts.
        write: also generate an answer.
        max_new_tokens: maximum number of tokens of an answer.
        stop: texts that end it.
        max_batch_tokens: same as `score_permutations`.

    Returns:
        (one outcome for each order; token counts)

    Raises:
        InputError: if there are no right answers or no orders.
    """
    from fastreader.scoring.api import score_permutations

    right = right_answers(example)
    expect(bool(right), "example", "right answers to score", example.answers)
    distinct = list(dict.fromkeys(tuple(order) for order in orders))
    expect(bool(distinct), "orders", "at least one", distinct)
    scores = score_permutations(
        reader,
        example,
        candidates=right,
        permutations=[list(order) for order in distinct],
        template=template,
        max_batch_tokens=max_batch_tokens,
    )
    nats = np.logaddexp.reduce(scores.logprobs, axis=1)
    stats, texts = scores.stats, [""] * len(distinct)
    if write:
        prompts = reading_prompts(reader, example.question, example.passages, distinct, template)
        written = reader.generate(prompts, max_new_tokens=max_new_tokens, stop=stop, max_batch_tokens=max_batch_tokens)
        texts = [generations[0].text.strip() for generations in written]
        stats = stats + written.stats
    found = {
        order: Outcome(
            float(value),
            text,
            answers.exact_match(text, right),
            answers.contained(text, right),
            answers.f1(text, right),
        )
        for order, value, text in zip(distinct, nats, texts, strict=True)
    }
    return [found[tuple(order)] for order in orders], stats
