# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""What Triton's attention kernels do to products of queries and keys: a soft cap, slopes."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def capped(b_s, scale, softcap, SOFTCAP: tl.constexpr):
    """Return products [M, N] as they are; with a soft cap, scaled and capped."""
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
