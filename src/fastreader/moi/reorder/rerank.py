"""rerank: put the passages of a question in a better reading order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import expect, random_generator, require
from fastreader.core.tree import TreeStats
from fastreader.data.arguments import make_example
from fastreader.data.documents import PassageLike
from fastreader.data.types import Example
from fastreader.moi.calibration.pool import Pool
from fastreader.moi.quantities.observations import IntArray, Observations, observe
from fastreader.moi.quantities.position_bias import PositionBias
from fastreader.moi.quantities.utilities import Utilities, descending, matched, of_query_likelihoods
from fastreader.moi.reorder.planning import KINDS, Cost, RerankOptions, RerankPlan, Stopping, plan_example
from fastreader.moi.reorder.ranked import Ranked, RankedPassage
from fastreader.moi.solve.debias import calibrated
from fastreader.moi.solve.joint import solve as solve_jointly
from fastreader.permutations import Design, Spec, pruned, random
from fastreader.scoring.reading import check_rounds, truncation_note

if TYPE_CHECKING:
    from fastreader.core.protocol import ScoringReader
    from fastreader.reader.prompts.template import Template


@checked
def rerank(
    reader: ScoringReader,
    question: str | Example,
    passages: Iterable[PassageLike] | None = None,
    bias: PositionBias | None = None,
    order: str = "matched",
    max_passages: int = 10,
    *,
    permutations: Spec | None = None,
    prune: int | None = None,
    prune_mass: float | None = None,
    template: Template | None = None,
    stopping: Stopping | None = None,
    seed: int = 0,
    on_overflow: str = "error",
    max_batch_tokens: int | None = None,
    pool: Pool | None = None,
    kind: str | None = None,
) -> Ranked:
    """Order the passages by their worth to this reader, whatever place they are read at.

    With a calibration N orderings are scored (`designs.cyclic_for`), and each passage alone, in one pass. Without one
    each passage is scored alone: the utilities are its query likelihoods, the passages keep the retriever's order
    unless `order` is "descending", and `note` reports it. A `pool` learns the bias from such calls.

    Args:
        reader: scores the orderings; or a session of one (`Reader.session`).
        question: a text, or an `Example` with its passages.
        passages: in the retriever's order.
        bias: a calibration of this reader, template and N; None uses one from the cache folder, a shipped one, or the
            pool's.
        order: "matched" (largest utility at the place of the largest bias) or "descending".
        max_passages: score at most this number; the others follow them in the retriever's order.
        permutations: orderings instead of the default design, same as `score_permutations`. Without a calibration,
            prefixes whose utilities the joint solve finds; the order is then descending.
        prune: read only this number of places of each ordering. Needs a calibration of that L.
        prune_mass: read as many places as hold this share of the retriever's softmaxed scores (scores are used as they
            are: BM25's are far apart and leave one or two places; divide them by a temperature first).
        template: the prompt's texts.
        stopping: score further orderings until the utilities are settled; None scores one pass.
        seed: of designs that draw.
        on_overflow: if an ordering is longer than the model's context, "error" raises; "truncate" cuts the passages to
            a common length and reports it in `note`. Passages are never dropped.
        max_batch_tokens: same as `score_permutations`.
        pool: for a reader without a calibration: score a Latin square's N orderings too, add them to this pool, and
            use its bias once it is settled. None scores no orderings.
        kind: "question" scores log P(question | passages); "joint" adds log P(passages), the second factor of the
            paper's equation 3. None takes the bias's, else "question". The pool's is "question".

    Raises:
        InputError: if there are no passages, the bias has another N, L, reader or template (both are named), `order`
            is unknown, or it is "descending" under a bias of undetermined sign.
        ContextOverflowError: if a prompt is longer than the model's context.
    """
    options = RerankOptions(
        order=order,
        max_passages=max_passages,
        permutations=permutations,
        prune=prune,
        prune_mass=prune_mass,
        template=template,
        stopping=stopping,
        seed=seed,
        on_overflow=on_overflow,
        max_batch_tokens=max_batch_tokens,
        pool=pool,
        kind=kind,
    )
    return rerank_planned(reader, plan_example(reader, make_example(question, passages), bias, options))


def rerank_planned(reader: ScoringReader, planned: RerankPlan) -> Ranked:
    """Run a plan, as `rerank` documents."""
    order = planned.options.order
    example, n = planned.example, len(planned.example.passages)
    tail = list(map(RankedPassage, planned.tail, itertools.count(n)))
    if planned.design is None:
        only = RankedPassage(example.passages[0], 0, 0.0, 0.5, (0.0, 0.0), 1.0)
        return Ranked(
            example.question, [only, *tail], "given", "given", None, None, planned.cost, len(tail), id=example.id
        )
    unsigned = planned.bias is not None and planned.bias.sign == "undetermined"
    signed = order != "descending" or not unsigned
    require(signed, "order: 'descending' needs the bias's sign, which this calibration left undetermined")
    observed, utilities, cost = _score(reader, planned)
    notes = [utilities.reason, truncation_note("scoring", observed.truncated)]
    if planned.method == "joint":
        order = "descending"
        notes = ["no calibration for this reader, template and N: joint solve of the orderings given", *notes]
    elif planned.method == "query_likelihood":
        order = "descending" if order == "descending" else "given"
        notes = [*_uncalibrated(planned, observed, order), *notes]
    elif planned.bias_source == "pool" and planned.options.pool is not None:
        notes = [planned.options.pool.state(observed.reader, observed.template, n), *notes]
    worth = utilities.utility
    if order == "given":
        places = np.arange(n)
    else:
        places = descending(worth) if order == "descending" else matched(worth, utilities.bias)
    ranked = map(partial(_ranked, example, utilities), places.tolist())
    return Ranked(
        question=example.question,
        passages=[*ranked, *tail],
        order=order,
        bias_source=planned.bias_source,
        bias=planned.bias,
        utilities=utilities,
        cost=cost,
        tail=len(tail),
        note="; ".join(filter(None, notes)),
        observations=observed,
        id=example.id,
    )


def _uncalibrated(planned: RerankPlan, observed: Observations, order: str) -> list[str]:
    """Add the scores to the pool, and return the notes of a call without a calibration."""
    options, read = planned.options, "retriever's" if order == "given" else "descending"
    notes = [f"no calibration for this reader, template and N: utilities are query likelihoods, read in {read} order"]
    given = {"prune": options.prune, "prune_mass": options.prune_mass, "stopping": options.stopping}
    if unused := [name for name, value in given.items() if value is not None]:
        notes.append(f"{', '.join(unused)}: without a calibration there are no orderings to apply this to")
    if options.pool is not None and observed.length > 1:
        options.pool.add(observed)
        notes.append(options.pool.state(observed.reader, observed.template, observed.passages))
    return notes


def _ranked(example: Example, utilities: Utilities, index: int) -> RankedPassage:
    interval = p_best = None
    if utilities.intervals is not None and utilities.p_best is not None:
        interval = (float(utilities.intervals[index, 0]), float(utilities.intervals[index, 1]))
        p_best = float(utilities.p_best[index])
    utility, relevance = float(utilities.utility[index]), float(utilities.relevance[index])
    return RankedPassage(example.passages[index], index, utility, relevance, interval, p_best)


def _score(reader: ScoringReader, planned: RerankPlan) -> tuple[Observations, Utilities, Cost]:
    """Score a plan, in rounds if it has a stopping rule.

    Returns:
        (all orderings scored, their utilities, their cost)
    """
    from fastreader.scoring.passes import score_jobs
    from fastreader.scoring.prepare import prepare

    bias, options, n = planned.bias, planned.options, len(planned.example.passages)
    job, pieces, stopping = planned.job, planned.pieces, options.stopping
    assert job is not None and pieces is not None and planned.design is not None
    if planned.method == "query_likelihood":
        stopping = None
    most = 3 * n if stopping is None or stopping.most is None else stopping.most
    if stopping is not None:
        first = len(planned.design)
        expect(most >= first, "stopping", f"most >= {first}, the orderings of the first pass", most)
        if options.on_overflow == "truncate" and planned.design.length < n:
            check_rounds(pieces, planned.design.length, reader.max_length)
    kind, per_token = (options.kind or KINDS[0], False) if bias is None else (bias.kind, bias.per_token)
    observed: Observations | None = None
    stats: TreeStats | None = None
    history: list[Utilities] = []
    while True:
        (scores,) = score_jobs(reader, [job])
        stats = scores.stats if stats is None else stats + scores.stats
        found = observe(scores, kind, per_token=per_token, passages=n)
        observed = found if observed is None else _joined(observed, found)
        # The plan has checked the bias against what is scored.
        history.append(_solved(planned, observed))
        if stopping is None or stopping.settled(history):
            break
        if (design := _further(observed.permutations, n, most, options.seed + len(history))) is None:
            break
        again = replace(job.options, permutations=design, query_likelihood=False)
        job = prepare(reader, planned.example, again, "the question", pieces)
    cost = replace(
        planned.cost,
        total_tokens=stats.total_tokens,
        computed_tokens=stats.computed_tokens,
        cached_tokens=stats.cached_tokens,
        passes=len(history),
    )
    return observed, history[-1], cost


def _solved(planned: RerankPlan, observed: Observations) -> Utilities:
    if planned.bias is not None:
        return calibrated(observed, planned.bias)
    if planned.method == "joint":
        return solve_jointly(observed, seed=planned.options.seed)
    return of_query_likelihoods(observed.values if observed.qg is None else observed.qg, observed.passages)


def _joined(first: Observations, more: Observations) -> Observations:
    return replace(
        first,
        values=np.concatenate([first.values, more.values]),
        permutations=np.concatenate([first.permutations, more.permutations]),
        truncated={p: max(o.truncated.get(p, 0) for o in (first, more)) for p in {**first.truncated, **more.truncated}},
    )


def _further(seen: IntArray, n: int, most: int, seed: int) -> Design | None:
    """Return at most N random orderings that are not in `seen`, or None if there are enough."""
    length = seen.shape[1]
    count = min(n, most - len(seen), math.perm(n, length) - len(seen))
    if count < 1:
        return None
    known = set(map(tuple, seen.tolist()))
    fresh: list[list[int]] = []
    rng = random_generator(seed)
    while len(fresh) < count:
        drawn = pruned(random(n, min(4 * n, math.factorial(n)), int(rng.integers(2**31))), length)
        for row in drawn.permutations.tolist():
            if tuple(row) not in known and len(fresh) < count:
                known.add(tuple(row))
                fresh.append(row)
    return Design(np.array(fresh), n, "moi")
