# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Products of the tokens of a chunk in Triton.

With a gate a head (Gated DeltaNet, arXiv 2412.06464, section 3.3) and G_i = g_1 + ... + g_i:

    P = tril(exp(G_i - G_j) q_i^T k_j),    A = tril(beta_i exp(G_i - G_j) k_i^T k_j, -1),    M = (I + A)^-1 diag(beta)

Mamba-2 (arXiv 2405.21060, section 6) needs P only. Neither depends on the state, so one launch serves all chunks of all
levels. The inverse is computed row by row, by forward substitution: powers of A would cancel each other if keys repeat.

With a gate a channel (Kimi, arXiv 2510.26692, section 3), G_i is a vector and the decay does not leave the sum:

    P = tril(sum_d exp(G_i[d] - G_j[d]) q_i[d] k_j[d]),    A = tril(beta_i sum_d exp(G_i[d] - G_j[d]) k_i[d] k_j[d], -1)

The two factors of a decay apart would overflow, so the exponent is formed for each pair of tokens, a token j at a time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastreader.ops.recurrent.triton_walk import PRECISION, load_rows
from fastreader.ops.triton_support import power_of_2


@triton.jit
def inverse(b_a, length, CHUNK: tl.constexpr):
    """Return (I + A)^-1 [C, C] from the transpose of A, strictly upper triangular, of which `length` columns count."""
    o_c = tl.arange(0, CHUNK)  # [C]
    b_inverse = tl.where(o_c[:, None] == o_c[None, :], 1.0, 0.0)  # [C, C]
    for i in range(1, length):
        b_row = tl.sum(tl.where(o_c[None, :] == i, b_a, 0.0), axis=1)  # [C], row i of A
        b_change = tl.sum(b_row[:, None] * b_inverse, axis=0)  # [C]
        b_inverse = tl.where(o_c[:, None] == i, b_inverse - b_change[None, :], b_inverse)
    return b_inverse


@triton.jit
def inverse_norm(b_squares, epsilon):
    """Return the factor that divides vectors by their norms, from their sums of squares [...]."""
    return 1.0 / tl.sqrt_rn(b_squares + epsilon)


