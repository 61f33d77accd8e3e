"""Answer from passages in a given order, and fit the prompts to the model's context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fastreader.core.checks import check_choice, check_int, check_list
from fastreader.core.tree import TreeStats
from fastreader.data.types import Example, Passage
from fastreader.errors import ContextOverflowError
from fastreader.permutations import Design, explicit

if TYPE_CHECKING:
    from fastreader.core.protocol import ScoringReader
    from fastreader.reader.prompts.pieces import PromptPieces
    from fastreader.reader.prompts.template import Template
    from fastreader.scoring.prepare import Fitted

POLICIES = ("error", "truncate")  # passages are never dropped: a bias belongs to one N


@dataclass(frozen=True)
class Reading:
    """An answer and its cost.

    Attributes:
        text: the generated text, or the candidate of the largest log-likelihood.
        candidates: log-likelihood of each candidate with its end, nats; None if the answer was generated.
        finish_reason: as in `Generation`; "candidate" if one was chosen.
        stats: token counts.
        truncated: number of tokens cut off each passage to fit the context, by its place from 0; uncut ones are absent.
    """

    text: str
    candidates: dict[str, float] | None
    finish_reason: str
    stats: TreeStats
    truncated: Mapping[int, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "text": self.text,
            "candidates": self.candidates,
            "finish_reason": self.finish_reason,
            "tokens": {"total": self.stats.total_tokens, "computed": self.stats.computed_tokens},
            "truncated": {str(place): tokens for place, tokens in self.truncated.items()},
        }


def read(
    reader: ScoringReader,
    example: Example,
    *,
    candidates: Sequence[str] | None = None,
    template: Template | None = None,
    **options: Any,
) -> Reading:
    """Answer a question from its passages as they stand: greedily, or by the likeliest candidate.

    Args:
        reader: answers.
        example: the question and its passages in reading order; it may have no passages.
        candidates: answers to choose from, instead of the example's; an empty list generates.
        template: the prompt's texts.
        **options: `max_new_tokens`, `stop`, `on_overflow` and `max_batch_tokens` of `read_pieces`.

    Raises:
        InputError: if the question or a candidate is empty.
        ContextOverflowError: if the prompt is longer than the model's context.
    """
    chosen = chosen_candidates(example, candidates)
    pieces = reading_pieces(reader, example, chosen, template)
    return read_pieces(reader, pieces, range(len(example.passages)), chosen, **options)


def read_pieces(
    reader: ScoringReader,
    pieces: PromptPieces,
    order: Sequence[int],
    candidates: Sequence[str],
    *,
    max_new_tokens: int = 32,
    stop: Sequence[str] = ("\n",),
    on_overflow: str = "error",
    max_batch_tokens: int | None = None,
) -> Reading:
    """Answer from encoded passages in `order`, as `read` does.

    Args:
        reader: answers.
        pieces: tokens of the question, its passages and `candidates`.
        order: indices of the passages, in reading order.
        candidates: answers to choose from; an empty list generates the answer.
        max_new_tokens: maximum number of tokens to generate.
        stop: texts that end the answer.
        on_overflow: "error", or "truncate": cut the passages to a common length at which prompt and answer fit.
        max_batch_tokens: same as `score_permutations`.

    Raises:
        InputError, ContextOverflowError: same as `read`.
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
    reader: ScoringReader, example: Example, candidates: Sequence[str], template: Template | None
) -> PromptPieces:
    """Return the tokens of the question, its passages and the candidates."""
    from fastreader.reader.prompts.pieces import encode
    from fastreader.reader.prompts.template import as_template

    return encode(reader.encoder, as_template(template), example.question, example.passages, candidates)


def reading_prompts(
    reader: ScoringReader,
    question: str,
    passages: Sequence[Passage],
    orders: Iterable[Sequence[int]],
    template: Template | None = None,
) -> list[list[int]]:
    """Return the token ids for each order up to the answer: the contexts of `score_permutations`'s candidates."""
    pieces = reading_pieces(reader, Example(question, list(passages)), [], template)
    tail = pieces.tail()
    return [pieces.head + pieces.body(order) + tail for order in orders]


def fit_reading(
    pieces: PromptPieces, order: Sequence[int], limit: int | None, max_new_tokens: int, on_overflow: str
) -> tuple[PromptPieces, Mapping[int, int]]:
    """Return pieces whose prompt in `order` fits the context with its answer, and the tokens cut off at each place.

    Raises:
        InputError: if `max_new_tokens` is not a positive integer.
        ContextOverflowError: if the prompt does not fit and `on_overflow` is "error", or not with one-token passages.
    """
    check_int("max_new_tokens", max_new_tokens)
    check_choice("on_overflow", on_overflow, POLICIES)
    if not order:
        return pieces, {}
    # The answer counts as a candidate. A prompt that leaves room for one token fits: generation stops at the end of
    # the context.
    room = [[0] * (max_new_tokens if on_overflow == "truncate" else 1)]
    whole = pieces if pieces.candidates else replace(pieces, candidates=room)
    design = explicit([list(order)], len(pieces.passages))
    found = _truncated(whole, design, limit, "the prompt that answers")
    if found.truncated and on_overflow == "error":
        raise ContextOverflowError(
            f"the prompt that answers does not fit the model's context of {limit} tokens without cutting up to "
            f"{max(found.truncated.values())} tokens off a passage; give fewer or shorter passages, or "
            "on_overflow='truncate'"
        )
    truncated = {place: found.truncated[index] for place, index in enumerate(order) if index in found.truncated}
    return replace(found.pieces, candidates=pieces.candidates), truncated


def check_rounds(pieces: PromptPieces, length: int, limit: int | None) -> None:
    """Check that no round of prefixes has to be truncated.

    Each round draws other prefixes, so each would be cut to another length, and scores of different texts would be
    compared.

    Raises:
        ContextOverflowError: if the `length` longest passages do not fit the context of `limit` tokens.
    """
    size = [len(pieces.body([p])) for p in range(len(pieces.passages))]
    longest = sorted(range(len(size)), key=lambda p: -size[p])[:length]
    if _truncated(pieces, explicit([longest], len(size)), limit, "stopping: a later round").truncated:
        raise ContextOverflowError(
            f"stopping: prefixes of the {length} longest passages do not fit the model's context of {limit} tokens, "
            "and each round would cut its own to another length; give fewer or shorter passages, or leave stopping out"
        )


def _truncated(pieces: PromptPieces, design: Design, limit: int | None, what: str) -> Fitted:
    """Return pieces whose longest prompt under the design fits the context of `limit` tokens."""
    from fastreader.scoring.prepare import ScoreOptions, fit

    return fit(pieces, ScoreOptions(permutations=design, on_overflow="truncate"), limit, what)


def truncation_note(what: str, truncated: Mapping[int, int]) -> str:
    """Return a sentence on the truncated passages, empty if no passage was cut."""
    if not truncated:
        return ""
    passages = "1 passage was" if len(truncated) == 1 else f"{len(truncated)} passages were"
    return f"{passages} cut by up to {max(truncated.values())} tokens to fit the context when {what}"
