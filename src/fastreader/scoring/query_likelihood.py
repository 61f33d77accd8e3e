"""log P(question | passage): the likelihood of a question after each of its passages alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastreader.core.checks import located
from fastreader.core.protocol import ScoringReader
from fastreader.core.tree import TreeStats
from fastreader.data.types import Passage
from fastreader.errors import ContextOverflowError
from fastreader.reader.prompts.pieces import PromptPieces, encode
from fastreader.reader.prompts.template import Template
from fastreader.scoring.known_passages import cost_after, score_after

FloatArray = npt.NDArray[np.float64]
Pair = tuple[list[int], list[int]]


@dataclass(frozen=True, eq=False)
class QueryLikelihoods:
    """The likelihood of one question after each of its N passages alone, in nats.

    Attributes:
        logprobs: float64 [N], log P(question | passage).
        token_logprobs: N arrays, one value a token of the question; empty if the reader's scores lack them.
        num_tokens: number of tokens of the question.
        without: log P(question) without a passage; None unless requested.
        passages_logprobs: float64 [N], log P(passage | header); None unless requested.
        truncated: tokens cut off the end of each passage, so that it fits the model's context.
        stats: tokens.
    """

    logprobs: FloatArray
    token_logprobs: list[FloatArray]
    num_tokens: int
    without: float | None
    passages_logprobs: FloatArray | None
    truncated: list[int]
    stats: TreeStats


@dataclass(frozen=True)
class _QuestionJob:
    pairs: list[Pair]  # the question after each passage, each passage, the question alone
    ends: list[tuple[int, ...]]  # of each pair, see `PromptPieces.ends`
    truncated: list[int]

    @property
    def size(self) -> int:
        """At most this many tokens are computed."""
        return sum(len(context) + len(question) for context, question in self.pairs)


def question_after(pieces: PromptPieces, body: list[int]) -> Pair:
    """Return the pair that scores the question after the passages in `body`, or before them by the template."""
    if pieces.question_at is None:
        return pieces.head + body + pieces.question_lead, pieces.question
    return pieces.head[: pieces.question_at], pieces.head[pieces.question_at :]


def query_likelihoods(
    reader: ScoringReader,
    questions: Sequence[tuple[str, Sequence[Passage], str]],
    template: Template,
    *,
    without: bool = False,
    score_passages: bool = False,
    on_overflow: str = "error",
    max_batch_tokens: int | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> Iterator[QueryLikelihoods]:
    """Yield the likelihoods of each question, with as many questions in a pass as the budget allows.

    Args:
        reader: scores them.
        questions: (text, passages with text, name for messages) of each question.
        template: the prompt's texts.
        without: also score the question without a passage.
        score_passages: also score each passage.
        on_overflow: "error", or "truncate" to cut a passage that is too long.
        max_batch_tokens: at most this many tokens are computed in one pass; None decides from free memory.
        advance: called with the number of questions done.

    Raises:
        InputError: if a text cannot be encoded.
        ContextOverflowError: if a question is longer than the model's context, or (with "error") with a passage.
    """
    budget = max_batch_tokens or reader.budget()
    waiting: list[_QuestionJob] = []

    def count_alone(job: _QuestionJob) -> TreeStats:
        return cost_after(reader, job.pairs, job.ends, reader.plan(job.pairs, max_batch_tokens))

    def run() -> Iterator[QueryLikelihoods]:
        pairs = [pair for job in waiting for pair in job.pairs]
        ends = [end for job in waiting for end in job.ends]
        trees = reader.plan(pairs, max_batch_tokens)
        # Tokens that several questions share are counted once, for the whole pass. What the cache has of each question
        # is counted before the pass, which adds to it.
        alone = [] if len(waiting) == 1 else [count_alone(job) for job in waiting]
        scores = score_after(reader, pairs, ends, max_batch_tokens=max_batch_tokens, trees=trees)
        start = 0
        for job, stats in zip(waiting, alone or [scores.stats], strict=True):
            end, count = start + len(job.pairs), len(job.truncated)
            values = scores.logprob[start:end]
            advance(1)
            yield QueryLikelihoods(
                logprobs=values[:count],
                token_logprobs=scores.token_logprobs[start : start + count],
                num_tokens=int(scores.num_tokens[start]) if count else 0,
                passages_logprobs=values[count : 2 * count] if score_passages else None,
                without=float(values[-1]) if without else None,
                truncated=job.truncated,
                stats=stats,
            )
            start = end

    for text, passages, name in questions:
        with located(name):
            pieces = encode(reader.encoder, template, text, passages, [])
        bodies, truncated = _bodies(reader, pieces, name, on_overflow)
        pairs = [question_after(pieces, body) for body in bodies]
        pairs += [(pieces.head, body) for body in bodies] if score_passages else []
        pairs += [question_after(pieces, [])] if without else []
        ends = [pieces.ends(len(body)) for body in bodies] + [pieces.ends(0)] * (len(pairs) - len(bodies))
        job = _QuestionJob(pairs, ends, truncated)
        if waiting and sum(other.size for other in waiting) + job.size > budget:
            yield from run()
            waiting = []
        waiting.append(job)
    if waiting:
        yield from run()


def _bodies(
    reader: ScoringReader, pieces: PromptPieces, name: str, on_overflow: str
) -> tuple[list[list[int]], list[int]]:
    """Return the tokens of each passage alone, and the number of tokens cut off it."""
    limit, bodies, truncated = reader.max_length, [], []
    around = len(pieces.head) + pieces.body_length([]) + len(pieces.separator) + len(pieces.question_lead)
    room = None if limit is None else limit - around - max(len(pieces.question) - 1, 0)
    if room is not None and room < 1:
        raise ContextOverflowError(
            f"{name}: the question leaves no room for a passage in the {limit} tokens of {reader.name}"
        )
    for index, (tokens, *_) in enumerate(pieces.passages):
        beyond = 0 if room is None else max(0, len(tokens) - room)
        if beyond and on_overflow == "error":
            raise ContextOverflowError(
                f"{name}: passages[{index}] is {beyond} tokens too long for the {limit} of {reader.name}"
            )
        bodies.append(pieces.opening + tokens[: len(tokens) - beyond] + pieces.separator)
        truncated.append(beyond)
    return bodies, truncated
