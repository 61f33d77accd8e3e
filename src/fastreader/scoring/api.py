"""score_permutations: every ordering of the passages, every candidate, one packed pass."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from fastreader.core.checks import check_whole
from fastreader.core.tree import TreeStats
from fastreader.data import Example
from fastreader.errors import InputError
from fastreader.permutations import Spec
from fastreader.reader.prompts.template import Template, as_template
from fastreader.reader.reader import Reader
from fastreader.reader.session import Session
from fastreader.scoring.passes import OnError, results_of, score_many
from fastreader.scoring.prepare import Options, PassageLike, as_example, prepare
from fastreader.scoring.results import PermutationScores


@overload
def score_permutations(
    reader: Reader | Session | str | os.PathLike[str],
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
    reader: Reader | Session | str | os.PathLike[str],
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
    reader: Reader | Session | str | os.PathLike[str],
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
        reader: a `Reader`, or anything `Reader.load` takes; or a `Session` of one (`Reader.session`), whose kept
            prefixes are not read again.
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
    check_whole("max_tokens", max_tokens, none=True)
    opened = _opened(reader)
    options = Options(
        permutations,
        seed,
        prune,
        as_template(template),
        question_only,
        score_passages,
        prior,
        token_logliks,
        on_overflow,
        alone,
    )
    if isinstance(question, (str, Example)):
        job = prepare(opened, as_example(question, passages, candidates), options, max_tokens, "the question")
        return results_of(opened, [job], options, opened.score(job.sequences, max_tokens=max_tokens))[0]
    if passages is not None:
        raise InputError("passages: expected None with many examples, which bring their own")
    return score_many(opened, question, candidates, options, max_tokens, progress, on_error)


def permutation_cost(
    reader: Reader | Session | str | os.PathLike[str],
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

    Args and errors as `score_permutations`; what a session keeps is counted as if it had to be read.
    """
    opened = _opened(reader)
    options = Options(
        permutations,
        seed,
        prune,
        as_template(template),
        question_only,
        score_passages,
        prior,
        False,
        on_overflow,
        alone,
    )
    return prepare(opened, as_example(question, passages, candidates), options, max_tokens, "the question").stats


def _opened(reader: Reader | Session | str | os.PathLike[str]) -> Reader | Session:
    return reader if isinstance(reader, (Reader, Session)) else Reader.load(reader)
