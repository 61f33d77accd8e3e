"""merge_state: the attention over two disjoint sets of keys from the attention over each."""

from __future__ import annotations

import torch
from torch import Tensor

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops.triton_support import require_triton, why_not

IMPLEMENTATIONS = ("auto", "torch", "triton")


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
        InputError: shapes differ, or an input requires a gradient.
        UnsupportedImplementationError: no such implementation.
    """
    if out_a.shape != out_b.shape or lse_a.shape != lse_b.shape or lse_a.shape != out_a.shape[:-1]:
        raise InputError(
            "merge_state: expected two outputs [T, H, Dv] and two lse [T, H] of one shape, "
            f"got {list(out_a.shape)}, {list(lse_a.shape)}, {list(out_b.shape)}, {list(lse_b.shape)}"
        )
    for name, tensor in (("out_a", out_a), ("lse_a", lse_a), ("out_b", out_b), ("lse_b", lse_b)):
        if tensor.requires_grad and torch.is_grad_enabled():
            raise InputError(
                f"merge_state: {name} requires a gradient, and this op is forward only; use torch.no_grad()"
            )
    if impl == "auto":
        impl = "triton" if out_a.is_cuda and why_not(out_a, out_a.shape[-1]) is None else "torch"
    if impl == "triton":
        require_triton("merge_state", out_a, out_a.shape[-1])
        from fastreader.ops.merge_state.triton import merge_state_triton

        return merge_state_triton(out_a, lse_a, out_b, lse_b)
    if impl != "torch":
        raise UnsupportedImplementationError(
            f"merge_state: impl must be one of {', '.join(IMPLEMENTATIONS)}, got {impl!r}"
        )
    lse = torch.logaddexp(lse_a, lse_b)
    base = lse.masked_fill(lse.isneginf(), 0.0)  # exp(-inf - 0) = 0, where exp(-inf - -inf) would be NaN
    weight_a = torch.exp(lse_a - base)[..., None]
    weight_b = torch.exp(lse_b - base)[..., None]
    return (out_a * weight_a + out_b * weight_b).to(out_a.dtype), lse
