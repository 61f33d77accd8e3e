# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Products of the tokens of a chunk in Triton, with a gate a channel (Kimi, arXiv 2510.26692, section 3).

    P = tril(sum_d exp(G_i[d] - G_j[d]) q_i[d] k_j[d]),    M = (I + A)^-1 diag(beta)
    A = tril(beta_i sum_d exp(G_i[d] - G_j[d]) k_i[d] k_j[d], -1)

As in `triton_pairs`, but the decay does not leave the sum, and its two factors apart would overflow. So the exponent is
formed for each pair of tokens, a token j at a time, and chunks are short.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastreader.ops.recurrent.triton_pairs import inverse, inverse_norm, options


@triton.jit
def channel_pairs_kernel(
    query_ptr,  # [T, Hk, D]
    key_ptr,  # [T, Hk, D]
    gate_ptr,  # [T, Hv, D]
    beta_ptr,  # [T, Hv]
    score_ptr,  # [T, Hv, C], P
    system_ptr,  # [T, Hv, C], M
    chunk_ptr,  # [M, 2]
    stride_query_token,
    stride_query_head,
    stride_key_token,
    stride_key_head,
    stride_gate_token,
    stride_gate_head,
    stride_beta_token,
    scale,
    epsilon,
    GROUPS: tl.constexpr,
    NORMED: tl.constexpr,
    D: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write the rows of one chunk and one head of values."""
    chunk, head, heads = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    start, length = tl.load(chunk_ptr + 2 * chunk).to(tl.int64), tl.load(chunk_ptr + 2 * chunk + 1)
    o_c = tl.arange(0, CHUNK)  # [C]
    m_c = o_c < length  # [C]
    p_query = query_ptr + start * stride_query_token + head // GROUPS * stride_query_head
    p_key = key_ptr + start * stride_key_token + head // GROUPS * stride_key_head
    p_gate = gate_ptr + start * stride_gate_token + head * stride_gate_head
    row = start * heads + head  # of the pairs, `heads` of them to the next token

    b_scores = tl.zeros([CHUNK, CHUNK], tl.float32)  # [C, C]
    b_likeness = tl.zeros([CHUNK, CHUNK], tl.float32)  # [C, C], row j has the products of k_j with later keys
    b_queries = tl.zeros([CHUNK], tl.float32)  # [C], sums of squares
    b_keys = tl.zeros([CHUNK], tl.float32)  # [C]
    for first in range(0, D, BLOCK_D):
        o_d = first + tl.arange(0, BLOCK_D)  # [D']
        m_d = o_d < D  # [D']
        m_cd = m_c[:, None] & m_d[None, :]  # [C, D']
        b_query = tl.load(p_query + (o_c[:, None] * stride_query_token + o_d[None, :]), mask=m_cd, other=0.0)
        b_key = tl.load(p_key + (o_c[:, None] * stride_key_token + o_d[None, :]), mask=m_cd, other=0.0)
        b_gate = tl.load(p_gate + (o_c[:, None] * stride_gate_token + o_d[None, :]), mask=m_cd, other=0.0)
        b_query, b_key = b_query.to(tl.float32), b_key.to(tl.float32)  # [C, D']
        b_total = tl.cumsum(b_gate.to(tl.float32), axis=0)  # [C, D']
        if NORMED:
            b_queries += tl.sum(b_query * b_query, axis=1)
            b_keys += tl.sum(b_key * b_key, axis=1)
        b_before = tl.zeros([BLOCK_D], tl.float32)  # [D'], G_j
        for j in range(length):
            b_before += tl.load(p_gate + j * stride_gate_token + o_d, mask=m_d, other=0.0).to(tl.float32)
            b_own = tl.load(p_key + j * stride_key_token + o_d, mask=m_d, other=0.0).to(tl.float32)  # [D']
            b_apart = tl.where(o_c[:, None] >= j, b_total - b_before[None, :], float("-inf"))  # [C, D']
            b_decayed = tl.exp(b_apart) * b_own[None, :]  # [C, D']
            b_score, b_like = tl.sum(b_query * b_decayed, axis=1), tl.sum(b_key * b_decayed, axis=1)  # [C]
            b_scores += tl.where(o_c[None, :] == j, b_score[:, None], 0.0)
            b_likeness += tl.where((o_c[:, None] == j) & (o_c[None, :] > j), b_like[None, :], 0.0)
    b_scores *= scale
    if NORMED:
        b_keys = inverse_norm(b_keys, epsilon)
        b_scores *= inverse_norm(b_queries, epsilon)[:, None] * b_keys[None, :]
        b_likeness *= b_keys[:, None] * b_keys[None, :]

    o_pair = o_c[:, None] * (heads * CHUNK) + o_c[None, :]  # [C, C]
    tl.store(score_ptr + row * CHUNK + o_pair, b_scores, mask=m_c[:, None])
    p_beta = beta_ptr + start * stride_beta_token + head
    b_beta = tl.load(p_beta + o_c * stride_beta_token, mask=m_c, other=0.0).to(tl.float32)  # [C]
    b_system = inverse(b_likeness * b_beta[None, :], length, CHUNK)  # [C, C]
    tl.store(system_ptr + row * CHUNK + o_pair, b_system * b_beta[None, :], mask=m_c[:, None])


def channel_pairs(
    query: Tensor,
    key: Tensor,
    gate: Tensor,
    beta: Tensor,
    chunks: Tensor,
    chunk: int,
    scale: float,
    norm_epsilon: float | None,
) -> tuple[Tensor, Tensor]:
    """Return P and M [T, Hv, chunk]; arguments are those of `triton_pairs.pairs`, gate [T, Hv, D]."""
    tokens, key_heads, size = query.shape
    heads = gate.shape[1]
    scores = torch.empty((tokens, heads, chunk), dtype=torch.float32, device=query.device)
    system = torch.empty_like(scores)
    channel_pairs_kernel[(len(chunks), heads)](
        *(query, key, gate, beta, scores, system, chunks, *query.stride()[:2], *key.stride()[:2], *gate.stride()[:2]),
        *(beta.stride(0), scale, norm_epsilon or 0.0, heads // key_heads, norm_epsilon is not None, size),
        **options(size, chunk),
    )
    return scores, system
