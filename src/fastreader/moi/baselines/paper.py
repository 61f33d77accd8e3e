"""MoI as the paper prints it: 3N random whole orderings, the joint solve of bias and utilities, descending.

The paper prints no rule for the sign of the bias, which whole orderings leave open. Its Figure 6 (the mean bias falls
from the first place to the last) and Table 8 (reversing the order costs 18 points) show that its solutions had one
sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_choice, require
from fastreader.data.types import Passage
from fastreader.moi.baselines.ordering import Ordering, check_passages
from fastreader.moi.baselines.placed import check_own, outside_bias
from fastreader.moi.quantities.observations import FloatArray, observe
from fastreader.moi.quantities.position_bias import PositionBias
from fastreader.moi.quantities.utilities import ORDERS, Utilities, descending
from fastreader.moi.solve.joint import solve, turned

if TYPE_CHECKING:
    from fastreader.core.protocol import ScoringReader
    from fastreader.permutations import Spec
    from fastreader.reader.prompts.template import Template


SIGNS = ("falling", "query_likelihood", "pooled", "as_solved")


@checked
def moi_paper(
    reader: ScoringReader,
    question: str,
    passages: Sequence[Passage],
    *,
    sign: str = "falling",
    permutations: Spec = "random",
    prune: int | None = None,
    prune_mass: float | None = None,
    order: str = "descending",
    bias: PositionBias | None = None,
    seed: int = 0,
    template: Template | None = None,
    max_batch_tokens: int | None = None,
) -> Ordering:
    """Order by the utilities that explain 3N random orderings best, the largest first (arXiv 2412.10684, section 3.1).

    The scores are log P(q | pi) + log P(pi), and bias and utilities minimise equation (1) of `moi.solve.joint` in every
    question alone. It is here to be compared with; `moi.rerank` is the estimator to use.

    Args:
        reader: scores the orderings.
        question, passages: of one question, in the retriever's order.
        sign: which of the two solutions of whole orderings, which fit equally well, is taken: the one whose bias falls
            from the first place to the last ("falling", as in the paper's Figure 6), whose utilities go with the query
            likelihoods of the passages alone ("query_likelihood"), whose bias goes with `bias`, which was pooled over
            other questions ("pooled"), or the one that the solver ends with ("as_solved"), which is a matter of chance.
            Prefixes determine the sign, and need none of them.
        permutations, prune, prune_mass: same as `score_permutations`; the paper's Table 6 has cyclic orderings and
            their prefixes, of one length or by the retriever's scores.
        order: "descending", or "matched", which puts the largest utility at the place of the largest bias, whatever
            the sign.
        bias: of this reader for this number of passages, for "pooled" only.
        seed: of the min(3N, N!) orderings and of the solver's starts.
        template: the prompt's texts.
        max_batch_tokens: same as `score_permutations`.

    Returns:
        The order. `details` has the number of orderings, the flags of the solution, the bias found (its weights sum to
        1), and whether it was turned.

    Raises:
        InputError: if an option is unknown, or "pooled" has no bias of a decided sign for this number of passages.
    """
    from fastreader.scoring.api import score_permutations

    for name, value, known in (("sign", sign, SIGNS), ("order", order, ORDERS)):
        check_choice(name, value, known)
    n = check_passages(passages)
    require(sign != "pooled" or bias is not None, "sign 'pooled': needs a bias, see moi.calibrate")
    pooled = None
    if sign == "pooled" and bias is not None:
        pooled = outside_bias(bias, n)
        check_own(bias, reader)
    if n == 1:
        return Ordering([0], "moi-paper")  # nothing to order
    scores = score_permutations(
        reader,
        question,
        passages,
        permutations=permutations,
        prune=prune,
        prune_mass=prune_mass,
        seed=seed,
        template=template,
        score_passages=True,
        question_only=True,
        query_likelihood=sign == "query_likelihood",
        max_batch_tokens=max_batch_tokens,
    )
    found = solve(observe(scores, "joint", passages=n), seed=seed)
    agreement = agreement_of(found, sign, scores.query_logprobs, pooled)
    chosen = turned(found, agreement)
    indices = descending(chosen.utility) if order == "descending" else chosen.order("matched")
    details = {
        "orderings": len(scores.permutations),
        "identified": found.identified,
        "flags": list(found.flags),
        "bias": chosen.bias.tolist(),
        "turned": agreement < 0,
    }
    return Ordering(indices.tolist(), "moi-paper", chosen.utility, scores.stats, details)


def agreement_of(
    found: Utilities, sign: str, query_likelihoods: FloatArray | None = None, pooled: FloatArray | None = None
) -> float:
    """Return how far a solution goes with what `sign` names, below 0 if its opposite does.

    Args:
        found: a solution of `moi.solve.joint`.
        sign: one of `SIGNS`.
        query_likelihoods: float64 [N], for "query_likelihood".
        pooled: float64 [N], weights of places, for "pooled".
    """
    if sign == "as_solved" or "sign" not in found.flags:
        return 0.0
    if sign == "query_likelihood":
        assert query_likelihoods is not None
        return float(found.utility @ (query_likelihoods - query_likelihoods.mean()))
    places = -np.arange(len(found.bias), dtype=np.float64)  # falling
    if sign == "pooled":
        assert pooled is not None
        places = pooled
    return float(found.bias @ (places - places.mean()))
