"""attribute: which passages does an answer rest on?"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_choice, check_int, check_number, check_text, random_generator, require
from fastreader.core.protocol import ScoringReader
from fastreader.core.tree import TreeStats
from fastreader.data.arguments import make_example
from fastreader.data.documents import PassageLike
from fastreader.data.types import Example, Passage
from fastreader.passages.attribution.results import Attribution
from fastreader.passages.attribution.subsets import (
    SubsetPlan,
    exact_plan,
    masks,
    sampled_plan,
    sampled_shapley,
    shapley,
    synergies,
    without,
)
from fastreader.passages.attribution.surrogate import left_out_fit, log_odds, sparse_weights
from fastreader.passages.conflicts.forms import FormText, form_of
from fastreader.reader.prompts.template import Template
from fastreader.scoring.known_passages import score_after, with_cache
from fastreader.scoring.reading import fit_reading, read, reading_pieces

if TYPE_CHECKING:
    from fastreader.models.passage_cache.cache import PassageCache

ReaderLike = ScoringReader | str | os.PathLike[str]
WAYS = ("auto", "exact", "sampled")
ALL_SUBSETS, _MOST = 6, 12  # passages of which all subsets are read by themselves, and on request
NOT_STATED = "no passage states the answer in its words, so the values are about words that make it likelier"
_SHORT = 6  # words of an answer that a passage may state literally
NOT_RAISED = "no passage makes the answer more probable than it is without passages"


@checked
def attribute(
    reader: ReaderLike,
    question: str | Example,
    passages: Iterable[PassageLike] | None = None,
    answer: str | None = None,
    *,
    way: str = "auto",
    orders: int = 16,
    subsets: int = 64,
    pairs: bool = False,
    penalty: float = 0.01,
    seed: int = 0,
    template: Template | None = None,
    on_overflow: str = "error",
    max_new_tokens: int = 32,
    max_batch_tokens: int | None = None,
    cache: PassageCache | None = None,
) -> Attribution:
    """Measure how much each passage contributes to an answer, by reading subsets of the passages in one packed pass.

    v(S) is the log-probability of the answer after the passages in S, in their order. From it come what each passage
    adds alone, what is lost without it, its Shapley value (the mean of what it adds, over all orders in which passages
    could be added), and the weights of ContextCite's sparse linear model of the answer's log-odds. Subsets that begin
    with the same passages share them in the pass.

    Args:
        reader: a `Reader`, a session of one, or anything `Reader.load` takes.
        question: a question; or an `Example`, which brings its passages.
        passages: the passages, `Passage` objects or texts.
        answer: the text to attribute; None generates one from all passages.
        way: "exact" reads all 2^N subsets, of at most 12 passages; "sampled" reads the beginnings of random orders;
            "auto" is exact up to 6 passages.
        orders: pairs of random orders, an order and its reverse, for sampled Shapley values.
        subsets: random subsets for the surrogate, if not all are read.
        pairs: read each two passages, too, which happens anyway if all subsets are read.
        penalty: of the surrogate's weights (L1, on standardised inputs).
        seed: of random orders and subsets.
        template: the prompt's texts.
        on_overflow: "truncate" cuts the passages to a common length at which the prompt with all of them fits;
            "error" raises.
        max_new_tokens: of a generated answer.
        max_batch_tokens: same as `score_permutations`.
        cache: keys and values of passages that were read before, see `PassageCache`; None reads all.

    Returns:
        The contributions in nats. A `note` says if passages were cut, or if no passage raises the answer.

    Raises:
        InputError: if there is no passage, the answer has no token, none was generated, or "exact" would read more
            than 2^12 subsets.
        ContextOverflowError: if the prompt with all passages is longer than the model's context.
        OutOfBudgetError: if one prompt alone does not fit in memory.
    """
    check_choice("way", way, WAYS)
    check_int("orders", orders)
    check_int("subsets", subsets)
    check_number("penalty", penalty, minimum=0)
    check_text("answer", answer, optional=True)
    rng = random_generator(seed)
    example = make_example(question, passages, None)
    count = len(example.passages)
    plan = _plan(count, way, sampled_plan(count, orders, subsets, pairs, rng))
    if not isinstance(reader, ScoringReader):
        from fastreader.reader.reader import Reader

        reader = Reader.load(reader)
    reader = with_cache(reader, cache)
    stats, generated = TreeStats(0, 0, 0, 0), answer is None
    if answer is None:
        limits = {"max_new_tokens": max_new_tokens, "max_batch_tokens": max_batch_tokens, "on_overflow": on_overflow}
        written = read(reader, example, candidates=[], template=template, **limits)
        answer, stats = written.text, written.stats
        require(bool(answer), "answer: the reader generated an empty one from these passages; give the answer")
    pieces = reading_pieces(reader, example, [answer], template)
    pieces, truncated = fit_reading(pieces, range(count), reader.max_length, 1, on_overflow)
    tail, (tokens,) = pieces.tail(), pieces.candidates
    prompts = [(pieces.head + pieces.body(subset) + tail, tokens) for subset in plan.read]
    ends = [pieces.ends(pieces.body_length(subset[:1])) for subset in plan.read]
    scores = score_after(reader, prompts, ends, max_batch_tokens=max_batch_tokens)
    values = dict(zip(plan.read, scores.logprob.tolist(), strict=True))
    whole = tuple(range(count))
    if plan.exact:
        contributions, errors = shapley(count, values), np.zeros(count)
    else:
        contributions, errors = sampled_shapley(plan.orders, values)
    drawn, odds = masks(count, plan.drawn), log_odds([values[subset] for subset in plan.drawn])
    alone = np.array([values[i,] - values[()] for i in whole])
    notes = [NOT_RAISED] * bool((alone <= 0).all() and values[whole] <= values[()])
    if not notes and _unstated(answer, example.passages):
        notes.append(NOT_STATED)
    if truncated:
        most = max(truncated.values())
        notes.append(f"{len(truncated)} passages were cut to fit the context, by up to {most} tokens")
    return Attribution(
        question=example.question,
        passages=list(example.passages),
        answer=answer,
        generated=generated,
        logprob=values[whole],
        closed_book_logprob=values[()],
        alone=alone,
        left_out=np.array([values[whole] - values[without(whole, i)] for i in whole]),
        shapley=contributions,
        shapley_error=errors,
        surrogate=sparse_weights(drawn, odds, penalty)[0],
        surrogate_fit=left_out_fit(drawn, odds, penalty, rng),
        pairs=synergies(count, values) if plan.pairs else None,
        exact=plan.exact,
        subsets=len(plan.read),
        stats=stats + scores.stats,
        reader=reader.describe(),
        id=example.id,
        note="; ".join(notes),
    )


def _unstated(answer: str, passages: Iterable[Passage]) -> bool:
    """Return whether an answer is short, no yes or no, and stated by no passage."""
    form = form_of(answer)
    if len(form.words) > _SHORT or form.words in (("yes",), ("no",), ("true",), ("false",)):
        return False
    return not any(FormText(text).find(form) for each in passages for text in (each.text, each.title or ""))


def _plan(count: int, way: str, sampled: SubsetPlan) -> SubsetPlan:
    """Return the plan of a way to read N passages."""
    if way == "sampled" or (way == "auto" and count > ALL_SUBSETS):
        return sampled
    require(
        count <= _MOST,
        f"way: 'exact' reads all subsets of at most {_MOST} passages, got {count} passages; 'sampled' reads "
        f"{len(sampled.read):,} subsets of them: the beginnings of {len(sampled.orders)} random orders, "
        f"{len(sampled.drawn)} random subsets, and each passage alone and left out (`orders`, `subsets`)",
    )
    return exact_plan(count)
