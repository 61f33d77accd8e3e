"""Linear attention with a scalar decay, in chunks (Mamba-2's state space duality, arXiv 2405.21060, section 6).

    S_t = exp(g_t) S_{t-1} + k_t v_t^T,    o_t = S_t^T q_t

Mamba-2 has q = C, k = B, v = dt x and g = dt A; lightning attention (arXiv 2401.04658) and retention (arXiv 2307.08621)
have a constant g. Within a chunk with G_i = g_1 + ... + g_i:

    O = exp(G) Q S_0 + tril(exp(G_i - G_j) q_i^T k_j) V,    S = exp(G_L) S_0 + (exp(G_L - G) K)^T V
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastreader.ops.recurrent.plan import ChunkBatch, ScanPlan

CHUNK = 64  # tokens


def decayed_attention_chunks(
    query: Tensor, key: Tensor, value: Tensor, gate: Tensor, plan: ScanPlan, *, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return outputs and kept states of `linear_attention`, for operands of one floating type."""
    _, heads, size = value.shape
    key_heads, key_size = key.shape[1:]
    out = torch.empty_like(value, memory_format=torch.contiguous_format)

    def step(batch: ChunkBatch, state: Tensor) -> Tensor:
        q, k, v, g = (batch.gather(x).transpose(1, 2) for x in (query, key, value, gate))
        # heads by groups: [N, Hk, H / Hk, L, ...]
        v, g, grouped = (x.reshape(len(x), key_heads, -1, *x.shape[2:]) for x in (v, g, state))
        q, k = q[:, :, None], k[:, :, None]
        total = g.cumsum(-1)
        decay = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
        made = total.exp()[..., None] * (q @ grouped) + ((q @ k.mT) * decay) @ v
        batch.scatter(out, made.flatten(1, 2).transpose(1, 2))
        last = total[..., -1:]
        after: Tensor = grouped * last.exp()[..., None] + k.mT @ (v * (last - total).exp()[..., None])
        return after.flatten(1, 2)

    values = heads * (3 * size + 3 * CHUNK) + 2 * key_heads * key_size
    kept = plan.run(CHUNK, step, (heads, key_size, size), value.dtype, initial, values)
    return out, kept
