"""The gated delta rule in chunks, with a gate a head or a gate a channel.

A gate a head (Gated DeltaNet, Yang et al. 2024, arXiv 2412.06464, section 3.3):

    S_t = exp(g_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,    o_t = S_t^T q_t

Within a chunk with G_i = g_1 + ... + g_i, the values that are written solve a unit lower triangular system:

    (I + tril(beta_i exp(G_i - G_j) k_i^T k_j, -1)) U = beta (V - exp(G) K S_0)
    O = exp(G) Q S_0 + tril(exp(G_i - G_j) q_i^T k_j) U,    S = exp(G_L) S_0 + (exp(G_L - G) K)^T U

A gate a channel (Kimi Delta Attention, arXiv 2510.26692, section 3) replaces the products by products of decayed
vectors, sum_d q_i[d] k_j[d] exp(G_i[d] - G_j[d]). The factors exp(-G_j[d]) would overflow, so the exponent is formed
for each pair of tokens, and chunks are short.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastreader.ops.recurrent.plan import ChunkBatch, ScanPlan

HEAD_CHUNK, CHANNEL_CHUNK = 64, 16  # tokens


def delta_rule_chunks(
    query: Tensor, key: Tensor, value: Tensor, gate: Tensor, beta: Tensor, plan: ScanPlan, *, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return outputs and kept states of `gated_delta_rule`, for operands of one floating type."""
    _, heads, size = value.shape
    groups, key_size = heads // key.shape[1], key.shape[2]
    out = torch.empty_like(value, memory_format=torch.contiguous_format)
    products = _head_products if gate.dim() == 2 else _channel_products

    def step(batch: ChunkBatch, state: Tensor) -> Tensor:
        q, k, v, b, g = (batch.gather(x).transpose(1, 2) for x in (query, key, value, beta, gate))
        q, k = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (q, k))  # [N, H, L, D]
        b = b[..., None]
        total, system, scores = products(q, k, b, g)
        grown = total.exp()
        target = v * b - (k * b * grown) @ state
        written = torch.linalg.solve_triangular(system, target, upper=False, unitriangular=True)
        batch.scatter(out, ((q * grown) @ state + scores @ written).transpose(1, 2))
        last = total[..., -1:, :]
        after: Tensor = state * last.exp().mT + (k * (last - total).exp()).mT @ written
        return after

    if gate.dim() == 2:
        chunk, values = HEAD_CHUNK, heads * (4 * key_size + 3 * size + 3 * HEAD_CHUNK)
    else:
        chunk, values = CHANNEL_CHUNK, heads * (5 * key_size + 3 * size + 2 * CHANNEL_CHUNK * key_size)
    return out, plan.run(chunk, step, (heads, key_size, size), value.dtype, initial, values)


def _head_products(q: Tensor, k: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return G [N, H, L, 1], the system and the scores [N, H, L, L] for a gate a head."""
    total = g.cumsum(-1)
    decay = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    return total[..., None], ((k * b) @ k.mT) * decay, (q @ k.mT) * decay


def _channel_products(q: Tensor, k: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return G [N, H, L, D], the system and the scores [N, H, L, L] for a gate a channel."""
    total, length = g.cumsum(-2), k.shape[-2]
    later = torch.ones(length, length, dtype=torch.bool, device=k.device).triu(1)[..., None]
    pairs = (total[..., :, None, :] - total[..., None, :, :]).masked_fill_(later, -torch.inf).exp_()
    pairs.mul_(k[..., None, :, :])  # [N, H, L, L, D]
    return total, (pairs @ k[..., None])[..., 0] * b, (pairs @ q[..., None])[..., 0]
