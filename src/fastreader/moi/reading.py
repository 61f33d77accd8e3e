"""One answer after the passages in a given order, and the prompts that ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastreader.data.types import Example, Passage
from fastreader.errors import InputError
from fastreader.tree import TreeStats

if TYPE_CHECKING:
    from fastreader.prompts import Template
    from fastreader.reader import Reader


def reading_prompts(
    reader: Reader,
    question: str,
    passages: Sequence[Passage],
    orders: Iterable[Sequence[int]],
    template: Template | None = None,
) -> list[list[int]]:
    """Token ids for each order, up to where the answer starts: the contexts that `score_permutations` scores after."""
    from fastreader.prompts import Template, encode

    pieces = encode(reader.encoder, template or Template(), question, passages, [])
    tail = pieces.tail()
    return [pieces.head + pieces.body(order) + tail for order in orders]


@dataclass(frozen=True)
class Reading:
    """An answer and what it took.

    Attributes:
        text: what the reader wrote, or the candidate of the largest log-likelihood.
        candidates: log-likelihood of each candidate with its end, nats; None where the answer was written.
        finish: as in `Generation`; "candidate" where one was chosen.
        stats: tokens.
    """

    text: str
    candidates: dict[str, float] | None
    finish: str
    stats: TreeStats

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "text": self.text,
            "candidates": self.candidates,
            "finish": self.finish,
            "tokens": {"given": self.stats.given, "computed": self.stats.computed},
        }


def read(
    reader: Reader,
    example: Example,
    *,
    candidates: Sequence[str] | None = None,
    template: Template | None = None,
    max_new_tokens: int = 32,
    stop: Sequence[str] = ("\n",),
    max_tokens: int | None = None,
) -> Reading:
    """Answer a question from its passages as they stand: greedily, or by the likeliest candidate.

    Args:
        reader: answers.
        example: the question and its passages in reading order; it may have none.
        candidates: answers to choose from, in place of the example's; an empty list writes.
        template: the prompt's texts.
        max_new_tokens: tokens written at most.
        stop: texts that end what is written.
        max_tokens: tokens in one pass at most.

    Raises:
        InputError: an empty question or candidate.
        ContextOverflowError: the prompt is longer than the model's context.
    """
    chosen = list(example.candidates if candidates is None else candidates)
    if isinstance(candidates, str):
        raise InputError("candidates: expected a list of texts, got one text")
    from fastreader.prompts import Template, encode

    pieces = encode(reader.encoder, template or Template(), example.question, example.passages, chosen)
    prompt = pieces.head + pieces.body(range(len(example.passages))) + pieces.tail()
    if chosen:
        scored = reader.loglikelihood([(prompt, tokens) for tokens in pieces.candidates], max_tokens=max_tokens)
        nats = {text: result.logprob for text, result in zip(chosen, scored, strict=True)}
        return Reading(max(nats, key=lambda text: nats[text]), nats, "candidate", scored.stats)
    written = reader.generate([prompt], max_new_tokens=max_new_tokens, stop=stop, max_tokens=max_tokens)
    return Reading(written[0][0].text.strip(), None, written[0][0].finish, written.stats)
