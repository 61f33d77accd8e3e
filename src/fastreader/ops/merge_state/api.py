"""merge_state: the attention over two disjoint sets of keys from the attention over each."""

from __future__ import annotations

import torch
from torch import Tensor

from fastreader.errors import InputError
from fastreader.ops import triton_support
from fastreader.ops.dispatch import choose
from fastreader.ops.merge_state.reference import merge_reference
from fastreader.ops.operands import check_operands


def merge_state(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor, *, impl: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Join two attention states: ``lse = log(exp(lse_a) + exp(lse_b))``, ``out`` weighted by ``exp(lse_x - lse)``.

    Args:
        out_a, out_b: [T, H, Dv], outputs over disjoint keys.
        lse_a, lse_b: [T, H], natural log-sum-exps; -inf for a state that saw nothing.
        impl: "auto", or one of `IMPLEMENTATIONS` by name, which runs exactly that or raises.

    Returns:
        out [T, H, Dv] in out_a's dtype and lse [T, H] in lse_a's; two empty states give 0 and -inf.

    Raises:
        InputError: if shapes or devices differ, or an input requires a gradient.
        UnsupportedImplementationError: if `impl` is unknown, or the named one cannot run here.
    """
    if out_a.shape != out_b.shape or lse_a.shape != lse_b.shape or lse_a.shape != out_a.shape[:-1]:
        raise InputError(
            "merge_state: expected two outputs [T, H, Dv] and two lse [T, H] of one shape, "
            f"got {list(out_a.shape)}, {list(lse_a.shape)}, {list(out_b.shape)}, {list(lse_b.shape)}"
        )
    check_operands("merge_state", {"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b}, ())
    chosen = choose("merge_state", impl, out_a, triton=lambda: triton_support.why_not(out_a, out_a.shape[-1]))
    if chosen == "triton":
        from fastreader.ops.merge_state.triton import merge_state_triton

        return merge_state_triton(out_a, lse_a, out_b, lse_b)
    if chosen == "reference":
        out, lse = merge_reference(torch.stack([out_a, out_b]), torch.stack([lse_a, lse_b]))
        return out.to(out_a.dtype), lse.to(lse_a.dtype)
    lse = torch.logaddexp(lse_a, lse_b)
    base = lse.masked_fill(lse.isneginf(), 0.0)  # exp(-inf - 0) is 0, exp(-inf - -inf) would be NaN
    weight_a = torch.exp(lse_a - base)[..., None]
    weight_b = torch.exp(lse_b - base)[..., None]
    return (out_a * weight_a + out_b * weight_b).to(out_a.dtype), lse
