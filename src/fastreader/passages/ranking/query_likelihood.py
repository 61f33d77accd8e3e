"""How much a passage raises the likelihood of the question, for the passages of many questions in packed passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fastreader.core.checks import expect, located
from fastreader.core.protocol import ScoringReader
from fastreader.core.tree import PrefixTree, TreeStats
from fastreader.data.types import Passage
from fastreader.errors import ContextOverflowError
from fastreader.reader.prompts.pieces import encode
from fastreader.reader.prompts.template import Template

Pair = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Gains:
    """What the passages of one question gain it.

    Attributes:
        values: for each passage ``(log P(question | passage) - log P(question)) / tokens of the question``, nats.
        truncated: tokens cut off the end of each passage, so that it fits the model's context.
        stats: tokens.
    """

    values: list[float]
    truncated: list[int]
    stats: TreeStats


@dataclass(frozen=True)
class _RankingJob:
    pairs: list[Pair]  # the question alone, then after each passage
    truncated: list[int]

    @property
    def size(self) -> int:
        """At most this many tokens are computed."""
        return sum(len(context) + len(question) for context, question in self.pairs)


def question_gains(
    reader: ScoringReader,
    questions: Sequence[tuple[str, Sequence[Passage], str]],
    template: Template,
    *,
    on_overflow: str,
    max_batch_tokens: int | None,
    advance: Callable[[int], None],
) -> Iterator[Gains]:
    """Yield the gains of each question's passages; as many questions share a pass as the budget allows.

    Args:
        reader: scores them.
        questions: (text, passages with text, name for messages) of each question.
        template: the prompt's texts; passages come before the question.
        on_overflow: "truncate" or "error".
        max_batch_tokens: at most this many tokens are computed in one pass.
        advance: called with the number of questions done.

    Raises:
        InputError: if the template puts the question first, or a text cannot be encoded.
        ContextOverflowError: if a question is longer than the model's context, or (with "error") with a passage.
    """
    first = template.question_first
    expect(not first, "template", "passages before the question, whose likelihood after each is compared", template)
    budget = max_batch_tokens or reader.budget()
    waiting: list[_RankingJob] = []
    for text, passages, name in questions:
        job = _job(reader, text, passages, template, name, on_overflow)
        if waiting and sum(other.size for other in waiting) + job.size > budget:
            yield from _run(reader, waiting, max_batch_tokens, advance)
            waiting = []
        waiting.append(job)
    if waiting:
        yield from _run(reader, waiting, max_batch_tokens, advance)


def _job(
    reader: ScoringReader, question: str, passages: Sequence[Passage], template: Template, name: str, on_overflow: str
) -> _RankingJob:
    with located(name):
        pieces = encode(reader.encoder, template, question, passages, [])
    before, asked = pieces.head, pieces.question
    alone = before + pieces.question_lead
    around = len(alone) + len(pieces.separator) + len(asked) - 1
    room = None if reader.max_length is None else reader.max_length - around
    if room is not None and room < 1:
        raise ContextOverflowError(
            f"{name}: the question leaves no room for a passage in the {reader.max_length} tokens of {reader.name}"
        )
    pairs, truncated = [(alone, asked)], []
    for index in range(len(passages)):
        tokens = pieces.passages[index][0]
        beyond = 0 if room is None else max(0, len(tokens) - room)
        if beyond and on_overflow == "error":
            raise ContextOverflowError(
                f"{name}: passages[{index}] is {beyond} tokens too long for the {reader.max_length} of {reader.name}"
            )
        kept = tokens[: len(tokens) - beyond]
        pairs.append((before + kept + pieces.separator + pieces.question_lead, asked))
        truncated.append(beyond)
    return _RankingJob(pairs, truncated)


def _run(
    reader: ScoringReader, jobs: Sequence[_RankingJob], max_batch_tokens: int | None, advance: Callable[[int], None]
) -> Iterator[Gains]:
    pairs = [pair for job in jobs for pair in job.pairs]
    trees = reader.plan(pairs, max_batch_tokens)
    scores = reader.score(pairs, max_batch_tokens=max_batch_tokens, trees=trees)
    start = 0
    for job in jobs:
        alone, *after = scores.logprob[start : start + len(job.pairs)].tolist()
        tokens = len(job.pairs[0][1])
        start += len(job.pairs)
        # Tokens that several questions share are counted once, for the whole pass.
        stats = scores.stats if len(jobs) == 1 else _total(reader.plan(job.pairs, max_batch_tokens))
        advance(1)
        yield Gains([(value - alone) / tokens for value in after], job.truncated, stats)


def _total(trees: Sequence[PrefixTree]) -> TreeStats:
    first, *others = [tree.stats for tree in trees]
    return sum(others, first)
