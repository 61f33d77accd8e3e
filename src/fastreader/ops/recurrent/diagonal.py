"""A gated linear recurrence, all chunks of a level token by token (RG-LRU of Griffin, arXiv 2402.19427, equation 4).

    h_t = a_t h_{t-1} + x_t

with the gates a_t and the gated inputs x_t given.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastreader.ops.recurrent.plan import ChunkBatch, ScanPlan

CHUNK = 64  # tokens


def diagonal_chunks(input: Tensor, decay: Tensor, plan: ScanPlan, *, initial: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return outputs and kept states of `linear_recurrence`, for operands of one floating type."""
    size = input.shape[1]
    out = torch.empty_like(input, memory_format=torch.contiguous_format)

    def chunk(batch: ChunkBatch, state: Tensor) -> Tensor:
        x, a = batch.gather(input), batch.gather(decay)
        if batch.padding is not None:
            a.masked_fill_(batch.padding[..., None], 1)  # the state stays
        for i in range(x.shape[1]):
            state = torch.addcmul(x[:, i], a[:, i], state)
            x[:, i] = state
        batch.scatter(out, x)
        return state

    kept = plan.run(CHUNK, chunk, (size,), input.dtype, initial, 2 * size)
    return out, kept
