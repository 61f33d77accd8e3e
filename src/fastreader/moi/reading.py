"""One answer after the passages in a given order, and the prompts that ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fastreader.core.checks import check_choice, check_int, check_list
from fastreader.core.tree import TreeStats
from fastreader.data.types import Example, Passage
from fastreader.moi.overflow import POLICIES, fitted
from fastreader.permutations import explicit

if TYPE_CHECKING:
    from fastreader.core.protocol import Scorer
    from fastreader.reader.prompts.pieces import PromptPieces
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.reader import Reader


def reading_prompts(
    reader: Scorer,
    question: str,
    passages: Sequence[Passage],
    orders: Iterable[Sequence[int]],
    template: Template | None = None,
) -> list[list[int]]:
    """Token ids for each order, up to where the answer starts: the contexts that `score_permutations` scores after."""
    from fastreader.reader.prompts.pieces import encode
    from fastreader.reader.prompts.template import as_template

    pieces = encode(reader.encoder, as_template(template), question, passages, [])
    tail = pieces.tail()
    return [pieces.head + pieces.body(order) + tail for order in orders]


@dataclass(frozen=True)
class Reading:
    """An answer and what it took.

    Attributes:
        text: what the reader wrote, or the candidate of the largest log-likelihood.
        candidates: log-likelihood of each candidate with its end, nats; None where the answer was written.
        finish_reason: as in `Generation`; "candidate" where one was chosen.
        stats: tokens.
        truncated: tokens cut off each passage, by its place from 0, to fit the context; whole ones are absent.
    """

    text: str
    candidates: dict[str, float] | None
    finish_reason: str
    stats: TreeStats
    truncated: Mapping[int, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "text": self.text,
            "candidates": self.candidates,
            "finish_reason": self.finish_reason,
            "tokens": {"total": self.stats.total_tokens, "computed": self.stats.computed_tokens},
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
    max_batch_tokens: int | None = None,
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
        max_batch_tokens: tokens in one pass at most.

    Raises:
        InputError: an empty question or candidate.
        ContextOverflowError: the prompt is longer than the model's context.
    """
    chosen = chosen_candidates(example, candidates)
    pieces = reading_pieces(reader, example, chosen, template)
    return read_pieces(
        reader,
        pieces,
        range(len(example.passages)),
        chosen,
        max_new_tokens=max_new_tokens,
        stop=stop,
        on_overflow=on_overflow,
        max_batch_tokens=max_batch_tokens,
    )


def read_pieces(
    reader: Reader,
    pieces: PromptPieces,
    order: Sequence[int],
    candidates: Sequence[str],
    *,
    max_new_tokens: int = 32,
    stop: Sequence[str] = ("\n",),
    on_overflow: str = "error",
    max_batch_tokens: int | None = None,
) -> Reading:
    """Answer from encoded passages in `order`; see `read`.

    Args:
        reader: answers.
        pieces: tokens of the question, its passages and `candidates`.
        order: indices of the passages, in reading order.
        candidates: answers to choose from; none generates the answer.
        max_new_tokens, stop, on_overflow, max_batch_tokens: as for `read`.

    Raises:
        InputError, ContextOverflowError: as `read`.
    """
    pieces, truncated = fit_reading(pieces, order, reader.max_length, max_new_tokens, on_overflow)
    prompt = pieces.head + pieces.body(order) + pieces.tail()
    if candidates:
        scored = reader.loglikelihood(
            [(prompt, tokens) for tokens in pieces.candidates], max_batch_tokens=max_batch_tokens
        )
        nats = {text: result.logprob for text, result in zip(candidates, scored, strict=True)}
        return Reading(max(nats, key=lambda text: nats[text]), nats, "candidate", scored.stats, truncated)
    written = reader.generate([prompt], max_new_tokens=max_new_tokens, stop=stop, max_batch_tokens=max_batch_tokens)
    return Reading(written[0][0].text.strip(), None, written[0][0].finish_reason, written.stats, truncated)


def chosen_candidates(example: Example, candidates: Sequence[str] | None) -> list[str]:
    """Return the answers to choose from: `candidates`, or the example's own.

    Raises:
        InputError: if `candidates` is not a list.
    """
    if candidates is None:
        return list(example.candidates)
    check_list("candidates", candidates, of="texts")
    return list(candidates)


def reading_pieces(
    reader: Reader, example: Example, candidates: Sequence[str], template: Template | None
) -> PromptPieces:
    """Return the tokens of the question, its passages and the candidates."""
    from fastreader.reader.prompts.pieces import encode
    from fastreader.reader.prompts.template import as_template

    return encode(reader.encoder, as_template(template), example.question, example.passages, candidates)


def fit_reading(
    pieces: PromptPieces, order: Sequence[int], limit: int | None, max_new_tokens: int, on_overflow: str
) -> tuple[PromptPieces, Mapping[int, int]]:
    """Return pieces whose prompt in `order` fits the context with its answer, and the tokens cut off at each place.

    Raises:
        InputError: if `max_new_tokens` is not a positive integer.
        ContextOverflowError: if the prompt does not fit and `on_overflow` is "error", or even at its shortest.
    """
    check_int("max_new_tokens", max_new_tokens)
    check_choice("on_overflow", on_overflow, POLICIES)
    if not order:
        return pieces, {}
    # The answer takes the place of a candidate. A prompt that leaves room for one token is not too long: a text that
    # reaches the end of the context stops there.
    room = [[0] * (max_new_tokens if on_overflow == "truncate" else 1)]
    whole = pieces if pieces.candidates else replace(pieces, candidates=room)
    design = explicit([list(order)], len(pieces.passages))
    found = fitted(whole, design, limit, on_overflow, "the prompt that answers")
    truncated = {place: found.truncated[index] for place, index in enumerate(order) if index in found.truncated}
    return replace(found.pieces, candidates=pieces.candidates), truncated
