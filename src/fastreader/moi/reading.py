"""One answer after the passages in a given order, and the prompts that ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fastreader.core.checks import check_whole
from fastreader.core.tree import TreeStats
from fastreader.data.types import Example, Passage
from fastreader.errors import InputError
from fastreader.moi.overflow import fitted
from fastreader.permutations import explicit

if TYPE_CHECKING:
    from fastreader.reader.prompts.template import PromptPieces, Template
    from fastreader.reader.reader import Reader
    from fastreader.reader.session import Scorer


def reading_prompts(
    reader: Scorer,
    question: str,
    passages: Sequence[Passage],
    orders: Iterable[Sequence[int]],
    template: Template | None = None,
) -> list[list[int]]:
    """Token ids for each order, up to where the answer starts: the contexts that `score_permutations` scores after."""
    from fastreader.reader.prompts.template import as_template, encode

    pieces = encode(reader.encoder, as_template(template), question, passages, [])
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
        truncated: tokens cut off each passage, by its place from 0, to fit the context; whole ones are absent.
    """

    text: str
    candidates: dict[str, float] | None
    finish: str
    stats: TreeStats
    truncated: Mapping[int, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "text": self.text,
            "candidates": self.candidates,
            "finish": self.finish,
            "tokens": {"given": self.stats.given, "computed": self.stats.computed},
            "truncated": {str(place): tokens for place, tokens in self.truncated.items()},
        }


def read(
    reader: Reader,
    example: Example,
    *,
    candidates: Sequence[str] | None = None,
    template: Template | None = None,
    max_new_tokens: int = 32,
    stop: Sequence[str] = ("\n",),
    on_overflow: str = "error",
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
        on_overflow: "error", or "truncate": cut the passages to a common length at which the answer fits behind.
        max_tokens: tokens in one pass at most.

    Raises:
        InputError: an empty question or candidate.
        ContextOverflowError: the prompt is longer than the model's context.
    """
    chosen = _chosen(example, candidates)
    pieces, cut = _fitted(reader, example, chosen, template, max_new_tokens, on_overflow)
    prompt = pieces.head + pieces.body(range(len(example.passages))) + pieces.tail()
    if chosen:
        scored = reader.loglikelihood([(prompt, tokens) for tokens in pieces.candidates], max_tokens=max_tokens)
        nats = {text: result.logprob for text, result in zip(chosen, scored, strict=True)}
        return Reading(max(nats, key=lambda text: nats[text]), nats, "candidate", scored.stats, cut)
    written = reader.generate([prompt], max_new_tokens=max_new_tokens, stop=stop, max_tokens=max_tokens)
    return Reading(written[0][0].text.strip(), None, written[0][0].finish, written.stats, cut)


def check_fits(
    reader: Reader,
    example: Example,
    *,
    candidates: Sequence[str] | None,
    template: Template | None,
    max_new_tokens: int,
    on_overflow: str,
) -> None:
    """What `read` of these passages, in whatever order, would refuse, without reading.

    Raises:
        InputError, ContextOverflowError: as `read`.
    """
    _fitted(reader, example, _chosen(example, candidates), template, max_new_tokens, on_overflow)


def _chosen(example: Example, candidates: Sequence[str] | None) -> list[str]:
    if isinstance(candidates, str):
        raise InputError("candidates: expected a list of texts, got one text")
    return list(example.candidates if candidates is None else candidates)


def _fitted(
    reader: Reader,
    example: Example,
    candidates: list[str],
    template: Template | None,
    max_new_tokens: int,
    on_overflow: str,
) -> tuple[PromptPieces, Mapping[int, int]]:
    """The pieces of a prompt that fits the context with its answer, and what was cut off each passage."""
    from fastreader.reader.prompts.template import as_template, encode

    check_whole("max_new_tokens", max_new_tokens)
    pieces = encode(reader.encoder, as_template(template), example.question, example.passages, candidates)
    count = len(example.passages)
    if not count:
        return pieces, {}
    # What is written takes the place of a candidate. A prompt that leaves room for one token is none too long: a text
    # that reaches the end of the context stops there.
    room = [[0] * (max_new_tokens if on_overflow == "truncate" else 1)]
    whole = pieces if candidates else replace(pieces, candidates=room)
    found = fitted(whole, explicit([range(count)], count), reader.max_length, on_overflow, "the prompt that answers")
    return replace(found.pieces, candidates=pieces.candidates), found.truncated
