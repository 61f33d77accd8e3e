"""Scoring in rounds: further orderings until the utilities are settled."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fastreader.core.checks import random_generator
from fastreader.errors import InputError
from fastreader.moi.cost import Cost
from fastreader.moi.debias import debias
from fastreader.moi.observe import observe
from fastreader.moi.overflow import check_rounds
from fastreader.moi.planning import Plan
from fastreader.moi.types import IntArray, Observations, Utilities
from fastreader.permutations import Design, pruned, random

if TYPE_CHECKING:
    from fastreader.core.protocol import Scorer


def run(reader: Scorer, planned: Plan) -> tuple[Observations, Utilities, Cost]:
    """Score a plan, in rounds if it has a stopping rule.

    Returns:
        (all orderings scored, their utilities, what they cost)
    """
    from fastreader.scoring.passes import score_job
    from fastreader.scoring.prepare import prepare

    bias, options, n = planned.bias, planned.options, len(planned.example.passages)
    job, pieces, stopping = planned.job, planned.pieces, options.stopping
    assert job is not None and pieces is not None and planned.design is not None
    cost = replace(planned.cost, total_tokens=0, computed_tokens=0, passes=0)
    most = 3 * n if stopping is None or stopping.most is None else stopping.most
    if stopping is not None and len(planned.design) > most:
        raise InputError(
            f"stopping: expected most >= {len(planned.design)}, the orderings of the first pass, got {most}"
        )
    if stopping is not None and options.on_overflow == "truncate" and planned.design.length < n:
        check_rounds(pieces, planned.design.length, reader.max_length)
    kind, per_token = ("question", False) if bias is None else (bias.kind, bias.per_token)
    observed: Observations | None = None
    history: list[Utilities] = []
    while True:
        scores = score_job(reader, job)
        cost = cost.add(scores.stats)
        found = observe(scores, kind, per_token=per_token, passages=n)
        observed = found if observed is None else _joined(observed, found)
        seed = options.seed
        history.append(debias(observed, bias) if bias is not None else debias(observed, method="joint", seed=seed))
        if stopping is None or stopping.settled(history):
            break
        if (design := _further(observed.permutations, n, most, seed + len(history))) is None:
            break
        again = replace(job.options, permutations=design, query_likelihood=False)
        job = prepare(reader, planned.example, again, "the question", pieces)
    return observed, history[-1], cost


def _joined(first: Observations, more: Observations) -> Observations:
    return replace(
        first,
        values=np.concatenate([first.values, more.values]),
        permutations=np.concatenate([first.permutations, more.permutations]),
        truncated={p: max(o.truncated.get(p, 0) for o in (first, more)) for p in {**first.truncated, **more.truncated}},
    )


def _further(seen: IntArray, n: int, most: int, seed: int) -> Design | None:
    """Up to N orderings that were not seen, random; None when there are enough."""
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
