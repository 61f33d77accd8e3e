"""The selective scan of Mamba (Gu & Dao 2023, arXiv 2312.00752, algorithm 2), all chunks of a level token by token.

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T,    y_t = h_t C_t

Every element of h decays at its own rate, so no product of matrices computes several tokens at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastreader.ops.recurrent.plan import ChunkBatch, ScanPlan

CHUNK = 64  # tokens


def selective_scan_chunks(
    input: Tensor,
    step: Tensor,
    transition: Tensor,
    entry: Tensor,
    readout: Tensor,
    plan: ScanPlan,
    *,
    initial: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return outputs and kept states of `selective_scan`, for operands of one floating type."""
    size, states = transition.shape
    out = torch.empty_like(input, memory_format=torch.contiguous_format)

    def chunk(batch: ChunkBatch, state: Tensor) -> Tensor:
        x, dt, b, c = (batch.gather(rows) for rows in (input, step, entry, readout))
        made = torch.empty_like(x)
        added = dt * x
        for i in range(x.shape[1]):
            state = state * (dt[:, i, :, None] * transition).exp_()
            state.addcmul_(added[:, i, :, None], b[:, i, None])
            made[:, i] = (state @ c[:, i, :, None])[..., 0]
        batch.scatter(out, made)
        return state

    kept = plan.run(CHUNK, chunk, (size, states), input.dtype, initial, 4 * size + 2 * states)
    return out, kept