@triton.jit
def pairs_kernel(
    query_ptr,  # [T, Hk, D]
    key_ptr,  # [T, Hk, D]
    gate_ptr,  # [T, Hv] or [T, Hv, D]
    beta_ptr,  # [T, Hv] or None
    score_ptr,  # [T, Hv, C], P
    system_ptr,  # [T, Hv, C], M, or None
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
    CHANNELS: tl.constexpr,
    D: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write the rows of one chunk and one head of values, with a gate a channel if CHANNELS."""
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
        b_query = load_rows(p_query, stride_query_token, o_c, o_d, m_cd)  # [C, D']
        b_key = load_rows(p_key, stride_key_token, o_c, o_d, m_cd)  # [C, D']
        if NORMED:
            b_queries += tl.sum(b_query * b_query, axis=1)
            b_keys += tl.sum(b_key * b_key, axis=1)
        if CHANNELS:
            b_total = tl.cumsum(load_rows(p_gate, stride_gate_token, o_c, o_d, m_cd), axis=0)  # [C, D']
            b_before = tl.zeros([BLOCK_D], tl.float32)  # [D'], G_j
            for j in range(length):
                b_before += tl.load(p_gate + j * stride_gate_token + o_d, mask=m_d, other=0.0).to(tl.float32)
                b_own = tl.load(p_key + j * stride_key_token + o_d, mask=m_d, other=0.0).to(tl.float32)  # [D']
                b_apart = tl.where(o_c[:, None] >= j, b_total - b_before[None, :], float("-inf"))  # [C, D']
                b_decayed = tl.exp(b_apart) * b_own[None, :]  # [C, D']
                b_score, b_like = tl.sum(b_query * b_decayed, axis=1), tl.sum(b_key * b_decayed, axis=1)  # [C]
                b_scores += tl.where(o_c[None, :] == j, b_score[:, None], 0.0)
                b_likeness += tl.where((o_c[:, None] == j) & (o_c[None, :] > j), b_like[None, :], 0.0)
        else:
            b_scores = tl.dot(b_query, tl.trans(b_key), b_scores, input_precision=PRECISION)
            if beta_ptr is not None:
                b_likeness = tl.dot(b_key, tl.trans(b_key), b_likeness, input_precision=PRECISION)
    b_scores *= scale
    if NORMED:
        b_keys = inverse_norm(b_keys, epsilon)
        b_scores *= inverse_norm(b_queries, epsilon)[:, None] * b_keys[None, :]
        b_likeness *= b_keys[:, None] * b_keys[None, :]
    if not CHANNELS:
        b_gate = tl.load(p_gate + o_c * stride_gate_token, mask=m_c, other=0.0).to(tl.float32)  # [C]
        b_total = tl.cumsum(b_gate, axis=0)  # [C]
        b_apart = b_total[:, None] - b_total[None, :]  # [C, C]
        # Masked before the exponential, which would overflow on the other side of the diagonal.
        b_scores *= tl.exp(tl.where(o_c[:, None] >= o_c[None, :], b_apart, float("-inf")))
        b_likeness *= tl.exp(tl.where(o_c[:, None] < o_c[None, :], -b_apart, float("-inf")))  # transposed

    o_pair = o_c[:, None] * (heads * CHUNK) + o_c[None, :]  # [C, C]
    tl.store(score_ptr + row * CHUNK + o_pair, b_scores, mask=m_c[:, None])
    if beta_ptr is not None:
        p_beta = beta_ptr + start * stride_beta_token + head
        b_beta = tl.load(p_beta + o_c * stride_beta_token, mask=m_c, other=0.0).to(tl.float32)  # [C]
        b_system = inverse(b_likeness * b_beta[None, :], length, CHUNK)  # [C, C]
        tl.store(system_ptr + row * CHUNK + o_pair, b_system * b_beta[None, :], mask=m_c[:, None])


def pairs(
    query: Tensor,
    key: Tensor,
    gate: Tensor,
    beta: Tensor | None,
    chunks: Tensor,
    *,
    chunk: int,
    scale: float = 1.0,
    norm_epsilon: float | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return P [T, Hv, chunk], and with `beta` also M, both float32.

    Row t has the pairs of token t with its chunk.

    Args:
        query, key: [T, Hk, D].
        gate: [T, Hv] or [T, Hv, D].
        beta: [T, Hv]. All operands have the values of their last axis next to each other.
        chunks: int32 [M, 2], see `Walks.chunks`.
        chunk: size of chunks.
        scale, norm_epsilon: see `gated_delta_rule`.
    """
    tokens, key_heads, size = query.shape
    heads = gate.shape[1]
    scores = torch.empty((tokens, heads, chunk), dtype=torch.float32, device=query.device)
    system = None if beta is None else torch.empty_like(scores)
    operands = (query, key, gate, beta, scores, system, chunks)
    steps = (*query.stride()[:2], *key.stride()[:2], *gate.stride()[:2], 0 if beta is None else beta.stride(0))
    pairs_kernel[(len(chunks), heads)](
        *operands,
        *steps,
        scale,
        norm_epsilon or 0.0,
        GROUPS=heads // key_heads,
        NORMED=norm_epsilon is not None,
        CHANNELS=gate.dim() == 3,
        D=size,
        **options(size, chunk),
    )
    return scores, system


def options(size: int, chunk: int) -> dict[str, int]:
    """Return the constants and options of a launch for keys of `size`, with one warp, so that no sum waits."""
    block = max(16, min(32, power_of_2(size)))
    return {"CHUNK": chunk, "BLOCK_D": block, "num_warps": 1, "enable_fp_fusion": True}
