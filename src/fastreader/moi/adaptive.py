"""Scoring in rounds: further orderings until the utilities are settled."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fastreader.core.checks import check_whole, seeded
from fastreader.errors import InputError
from fastreader.moi.cost import Cost
from fastreader.moi.debias import debias
from fastreader.moi.observe import observe
from fastreader.moi.overflow import check_rounds
from fastreader.moi.types import IntArray, Observations, Utilities
from fastreader.permutations import Design, pruned, random

if TYPE_CHECKING:
    from fastreader.moi.planning import Plan
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.session import Scorer


@dataclass(frozen=True)
class Stop:
    """When to stop adding orderings. Each round is a pass of its own, and shares no beginning with earlier ones.

    Attributes:
        p_best: stop when the largest `Utilities.p_best` reaches this (a joint solve has none); None: never.
        same_order: stop when so many rounds in a row gave one matched order; None: never.
        most: orderings at most, 3N by default; not fewer than the first pass scores.
    """

    p_best: float | None = 0.9
    same_order: int | None = 2
    most: int | None = None

    def __post_init__(self) -> None:
        if self.p_best is not None and not 0 < self.p_best <= 1:
            raise InputError(f"Stop.p_best: expected a probability in (0, 1], got {self.p_best}")
        check_whole("Stop.same_order", self.same_order, 2, none=True)
        check_whole("Stop.most", self.most, none=True)

    def settled(self, history: list[Utilities]) -> bool:
        """Whether the last round's utilities are."""
        last = history[-1]
        if self.p_best is not None and last.p_best is not None and float(last.p_best.max()) >= self.p_best:
            return True
        if self.same_order is None or len(history) < self.same_order:
            return False
        orders = {tuple(u.order("matched").tolist()) for u in history[-self.same_order :]}
        return len(orders) == 1


def run(
    reader: Scorer,
    planned: Plan,
    *,
    template: Template | None,
    stop: Stop | None,
    seed: int,
    on_overflow: str,
    max_tokens: int | None,
) -> tuple[Observations, Utilities, Cost]:
    """Score a plan, in rounds when `stop` says; utilities of all orderings scored, and what they cost."""
    from fastreader.scoring.api import score_permutations

    bias, n = planned.bias, len(planned.example.passages)
    assert planned.design is not None
    cost = replace(planned.cost, given=0, computed=0, passes=0)
    most = 3 * n if stop is None or stop.most is None else stop.most
    observed: Observations | None = None
    design: Design | None = planned.design
    if stop is not None and len(planned.design) > most:
        raise InputError(f"stop: expected most >= {len(planned.design)}, the orderings of the first pass, got {most}")
    if stop is not None and on_overflow == "truncate" and planned.design.length < n:
        check_rounds(planned.pieces(reader, template), planned.design.length, reader.max_length)
    history: list[Utilities] = []
    while design is not None:
        scores = score_permutations(
            reader,
            planned.example,
            permutations=design,
            template=template,
            question_only=True,
            score_passages=bias is not None and bias.kind == "joint",
            alone=bias is not None and observed is None,
            on_overflow=on_overflow,
            max_tokens=max_tokens,
        )
        cost = cost.add(scores.stats)
        kind, per_token = ("question", False) if bias is None else (bias.kind, bias.per_token)
        found = observe(scores, kind, per_token=per_token, passages=n)
        observed = found if observed is None else _joined(observed, found)
        history.append(debias(observed, bias) if bias is not None else debias(observed, method="joint", seed=seed))
        if stop is None or stop.settled(history):
            break
        design = _further(observed.permutations, n, most, seed + len(history))
    assert observed is not None
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
    rng = seeded(seed)
    while len(fresh) < count:
        drawn = pruned(random(n, min(4 * n, math.factorial(n)), int(rng.integers(2**31))), length)
        for row in drawn.permutations.tolist():
            if tuple(row) not in known and len(fresh) < count:
                known.add(tuple(row))
                fresh.append(row)
    return Design(np.array(fresh), n, "moi")
