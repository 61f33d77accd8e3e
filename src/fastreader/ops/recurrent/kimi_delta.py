"""The gated delta rule with a gate a channel, in chunks (Kimi Delta Attention, arXiv 2510.26692, section 3).

    S_t = (I - beta_t k_t k_t^T) diag(exp(g_t)) S_{t-1} + beta_t k_t v_t^T,    o_t = S_t^T q_t

It is the rule of `gated_delta` with products of decayed vectors, sum_d q_i[d] k_j[d] exp(G_i[d] - G_j[d]). The factors
exp(-G_j[d]) would overflow, so the exponent is formed for each pair of tokens, and chunks are short.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastreader.ops.recurrent.plan import ChunkBatch, ScanPlan

CHUNK = 16  # tokens


def kimi_delta_chunks(
    query: Tensor, key: Tensor, value: Tensor, gate: Tensor, beta: Tensor, plan: ScanPlan, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return outputs and kept states; arguments are those of `gated_delta_rule`, gate [T, Hv, D], of one type."""
    _, heads, size = value.shape
    groups, key_size = heads // key.shape[1], key.shape[2]
    out = torch.empty_like(value, memory_format=torch.contiguous_format)

    def step(batch: ChunkBatch, state: Tensor) -> Tensor:
        q, k, v, b, g = (batch.gather(x).transpose(1, 2) for x in (query, key, value, beta, gate))
        q, k = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (q, k))  # [N, H, L, D]
        total = g.cumsum(-2)
        length = k.shape[-2]
        later = torch.ones(length, length, dtype=torch.bool, device=k.device).triu(1)[..., None]
        pairs = (total[..., :, None, :] - total[..., None, :, :]).masked_fill_(later, -torch.inf).exp_()
        pairs.mul_(k[..., None, :, :])  # [N, H, L, L, D]
        system = (pairs @ k[..., None])[..., 0] * b[..., None]
        scores = (pairs @ q[..., None])[..., 0]
        grown = total.exp()
        target = v * b[..., None] - (k * b[..., None] * grown) @ state
        written = torch.linalg.solve_triangular(system, target, upper=False, unitriangular=True)
        batch.scatter(out, ((q * grown) @ state + scores @ written).transpose(1, 2))
        last = total[..., -1:, :]
        after: Tensor = state * last.exp().mT + (k * (last - total).exp()).mT @ written
        return after

    values = heads * (5 * key_size + 3 * size + 2 * CHUNK * key_size)
    kept = plan.run(CHUNK, step, (heads, key_size, size), value.dtype, initial, values)
    return out, kept
