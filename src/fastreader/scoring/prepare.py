"""What `score_permutations` is asked, checked, and as sequences of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastreader.core.tree import TreeStats
from fastreader.data import Example, Passage
from fastreader.errors import InputError, OutOfBudgetError
from fastreader.permutations import Spec, variable_length
from fastreader.reader.prompts.template import PromptPieces, Template, encode
from fastreader.reader.session import Scorer
from fastreader.scoring.overflow import POLICIES, Fitted, fit

PassageLike = Passage | str
Pairs = list[tuple[list[int], list[int]]]


@dataclass(frozen=True)
class Options:
    """What to score and how; the keyword arguments of `score_permutations`."""

    permutations: Spec
    seed: int
    prune: int | float | None
    template: Template
    question_only: bool
    score_passages: bool
    prior: bool
    token_logliks: bool
    on_overflow: str
    alone: bool = False

    def __post_init__(self) -> None:
        if self.on_overflow not in POLICIES:
            raise InputError(f"on_overflow: expected one of {', '.join(POLICIES)}, got {self.on_overflow!r}")


@dataclass(frozen=True)
class Job:
    """One example, ready to run.

    `sequences` holds, for each ordering, the question, each candidate and (when asked for) the passages;
    after all orderings come the candidates without passages, then the question after each passage alone.
    """

    example: Example
    fitted: Fitted
    sequences: Pairs
    stats: TreeStats


def as_example(
    question: str | Example, passages: Sequence[PassageLike] | None, candidates: Sequence[str] | None
) -> Example:
    """What `score_permutations` is given for one question, as an example.

    Raises:
        InputError: passages twice, or one in place of a list.
    """
    if isinstance(question, Example):
        if passages is not None:
            raise InputError("passages: expected None with an Example, which brings its own")
        return with_candidates(question, candidates)
    if isinstance(passages, (str, bytes, Passage)):
        raise InputError(f"passages: expected a list of passages, got one {type(passages).__name__}")
    return with_candidates(Example(question, list(passages) if passages is not None else []), candidates)  # type: ignore[arg-type]


def with_candidates(example: Example, candidates: Sequence[str] | None) -> Example:
    """The example with `candidates` in place of its own, and texts among its passages made passages."""
    if isinstance(candidates, (str, bytes)):
        raise InputError("candidates: expected a list of texts, got one text")
    return replace(
        example,
        passages=[_as_passage(p) for p in example.passages],
        candidates=example.candidates if candidates is None else list(candidates),
    )


def _as_passage(passage: Any) -> Any:
    return Passage(passage) if isinstance(passage, str) else passage  # anything else is refused by check_example


def check_example(example: Example, question_only: bool, where: str) -> None:
    """Refuse a question, passages or candidates that cannot be scored.

    Raises:
        InputError: `where` names the example.
    """
    if not isinstance(example.question, str) or not example.question.strip():
        raise InputError(f"{where}: question must be a text with more than white space, got {example.question!r}")
    if not example.passages:
        raise InputError(f"{where}: expected at least one passage, got none")
    for p, passage in enumerate(example.passages):
        if not isinstance(passage, Passage):
            raise InputError(f"{where}: passages[{p}] must be a Passage or a text, got {type(passage).__name__}")
        if not isinstance(passage.text, str) or not isinstance(passage.title, str):
            raise InputError(f"{where}: text and title of passages[{p}] must be texts, got {passage!r}")
        if not passage.text.strip():
            raise InputError(f"{where}: passages[{p}] is empty")
    if not example.candidates and not question_only:
        raise InputError(
            f"{where}: expected at least one candidate, got none; question_only=True scores the question alone"
        )
    for k, candidate in enumerate(example.candidates):
        if not isinstance(candidate, str) or not candidate.strip():
            raise InputError(f"{where}: candidates[{k}] must be a text with more than white space, got {candidate!r}")


def places_to_read(example: Example, prune: int | float | None, where: str) -> int:
    """How many places of each ordering to read, at most all.

    Raises:
        InputError: `prune` is neither a number of places nor a share, or a passage has no score to share by.
    """
    if prune is None:
        return len(example.passages)
    if isinstance(prune, (int, np.integer)) and not isinstance(prune, bool) and prune >= 1:
        return min(int(prune), len(example.passages))
    if isinstance(prune, float) and 0 < prune < 1:
        scores = [p.score for p in example.passages]
        known = [s for s in scores if s is not None]
        if len(known) < len(scores):
            raise InputError(f"{where}: prune={prune} needs the retriever's score of every passage")
        return variable_length(known, float(prune))
    raise InputError(f"prune: expected a number of places, or a share in (0, 1), got {prune!r}")


def prepare(reader: Scorer, example: Example, options: Options, max_tokens: int | None, where: str) -> Job:
    """The sequences to score for an example, and what they cost.

    Raises:
        InputError: as `score_permutations`; `where` names the example.
        ContextOverflowError: a prompt is longer than the model's context.
        OutOfBudgetError: one prompt alone does not fit in memory.
    """
    check_example(example, options.question_only, where)
    candidates = [] if options.question_only else example.candidates
    length = places_to_read(example, options.prune, where)
    try:
        pieces = encode(reader.encoder, options.template, example.question, example.passages, candidates)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    limit = reader.max_length
    fitted = fit(pieces, options.permutations, options.seed, limit, options.on_overflow, where, length, options.alone)
    sequences = _sequences(fitted, options)
    try:
        trees = reader.plan(sequences, max_tokens)
    except (InputError, OutOfBudgetError) as error:
        raise type(error)(f"{where}: {error}") from error
    return Job(example, fitted, sequences, sum((t.stats for t in trees[1:]), trees[0].stats))


def _sequences(fitted: Fitted, options: Options) -> Pairs:
    pieces = fitted.pieces
    tail = pieces.tail()
    sequences: Pairs = []
    for order in fitted.design.permutations.tolist():
        body = pieces.body(order)
        before = pieces.head + body
        sequences.append(_asked(pieces, body))
        sequences += [(before + tail, candidate) for candidate in pieces.candidates]
        if options.score_passages:
            sequences.append((pieces.head, body))
    if options.prior:
        sequences += [(pieces.head + tail, candidate) for candidate in pieces.candidates]
    if options.alone:
        sequences += [_asked(pieces, pieces.body([p])) for p in range(len(pieces.passages) - len(fitted.dropped))]
    return sequences


def _asked(pieces: PromptPieces, body: list[int]) -> tuple[list[int], list[int]]:
    """The question to score after these passages."""
    if pieces.question_at is None:
        return pieces.head + body + pieces.question_lead, pieces.question
    return pieces.head[: pieces.question_at], pieces.head[pieces.question_at :]
