"""Distances between orders: L1 distance of the answer's first-token distributions (MoI, appendix B)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import expect
from fastreader.data.types import Passage
from fastreader.errors import NumericsError
from fastreader.moi.quantities.observations import FloatArray
from fastreader.scoring.reading import reading_prompts

if TYPE_CHECKING:
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.reader import Reader

_VOCABULARY = 8192  # columns of the distributions compared at a time


@checked
def first_token_distances(
    reader: Reader,
    question: str,
    passages: Sequence[Passage],
    permutations: Sequence[Sequence[int]],
    *,
    template: Template | None = None,
    max_batch_tokens: int | None = None,
) -> FloatArray:
    """Return ``d(pi_1, pi_2) = sum_y |P(y | pi_1) - P(y | pi_2)|`` over the vocabulary, y the answer's first token.

    All orders are read in one packed pass; logits are computed at the start of the answer only.

    Args:
        reader: reads.
        question: its text.
        passages: in the retriever's order.
        permutations: M orders.
        template: texts of the prompt.
        max_batch_tokens: at most this number of tokens in one pass.

    Returns:
        float64 [M, M], symmetric, in [0, 2].

    Raises:
        InputError: if there are no orders.
        NumericsError: if logits are not finite.
    """
    import torch

    expect(len(passages) > 0, "passages", "at least one", passages)
    within = all(0 <= passage < len(passages) for order in permutations for passage in order)
    expect(within, "permutations", f"indices of the {len(passages)} passages", permutations)
    prompts = reading_prompts(reader, question, passages, permutations, template)
    expect(bool(prompts), "permutations", "at least one", permutations)
    shares: dict[int, torch.Tensor] = {}
    for tree in reader.plan([(prompt, ()) for prompt in prompts], max_batch_tokens):
        with reader.locked_model() as model:
            logits = model.logits(model.hidden(tree, rows=tree.leaves))
        if not bool(torch.isfinite(logits).all()):
            raise NumericsError(f"{reader.name}: the logits of an answer's first token are not finite")
        shares.update(zip(tree.sequence_ids.tolist(), logits.double().softmax(dim=-1), strict=True))
    every = torch.stack([shares[i] for i in sorted(shares)])
    distance = torch.zeros(len(every), len(every), dtype=torch.float64, device=every.device)
    for first in range(0, every.shape[1], _VOCABULARY):
        part = every[:, first : first + _VOCABULARY].contiguous()
        distance += torch.cdist(part, part, p=1.0)
    result: FloatArray = distance.cpu().numpy()
    return result


@checked
def partition_means(distances: FloatArray, permutations: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Return the mean distances of orders (with the same first passage, with different ones), nan if no pair has them.

    MoI's figure 7 finds the first smaller, and therefore takes one order for each first passage.

    Args:
        distances: float64 [M, M].
        permutations: the M orders.
    """
    expect(all(map(len, permutations)), "permutations", "orders of at least one passage", permutations)
    first = np.array([order[0] for order in permutations])
    shape = [len(first), len(first)]
    expect(list(distances.shape) == shape, "distances", f"shape {shape}", list(distances.shape))
    above = np.triu_indices(len(first), 1)
    same, values = (first[:, None] == first[None, :])[above], distances[above]
    within, between = (float(v.mean()) if v.size else float("nan") for v in (values[same], values[~same]))
    return within, between
