"""The recurrences in plain PyTorch, chunk by chunk: all chunks of a level of the tree are one batch.

The gated delta rule with a gate a head (Gated DeltaNet, Yang et al. 2024, arXiv 2412.06464, section 3.3):

    S_t = exp(g_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,    o_t = S_t^T q_t

Within a chunk with G_i = g_1 + ... + g_i, the values that are written solve a unit lower triangular system:

    (I + tril(beta_i exp(G_i - G_j) k_i^T k_j, -1)) U = beta (V - exp(G) K S_0)
    O = exp(G) Q S_0 + tril(exp(G_i - G_j) q_i^T k_j) U,    S = exp(G_L) S_0 + (exp(G_L - G) K)^T U

A gate a channel (Kimi Delta Attention, arXiv 2510.26692, section 3) replaces the products by products of decayed
vectors, sum_d q_i[d] k_j[d] exp(G_i[d] - G_j[d]). The factors exp(-G_j[d]) would overflow, so the exponent is formed
for each pair of tokens, and chunks are short.

Linear attention with a scalar decay (Mamba-2's state space duality, arXiv 2405.21060, section 6) has U = V:

    S_t = exp(g_t) S_{t-1} + k_t v_t^T,    o_t = S_t^T q_t

Mamba-2 has q = C, k = B, v = dt x and g = dt A; lightning attention (arXiv 2401.04658) and retention (arXiv 2307.08621)
have a constant g.

In the selective scan of Mamba (arXiv 2312.00752, algorithm 2) every element of h decays at its own rate, and in the
RG-LRU of Griffin (arXiv 2402.19427, equation 4) every channel. No product of matrices computes several tokens at once,
so these go token by token:

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T,    y_t = h_t C_t
    h_t = a_t h_{t-1} + x_t
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastreader.ops.recurrent.plan import ChunkBatch, ScanPlan

CHUNK, _CHANNEL_CHUNK = 64, 16  # tokens


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
        chunk, values = CHUNK, heads * (4 * key_size + 3 * size + 3 * CHUNK)
    else:
        chunk, values = _CHANNEL_CHUNK, heads * (5 * key_size + 3 * size + 2 * _CHANNEL_CHUNK * key_size)
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


def selective_scan_chunks(
    x: Tensor, dt: Tensor, rate: Tensor, b: Tensor, c: Tensor, plan: ScanPlan, *, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return outputs and kept states of `selective_scan`, for operands of one floating type."""
    size, states = rate.shape
    out = torch.empty_like(x, memory_format=torch.contiguous_format)

    def chunk(batch: ChunkBatch, state: Tensor) -> Tensor:
        inputs, steps, entries, readouts = (batch.gather(rows) for rows in (x, dt, b, c))
        made = torch.empty_like(inputs)
        added = steps * inputs
        for i in range(inputs.shape[1]):
            state = state * (steps[:, i, :, None] * rate).exp_()
            state.addcmul_(added[:, i, :, None], entries[:, i, None])
            made[:, i] = (state @ readouts[:, i, :, None])[..., 0]
        batch.scatter(out, made)
        return state

    kept = plan.run(CHUNK, chunk, (size, states), x.dtype, initial, 4 * size + 2 * states)
    return out, kept


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
