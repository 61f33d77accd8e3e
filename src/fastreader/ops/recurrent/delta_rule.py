"""The gated delta rule with a gate a head, in chunks (Gated DeltaNet, Yang et al. 2024, arXiv 2412.06464, section 3.3).

    S_t = exp(g_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,    o_t = S_t^T q_t

Within a chunk with G_i = g_1 + ... + g_i, the values that are written solve a unit lower triangular system:

    (I + tril(beta_i exp(G_i - G_j) k_i^T k_j, -1)) U = beta (V - exp(G) K S_0)
    O = exp(G) Q S_0 + tril(exp(G_i - G_j) q_i^T k_j) U,    S = exp(G_L) S_0 + (exp(G_L - G) K)^T U
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastreader.ops.recurrent.plan import ChunkBatch, ScanPlan

CHUNK = 64  # tokens


def gated_delta_chunks(
    query: Tensor, key: Tensor, value: Tensor, gate: Tensor, beta: Tensor, plan: ScanPlan, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return outputs and kept states; arguments are those of `gated_delta_rule`, gate [T, Hv], of one type."""
    _, heads, size = value.shape
    groups, key_size = heads // key.shape[1], key.shape[2]
    out = torch.empty_like(value, memory_format=torch.contiguous_format)

    def step(batch: ChunkBatch, state: Tensor) -> Tensor:
        q, k, v, b, g = (batch.gather(x).transpose(1, 2) for x in (query, key, value, beta, gate))
        q, k = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (q, k))  # [N, H, L, D]
        total = g.cumsum(-1)
        decay = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
        grown = total.exp()[..., None]
        weighted = k * b[..., None]
        system = (weighted @ k.mT) * decay
        target = v * b[..., None] - (weighted * grown) @ state
        written = torch.linalg.solve_triangular(system, target, upper=False, unitriangular=True)
        batch.scatter(out, ((q * grown) @ state + ((q @ k.mT) * decay) @ written).transpose(1, 2))
        last = total[..., -1:]
        after: Tensor = state * last.exp()[..., None] + (k * (last - total).exp()[..., None]).mT @ written
        return after

    values = heads * (4 * key_size + 3 * size + 3 * CHUNK)
    kept = plan.run(CHUNK, step, (heads, key_size, size), value.dtype, initial, values)
    return out, kept
