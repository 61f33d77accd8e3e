"""score_permutations: every ordering of the passages, every candidate, one packed pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np

from fastreader.data import Example, Passage
from fastreader.errors import FastreaderError, InputError, OutOfBudgetError
from fastreader.fit import POLICIES, Fitted, fit
from fastreader.likelihood import SequenceScores
from fastreader.permutations import Spec, variable_length
from fastreader.progress import track
from fastreader.prompts import PromptPieces, Template, encode
from fastreader.reader import Reader
from fastreader.scores import PermutationScores, TokenLogliks
from fastreader.tree import TreeStats

PassageLike = Passage | str
OnError = Callable[[int, Example, FastreaderError], None]
_Pairs = list[tuple[list[int], list[int]]]


@dataclass(frozen=True)
class _Options:
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


@dataclass(frozen=True)
class _Job:
    """One example, ready to run.

    `sequences` holds, for each ordering, the question, each candidate and (when asked for) the passages;
    after all orderings come the candidates without passages, then the question after each passage alone.
    """

    example: Example
    fitted: Fitted
    sequences: _Pairs
    stats: TreeStats


@overload
def score_permutations(
    reader: Reader | str | os.PathLike[str],
    question: str | Example,
    passages: Sequence[PassageLike] | None = None,
    candidates: Sequence[str] | None = None,
    permutations: Spec = "cyclic",
    *,
    seed: int = 0,
    prune: int | float | None = None,
    template: Template | None = None,
    question_only: bool = False,
    score_passages: bool = False,
    prior: bool = False,
    alone: bool = False,
    token_logliks: bool = False,
    on_overflow: str = "error",
    max_tokens: int | None = None,
    progress: bool | None = None,
    on_error: OnError | None = None,
) -> PermutationScores: ...


@overload
def score_permutations(
    reader: Reader | str | os.PathLike[str],
    question: Iterable[Example],
    passages: None = None,
    candidates: Sequence[str] | None = None,
    permutations: Spec = "cyclic",
    *,
    seed: int = 0,
    prune: int | float | None = None,
    template: Template | None = None,
    question_only: bool = False,
    score_passages: bool = False,
    prior: bool = False,
    alone: bool = False,
    token_logliks: bool = False,
    on_overflow: str = "error",
    max_tokens: int | None = None,
    progress: bool | None = None,
    on_error: OnError | None = None,
) -> Iterator[PermutationScores]: ...


def score_permutations(
    reader: Reader | str | os.PathLike[str],
    question: str | Example | Iterable[Example],
    passages: Sequence[PassageLike] | None = None,
    candidates: Sequence[str] | None = None,
    permutations: Spec = "cyclic",
    *,
    seed: int = 0,
    prune: int | float | None = None,
    template: Template | None = None,
    question_only: bool = False,
    score_passages: bool = False,
    prior: bool = False,
    alone: bool = False,
    token_logliks: bool = False,
    on_overflow: str = "error",
    max_tokens: int | None = None,
    progress: bool | None = None,
    on_error: OnError | None = None,
) -> PermutationScores | Iterator[PermutationScores]:
    """Score candidates (and the question) under many orderings of the passages, sharing every prefix.

    Args:
        reader: a `Reader`, or anything `Reader.load` takes.
        question: a question; or an `Example`, which brings its passages and candidates; or many examples,
            which are packed together into passes and yielded in order, with a progress bar on a terminal.
        passages: the passages in the retriever's order, `Passage` objects or texts.
        candidates: K answers to score. For examples: in place of each one's own.
        permutations: a design by name ("cyclic", "random", "random:12", "latin", "prefix_sharing", ...), a
            `permutations.Design`, a function of the number of passages, or an int array [M, L].
        seed: for designs that draw.
        prune: read only the first places of each ordering: so many as an int says; or, as a float below 1,
            the shortest beginning of the retriever's order that holds this share of its softmaxed scores
            (`permutations.variable_length`).
        template: the prompt's texts; the default `Template()`.
        question_only: score the question without any candidate.
        score_passages: also log P(passages | header); costs the LM head at every position.
        prior: also score the candidates without passages.
        alone: also score the question after each passage alone (query likelihood). In designs that put every
            passage first once, as cyclic ones, this computes only the question's tokens again for each passage.
        token_logliks: keep every token's value.
        on_overflow: "error"; "drop_passages" leaves out the last passages, "truncate" cuts all to a common
            length, until the longest prompt fits the model's context. The result tells.
        max_tokens: tokens computed in one pass at most; from free memory by default.
        progress: show a bar; None: on a terminal only.
        on_error: for many examples, called as (index, example, error) for an example that cannot be scored,
            which is then left out; by default the error is raised.

    Returns:
        `PermutationScores`; for many examples an iterator of them.

    Raises:
        InputError: no passages, no candidates, an empty text, or orderings that are not orderings.
        ContextOverflowError: a prompt is longer than the model's context.
        OutOfBudgetError: one prompt alone does not fit in memory.
    """
    opened = reader if isinstance(reader, Reader) else Reader.load(reader)
    options = _Options(
        permutations,
        seed,
        prune,
        template or Template(),
        question_only,
        score_passages,
        prior,
        token_logliks,
        on_overflow,
        alone,
    )
    if on_overflow not in POLICIES:
        raise InputError(f"on_overflow: expected one of {', '.join(POLICIES)}, got {on_overflow!r}")
    if isinstance(question, (str, Example)):
        job = _prepare(opened, _as_example(question, passages, candidates), options, max_tokens, "the question")
        return _results(opened, [job], options, opened.score(job.sequences, max_tokens=max_tokens))[0]
    if passages is not None:
        raise InputError("passages: expected None with many examples, which bring their own")
    return _score_many(opened, question, candidates, options, max_tokens, progress, on_error)


def permutation_cost(
    reader: Reader | str | os.PathLike[str],
    question: str | Example,
    passages: Sequence[PassageLike] | None = None,
    candidates: Sequence[str] | None = None,
    permutations: Spec = "cyclic",
    *,
    seed: int = 0,
    prune: int | float | None = None,
    template: Template | None = None,
    question_only: bool = False,
    score_passages: bool = False,
    prior: bool = False,
    alone: bool = False,
    on_overflow: str = "error",
    max_tokens: int | None = None,
) -> TreeStats:
    """What `score_permutations` with these arguments would read and compute, in tokens, without running it.

    Args and errors as `score_permutations`.
    """
    opened = reader if isinstance(reader, Reader) else Reader.load(reader)
    options = _Options(
        permutations,
        seed,
        prune,
        template or Template(),
        question_only,
        score_passages,
        prior,
        False,
        on_overflow,
        alone,
    )
    return _prepare(opened, _as_example(question, passages, candidates), options, max_tokens, "the question").stats


def _as_example(
    question: str | Example, passages: Sequence[PassageLike] | None, candidates: Sequence[str] | None
) -> Example:
    if isinstance(question, Example):
        if passages is not None:
            raise InputError("passages: expected None with an Example, which brings its own")
        return _with_candidates(question, candidates)
    if isinstance(passages, (str, bytes, Passage)):
        raise InputError(f"passages: expected a list of passages, got one {type(passages).__name__}")
    return _with_candidates(Example(question, list(passages) if passages is not None else []), candidates)  # type: ignore[arg-type]


def _with_candidates(example: Example, candidates: Sequence[str] | None) -> Example:
    """The example with `candidates` in place of its own, and texts among its passages made passages."""
    if isinstance(candidates, (str, bytes)):
        raise InputError("candidates: expected a list of texts, got one text")
    return replace(
        example,
        passages=[_as_passage(p) for p in example.passages],
        candidates=example.candidates if candidates is None else list(candidates),
    )


def _as_passage(passage: Any) -> Any:
    return Passage(passage) if isinstance(passage, str) else passage  # anything else is refused by _check


def _check(example: Example, options: _Options, where: str) -> None:
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
    if not example.candidates and not options.question_only:
        raise InputError(
            f"{where}: expected at least one candidate, got none; question_only=True scores the question alone"
        )
    for k, candidate in enumerate(example.candidates):
        if not isinstance(candidate, str) or not candidate.strip():
            raise InputError(f"{where}: candidates[{k}] must be a text with more than white space, got {candidate!r}")


def _length(example: Example, prune: int | float | None, where: str) -> int | None:
    """How many places of each ordering to read; None for all."""
    if prune is None:
        return None
    if isinstance(prune, int) and not isinstance(prune, bool) and prune >= 1:
        return prune
    if isinstance(prune, float) and 0 < prune < 1:
        scores = [p.score for p in example.passages]
        known = [s for s in scores if s is not None]
        if len(known) < len(scores):
            raise InputError(f"{where}: prune={prune} needs the retriever's score of every passage")
        return variable_length(known, prune)
    raise InputError(f"prune: expected a number of places, or a share in (0, 1), got {prune!r}")


def _prepare(reader: Reader, example: Example, options: _Options, max_tokens: int | None, where: str) -> _Job:
    _check(example, options, where)
    candidates = [] if options.question_only else example.candidates
    length = _length(example, options.prune, where)
    pieces = encode(reader.encoder, options.template, example.question, example.passages, candidates)
    limit = reader.max_length
    fitted = fit(pieces, options.permutations, options.seed, limit, options.on_overflow, where, length)
    sequences = _sequences(fitted, options)
    try:
        trees = reader.plan(sequences, max_tokens)
    except (InputError, OutOfBudgetError) as error:
        raise type(error)(f"{where}: {error}") from error
    return _Job(example, fitted, sequences, sum((t.stats for t in trees[1:]), trees[0].stats))


def _sequences(fitted: Fitted, options: _Options) -> _Pairs:
    pieces = fitted.pieces
    tail = pieces.tail()
    sequences: _Pairs = []
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


def _results(reader: Reader, jobs: list[_Job], options: _Options, scores: SequenceScores) -> list[PermutationScores]:
    results, start = [], 0
    for job in jobs:
        stats = scores.stats if len(jobs) == 1 else job.stats
        results.append(_result(reader, job, options, scores, start, stats))
        start += len(job.sequences)
    return results


def _result(
    reader: Reader, job: _Job, options: _Options, scores: SequenceScores, start: int, stats: TreeStats
) -> PermutationScores:
    design, pieces = job.fitted.design, job.fitted.pieces
    rows, count = len(design.permutations), len(pieces.candidates)
    width = 1 + count + int(options.score_passages)
    index = start + np.arange(rows * width).reshape(rows, width)
    questions, answers = index[:, 0], index[:, 1 : 1 + count]
    priors = start + rows * width + np.arange(count if options.prior else 0)
    alone = np.arange(start + rows * width + len(priors), start + len(job.sequences))
    tokens = None
    if options.token_logliks:
        values = scores.token_logprobs
        tokens = TokenLogliks(
            question=[values[i].tolist() for i in questions],
            candidates=[[values[i].tolist() for i in row] for row in answers],
            passages=[values[i].tolist() for i in index[:, -1]] if options.score_passages else None,
        )
    return PermutationScores(
        question=job.example.question,
        candidates=[] if options.question_only else list(job.example.candidates),
        permutations=design.permutations,
        loglik=scores.logprob[answers],
        question_loglik=scores.logprob[questions],
        candidate_tokens=np.array([len(c) for c in pieces.candidates], dtype=np.int64),
        question_tokens=int(scores.tokens[questions[0]]),
        passages_tokens=np.array([len(pieces.body(o)) for o in design.permutations.tolist()], dtype=np.int64),
        greedy=scores.greedy[answers],
        stats=stats,
        seconds=scores.seconds,
        reader=reader.describe(),
        design=design.name,
        passages_loglik=scores.logprob[index[:, -1]] if options.score_passages else None,
        prior_loglik=scores.logprob[priors] if options.prior else None,
        token_logliks=tokens,
        dropped_passages=job.fitted.dropped,
        truncated_tokens=job.fitted.truncated,
        id=job.example.id,
        alone_loglik=scores.logprob[alone] if options.alone else None,
        template=options.template.digest(),
    )


def _score_many(
    reader: Reader,
    examples: Iterable[Example],
    candidates: Sequence[str] | None,
    options: _Options,
    max_tokens: int | None,
    progress: bool | None,
    on_error: OnError | None,
) -> Iterator[PermutationScores]:
    total = len(examples) if isinstance(examples, Sequence) else None
    with track("scoring", total, "questions", progress) as advance:
        pending: list[_Job] = []
        waiting = 0
        budget = max_tokens or reader.budget()
        source = enumerate(examples)
        failure: Exception | None = None
        while True:
            try:
                i, example = next(source)
            except StopIteration:
                break
            except Exception as error:  # of the caller's iterator; those read before it are scored first
                failure = error
                break
            try:
                if not isinstance(example, Example):
                    raise InputError(f"examples[{i}]: expected an Example, got {type(example).__name__}")
                name = f"example {i}" if example.id is None else f"example {i} (id {example.id})"
                job = _prepare(reader, _with_candidates(example, candidates), options, max_tokens, name)
            except (InputError, OutOfBudgetError) as error:
                if on_error is None:
                    failure = error
                    break
                on_error(i, example, error)
                advance(1)
                continue
            if pending and waiting + job.stats.computed > budget:
                yield from _run(reader, pending, options, max_tokens, advance)
                pending, waiting = [], 0
            pending.append(job)
            waiting += job.stats.computed
        if pending:
            yield from _run(reader, pending, options, max_tokens, advance)
        if failure is not None:
            raise failure


def _run(
    reader: Reader, jobs: list[_Job], options: _Options, max_tokens: int | None, advance: Callable[[int], None]
) -> Iterator[PermutationScores]:
    sequences = [sequence for job in jobs for sequence in job.sequences]
    for result in _results(reader, jobs, options, reader.score(sequences, max_tokens=max_tokens)):
        advance(1)
        yield result
