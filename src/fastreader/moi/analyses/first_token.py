"""How far two orders are apart: L1 distance of the answer's first-token distributions (MoI, appendix B)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fastreader.data.types import Passage
from fastreader.errors import InputError, NumericsError
from fastreader.moi.reading import reading_prompts

if TYPE_CHECKING:
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.reader import Reader

FloatArray = npt.NDArray[np.float64]
_VOCABULARY = 8192  # columns of the distributions compared at a time


def first_token_distances(
    reader: Reader,
    question: str,
    passages: Sequence[Passage],
    permutations: Sequence[Sequence[int]],
    *,
    template: Template | None = None,
    max_batch_tokens: int | None = None,
) -> FloatArray:
    """``d(pi_1, pi_2) = sum_y |P(y | pi_1) - P(y | pi_2)|`` over the vocabulary, y the answer's first token.

    All orders are read in one packed pass; logits are taken at the start of the answer only.

    Args:
        reader: reads.
        question: its text.
        passages: in the retriever's order.
        permutations: M orders.
        template: the prompt's texts.
        max_batch_tokens: tokens in one pass at most.

    Returns:
        float64 [M, M], symmetric, in [0, 2].

    Raises:
        InputError: no orders.
        NumericsError: logits are not finite.
    """
    import torch

    prompts = reading_prompts(reader, question, passages, permutations, template)
    if not prompts:
        raise InputError("permutations: expected at least one, got none")
    shares: list[torch.Tensor | None] = [None] * len(prompts)
    model = reader.engine.model
    for tree in reader.plan([(prompt, ()) for prompt in prompts], max_batch_tokens):
        with reader.engine.lock:
            logits = model.logits(model.hidden(tree, rows=tree.leaves))
        if not bool(torch.isfinite(logits).all()):
            raise NumericsError(f"{model.name}: the logits of an answer's first token are not finite")
        for i, row in zip(tree.sequence_ids.tolist(), logits.double().softmax(dim=-1), strict=True):
            shares[i] = row
    every = torch.stack([row for row in shares if row is not None])
    distance = torch.zeros(len(every), len(every), dtype=torch.float64, device=every.device)
    for first in range(0, every.shape[1], _VOCABULARY):
        part = every[:, first : first + _VOCABULARY].contiguous()
        distance += torch.cdist(part, part, p=1.0)
    result: FloatArray = distance.cpu().numpy()
    return result


def partition_means(distances: FloatArray, permutations: Sequence[Sequence[int]]) -> tuple[float, float]:
    """(mean distance of orders that begin with the same passage, of those that do not); nan where no pair does.

    MoI's figure 7 finds the first smaller, from which it takes one order for each first passage.

    Args:
        distances: float64 [M, M].
        permutations: the M orders.
    """
    first = np.array([order[0] for order in permutations])
    if distances.shape != (len(first), len(first)):
        raise InputError(f"distances: expected [{len(first)}, {len(first)}], got {list(distances.shape)}")
    above = np.triu_indices(len(first), 1)
    same = (first[:, None] == first[None, :])[above]
    values = distances[above]
    within, between = values[same], values[~same]
    return (
        float(within.mean()) if within.size else float("nan"),
        float(between.mean()) if between.size else float("nan"),
    )
