"""MoI as the paper prints it: 3N random whole orderings, the joint solve of bias and utilities, descending."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastreader.core.checked import checked
from fastreader.data.types import Passage
from fastreader.moi.baselines.ordering import Ordering, by_score, check_passages
from fastreader.moi.quantities.observations import observe
from fastreader.moi.solve.joint import solve

if TYPE_CHECKING:
    from fastreader.core.protocol import ScoringReader
    from fastreader.reader.prompts.template import Template


@checked
def moi_paper(
    reader: ScoringReader,
    question: str,
    passages: Sequence[Passage],
    *,
    seed: int = 0,
    template: Template | None = None,
    max_batch_tokens: int | None = None,
) -> Ordering:
    """Order by the utilities that explain 3N random orderings best, the largest first (arXiv 2412.10684, section 3.1).

    The scores are log P(q | pi) + log P(pi), and bias and utilities minimise equation (1) of `moi.solve.joint` in every
    question alone. Whole orderings leave the sign of that bias open, so the order may be the reverse of the right one:
    `details` has the flags. It is here to be compared with; `moi.rerank` is the estimator to use.

    Args:
        reader: scores the orderings.
        question, passages: of one question, in the retriever's order.
        seed: of the min(3N, N!) orderings and of the solver's starts.
        template: the prompt's texts.
        max_batch_tokens: same as `score_permutations`.
    """
    from fastreader.scoring.api import score_permutations

    n = check_passages(passages)
    if n == 1:
        return Ordering([0], "moi-paper")  # nothing to order
    scores = score_permutations(
        reader,
        question,
        passages,
        permutations="random",
        seed=seed,
        template=template,
        score_passages=True,
        question_only=True,
        max_batch_tokens=max_batch_tokens,
    )
    found = solve(observe(scores, "joint", passages=n), seed=seed)
    return by_score(
        "moi-paper",
        found.utility,
        scores.stats,
        {"orderings": len(scores.permutations), "identified": found.identified, "flags": list(found.flags)},
    )
