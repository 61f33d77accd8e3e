"""score_permutations: every ordering of the passages, every candidate, one packed pass."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from fastreader.core.checked import checked
from fastreader.core.checks import expect
from fastreader.core.protocol import ScoringReader
from fastreader.core.tree import TreeStats
from fastreader.data import Example
from fastreader.data.arguments import make_example
from fastreader.data.documents import PassageLike
from fastreader.models.passage_cache.cache import PassageCache
from fastreader.permutations import Spec
from fastreader.reader.prompts.template import Template
from fastreader.reader.reader import Reader
from fastreader.scoring.known_passages import cost_after, with_cache
from fastreader.scoring.passes import OnError, score_jobs, score_many
from fastreader.scoring.prepare import ScoreOptions, prepare
from fastreader.scoring.results import PermutationScores

ReaderLike = ScoringReader | str | os.PathLike[str]


@overload
def score_permutations(
    reader: ReaderLike,
    question: str | Example,
    passages: Iterable[PassageLike] | None = None,
    candidates: Sequence[str] | None = None,
    permutations: Spec = "cyclic",
    **options: Any,
) -> PermutationScores: ...


@overload
def score_permutations(
    reader: ReaderLike,
    question: Iterable[Example],
    passages: None = None,
    candidates: Sequence[str] | None = None,
    permutations: Spec = "cyclic",
    **options: Any,
) -> Iterator[PermutationScores]: ...


@checked  # type: ignore[misc]  # the overloads leave out what is the same in both
def score_permutations(
    reader: ReaderLike,
    question: str | Example | Iterable[Example],
    passages: Iterable[PassageLike] | None = None,
    candidates: Sequence[str] | None = None,
    permutations: Spec = "cyclic",
    *,
    seed: int = 0,
    prune: int | None = None,
    prune_mass: float | None = None,
    template: Template | None = None,
    question_only: bool = False,
    score_passages: bool = False,
    closed_book: bool = False,
    query_likelihood: bool = False,
    token_logprobs: bool = False,
    on_overflow: str = "error",
    max_batch_tokens: int | None = None,
    progress: bool | None = None,
    on_error: OnError | None = None,
    cache: PassageCache | None = None,
) -> PermutationScores | Iterator[PermutationScores]:
    """Score candidates (and the question) under many orderings of the passages, sharing every prefix.

    Args:
        reader: a `Reader`, or anything `Reader.load` takes; or a `Session` of one (`Reader.session`), whose cached
            prefixes are not read again.
        question: a question; or an `Example`, which brings its passages and candidates; or many examples,
            which are packed together into passes and yielded in order, with a progress bar on a terminal.
        passages: the passages in the retriever's order, `Passage` objects or texts.
        candidates: K answers to score, instead of the candidates of an example.
        permutations: a design by name ("cyclic", "random", "random:12", "latin", "prefix_sharing", ...), a
            `permutations.Design`, a function of the number of passages, or an int array [M, L].
        seed: of designs that draw orderings.
        prune: read only this many places of each ordering.
        prune_mass: read only the shortest beginning of the retriever's order that holds this share, in (0, 1), of its
            softmaxed scores (`permutations.variable_length`).
        template: the prompt's texts; None uses `Template()`.
        question_only: score the question without any candidate.
        score_passages: also log P(passages | header); costs the LM head at every position.
        closed_book: also score the candidates without passages.
        query_likelihood: also score the question after each passage alone. In designs that put every passage first
            once, as cyclic ones, this computes only the question's tokens again for each passage.
        token_logprobs: keep every token's value.
        on_overflow: "error"; "drop_passages" leaves out the last passages and "truncate" cuts all to a common
            length, until the longest prompt fits the model's context. The result reports it.
        max_batch_tokens: at most this many tokens are computed in one pass; by default from free memory.
        progress: show a bar; None shows one on a terminal only.
        on_error: for many examples, called as (index, example, error) for an example that cannot be scored,
            which is then left out; by default the error is raised.
        cache: keys and values of passages that were read before, see `PassageCache`, for the first passage of each
            ordering and for those read alone; None reads all.

    Returns:
        `PermutationScores`; for many examples an iterator of them.

    Raises:
        InputError: if there are no passages or candidates, a text is empty, or the orderings are invalid.
        ContextOverflowError: if a prompt is longer than the model's context.
        OutOfBudgetError: if one prompt alone does not fit in memory.
    """
    options = ScoreOptions(
        permutations=permutations,
        seed=seed,
        prune=prune,
        prune_mass=prune_mass,
        template=template,
        question_only=question_only,
        score_passages=score_passages,
        closed_book=closed_book,
        query_likelihood=query_likelihood,
        token_logprobs=token_logprobs,
        on_overflow=on_overflow,
        max_batch_tokens=max_batch_tokens,
    )
    opened = with_cache(Reader.load(reader) if isinstance(reader, (str, os.PathLike)) else reader, cache)
    if isinstance(question, (str, Example)):
        example = make_example(question, passages, candidates)
        (result,) = score_jobs(opened, [prepare(opened, example, options, "the question")])
        return result
    expect(passages is None, "passages", "None with many examples, which bring their own", passages)
    return score_many(opened, question, candidates, options, progress, on_error)


@checked
def permutation_cost(
    reader: ReaderLike,
    question: str | Example,
    passages: Iterable[PassageLike] | None = None,
    candidates: Sequence[str] | None = None,
    permutations: Spec = "cyclic",
    *,
    cache: PassageCache | None = None,
    **options: Any,
) -> TreeStats:
    """Return the tokens that `score_permutations` with these arguments would read and compute, without running it.

    Args:
        reader, question, passages, candidates, permutations: see `score_permutations`.
        cache: as `score_permutations`. Tokens in it, or in the cache of `Reader.with_cache`, are counted as cached.
        **options: its other keyword arguments. Tokens that a session has are counted as computed.

    Raises:
        InputError, ContextOverflowError, OutOfBudgetError: as `score_permutations`.
    """
    example = make_example(question, passages, candidates)
    checked = ScoreOptions(permutations=permutations, **options)
    opened = with_cache(Reader.load(reader) if isinstance(reader, (str, os.PathLike)) else reader, cache)
    job = prepare(opened, example, checked, "the question")
    return cost_after(opened, job.sequences, job.ends, job.trees)
