"""rerank: the passages of a question in a better reading order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastreader.data.arguments import PassageLike, make_example
from fastreader.data.types import Example
from fastreader.errors import InputError
from fastreader.moi.adaptive import run
from fastreader.moi.options import RerankOptions, Stopping
from fastreader.moi.order import descending
from fastreader.moi.overflow import told
from fastreader.moi.planning import Plan, plan_example
from fastreader.moi.ranked import Ranked, RankedPassage
from fastreader.moi.types import IntArray, PositionBias, Utilities
from fastreader.permutations import Spec

if TYPE_CHECKING:
    from fastreader.core.protocol import Scorer
    from fastreader.reader.prompts.template import Template


def rerank(
    reader: Scorer,
    question: str | Example,
    passages: Sequence[PassageLike] | None = None,
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
) -> Ranked:
    """Order the passages by what they are worth to this reader, wherever they are read.

    With a calibration N orderings are scored (`designs.cyclic_for`), and each passage alone, in one pass. Without
    one, given or at hand, random prefixes are, which the joint solve identifies by itself; the result then is in
    descending order and says so.

    Args:
        reader: scores the orderings; or a session of one (`Reader.session`).
        question: a text, or an `Example` with its passages.
        passages: in the retriever's order.
        bias: a calibration of this reader, template and N; None: that in the cache folder, or shipped.
        order: "matched" (largest utility at the place of the largest bias) or "descending".
        max_passages: only so many are scored; the others follow them in the retriever's order.
        permutations: orderings in place of the default design, as in `score_permutations`.
        prune: read only this many places of each ordering. Needs a calibration of that L, or none.
        prune_mass: read as many places as hold this share of the retriever's softmaxed scores (as they are: BM25's are
            far apart and leave one or two; divide them by a temperature before).
        template: the prompt's texts.
        stopping: score further orderings until the utilities are settled; None scores one pass.
        seed: of designs that draw.
        on_overflow: where an ordering is longer than the model's context: "error", or "truncate", which cuts the
            passages to a common length and says so in `note`; passages are never dropped here.
        max_batch_tokens: as for `score_permutations`.

    Raises:
        InputError: no passages, a bias of another N, L, reader or template (both are named), an unknown order, or
            "descending" under a bias of undetermined sign.
        ContextOverflowError: a prompt is longer than the model's context.
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
    )
    return rerank_planned(reader, plan_example(reader, make_example(question, passages), bias, options))


def rerank_planned(reader: Scorer, planned: Plan) -> Ranked:
    """Run a plan; see `rerank`."""
    order = planned.options.order
    example, n = planned.example, len(planned.example.passages)
    ends = [RankedPassage(p, n + i) for i, p in enumerate(planned.tail)]
    if planned.design is None:
        only = RankedPassage(example.passages[0], 0, 0.0, 0.5, (0.0, 0.0), 1.0)
        return Ranked(
            example.question, [only, *ends], "given", "given", None, None, planned.cost, len(ends), id=example.id
        )
    if planned.bias is not None and planned.bias.sign == "undetermined" and order == "descending":
        raise InputError("order: 'descending' needs the bias's sign, which this calibration left undetermined")
    observed, utilities, cost = run(reader, planned)
    notes = [utilities.reason, told("scoring", observed.truncated)]
    if planned.bias is None:
        order = "descending"
        notes = ["no calibration for this reader, template and N: random prefixes", *notes]
    return Ranked(
        question=example.question,
        passages=[_ranked(example, utilities, i) for i in _reading(utilities, order).tolist()] + ends,
        order=order,
        bias_source=planned.bias_source,
        bias=planned.bias,
        utilities=utilities,
        cost=cost,
        tail=len(ends),
        note="; ".join(filter(None, notes)),
        observations=observed,
        id=example.id,
    )


def _reading(utilities: Utilities, order: str) -> IntArray:
    return descending(utilities.utility) if order == "descending" else utilities.order(order)


def _ranked(example: Example, utilities: Utilities, index: int) -> RankedPassage:
    interval = p_best = None
    if utilities.intervals is not None and utilities.p_best is not None:
        interval = (float(utilities.intervals[index, 0]), float(utilities.intervals[index, 1]))
        p_best = float(utilities.p_best[index])
    return RankedPassage(
        example.passages[index],
        index,
        float(utilities.utility[index]),
        float(utilities.score[index]),
        interval,
        p_best,
    )
