# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Apply a soft cap, slopes and sinks to products of queries and keys, in Triton's attention kernels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def capped(b_s, scale, softcap, SOFTCAP: tl.constexpr):
    """Return products [M, N], scaled and capped if there is a soft cap."""
    if SOFTCAP:
        # tanh by one exponential of a negative number: no overflow on either side.
        b_e = tl.exp2(tl.abs(b_s) * (-2.0 * 1.4426950408889634 * scale / softcap))  # [M, N]
        b_tanh = (1.0 - b_e) / (1.0 + b_e)
        b_s = softcap * tl.where(b_s < 0, -b_tanh, b_tanh)
    return b_s


@triton.jit
def with_slopes(b_s, scale, b_slope, b_key_position, b_query_position, SOFTCAP: tl.constexpr):
    """Return scores [M, N] in nats plus each row's slope times the key's position, counted from the query's."""
    if not SOFTCAP:
        b_s = b_s * scale
    return b_s + b_slope[:, None] * (b_key_position[None, :] - b_query_position[:, None]).to(tl.float32)


@triton.jit
def with_sink(b_acc, b_max_log2, b_sum, b_sink, split):
    """Fold a score of value 0 [M], in nats, into the state of the first split.

    Taken last, so that a sink far above the scores does not push weights below what a half type holds.
    """
    b_sink_log2 = tl.where(split == 0, b_sink * 1.4426950408889634, float("-inf"))  # [M]
    b_new_log2 = tl.maximum(b_max_log2, b_sink_log2)  # [M]
    b_base_log2 = tl.where(b_new_log2 == float("-inf"), 0.0, b_new_log2)  # [M]
    b_shrink = tl.exp2(b_max_log2 - b_base_log2)  # [M]
    b_sum = b_sum * b_shrink + tl.exp2(b_sink_log2 - b_base_log2)
    return b_acc * b_shrink[:, None], b_new_log2, b_sum
