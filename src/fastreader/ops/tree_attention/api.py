"""tree_attention: attention over a packed prefix tree, with the mask given by one integer a key."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops.tree_attention.plan import AttentionPlan
from fastreader.ops.tree_attention.reference import tree_attention_reference
from fastreader.ops.tree_attention.tiled import tree_attention_tiled
from fastreader.ops.triton_support import require_triton, why_not

IMPLEMENTATIONS = ("auto", "reference", "torch", "triton")


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    until: Tensor,
    *,
    anchor: Tensor | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
    plan: AttentionPlan | None = None,
    impl: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Softmax attention in which query i sees key j exactly when ``j <= anchor[i] < until[j]``.

    With ``s_ij = scale * <q_i, k_j>`` (passed through ``softcap * tanh(s / softcap)`` where a soft cap is
    given), ``out_i = sum_j exp(s_ij - lse_i) v_j`` over visible j and ``lse_i = log sum_j exp(s_ij)``.
    Grouped heads: query head h reads key head ``h // (Hq / Hk)``.

    Args:
        query: [Tq, Hq, D], floating; D a multiple of 8 up to 256.
        key: [Tk, Hk, D], same dtype and device; Hq is a multiple of Hk.
        value: [Tk, Hk, Dv].
        until: int32 [Tk], one past the last descendant of each key in depth-first order.
        anchor: int32 or int64 [Tq], the key in whose place each query stands; i itself when None (then
            Tq == Tk). During decoding it is the leaf that a new token continues.
        query_positions: int32 [Tq], depth of each query; needed with a window.
        key_positions: int32 [Tk], depth of each key; needed with a window.
        scale: factor on the scores, usually ``D ** -0.5``.
        window: a key is visible only when query_position - key_position < window (tokens).
        softcap: bound on the scores, as in Gemma 2.
        return_lse: also return the log-sum-exp.
        plan: `AttentionPlan(until, anchor)` of this tree, to share it between layers; made here when None.
        impl: "auto", or one of `IMPLEMENTATIONS` by name, which runs exactly that or raises.

    Returns:
        out [Tq, Hq, Dv] in query's dtype, and with `return_lse` also lse [Tq, Hq], float32 (float64 for
        float64 inputs), natural logarithm. A query that sees nothing has output 0 and lse -inf.

    Raises:
        InputError: shapes, dtypes or devices do not fit, or an input requires a gradient.
        UnsupportedImplementationError: no such implementation.
    """
    _check(query, key, value, until, anchor, query_positions, key_positions, window, softcap)
    if impl == "auto" and query.is_cuda and why_not(query) is None:
        impl = "triton"
    rows = query.shape[0]
    places = torch.arange(rows, device=query.device) if anchor is None else anchor.to(torch.int64)
    if impl == "reference":
        out, lse = tree_attention_reference(
            query, key, value, until, places, query_positions, key_positions, scale, window, softcap
        )
        out = out.to(query.dtype)
    elif impl in ("auto", "torch"):
        plan = plan or AttentionPlan(until.cpu().numpy(), None if anchor is None else places.cpu().numpy())
        _check_plan(plan, until, rows)
        out, maybe_lse = tree_attention_tiled(
            query,
            key,
            value,
            until,
            places,
            query_positions,
            key_positions,
            scale,
            window,
            softcap,
            plan.tiles,
            return_lse,
        )
        if not return_lse:
            return out
        assert maybe_lse is not None
        lse = maybe_lse
    elif impl == "triton":
        require_triton("tree_attention", query)
        from fastreader.ops.tree_attention.triton import tree_attention_triton

        plan = plan or _make_plan(until, anchor, query_positions, key_positions)
        _check_plan(plan, until, rows)
        out, maybe_lse = tree_attention_triton(
            query,
            key,
            value,
            until,
            places,
            query_positions,
            key_positions,
            scale,
            window,
            softcap,
            plan,
            return_lse,
        )
        if maybe_lse is None:
            return out
        lse = maybe_lse
    else:
        raise UnsupportedImplementationError(
            f"tree_attention: impl must be one of {', '.join(IMPLEMENTATIONS)}, got {impl!r}"
        )
    return (out, lse) if return_lse else out


def _make_plan(
    until: Tensor, anchor: Tensor | None, query_positions: Tensor | None, key_positions: Tensor | None
) -> AttentionPlan:
    def on_host(tensor: Tensor | None) -> np.ndarray | None:
        return None if tensor is None else tensor.cpu().numpy()

    return AttentionPlan(until.cpu().numpy(), on_host(anchor), on_host(query_positions), on_host(key_positions))


def _check_plan(plan: AttentionPlan, until: Tensor, rows: int) -> None:
    if len(plan.until) != len(until) or len(plan.anchor) != rows:
        raise InputError(
            f"tree_attention: plan is of a tree of {len(plan.until)} keys and {len(plan.anchor)} queries, "
            f"got {len(until)} and {rows}"
        )


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    until: Tensor,
    anchor: Tensor | None,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
    window: int | None,
    softcap: float | None,
) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 3 or not tensor.is_floating_point():
            raise InputError(
                f"tree_attention: {name} must be floating [tokens, heads, size], got {tensor.dtype} {list(tensor.shape)}"
            )
        if tensor.dtype != query.dtype or tensor.device != query.device:
            raise InputError(
                f"tree_attention: {name} must be {query.dtype} on {query.device} like query, "
                f"got {tensor.dtype} on {tensor.device}"
            )
        if tensor.requires_grad and torch.is_grad_enabled():
            raise InputError(
                f"tree_attention: {name} requires a gradient, and this op is forward only; use torch.no_grad()"
            )
    rows, heads, size = query.shape
    columns, key_heads, _ = key.shape
    if size % 8 or not 8 <= size <= 256 or key.shape[2] != size:
        raise InputError(
            f"tree_attention: head size must be a multiple of 8 up to 256, the same in query and key, "
            f"got {size} and {key.shape[2]}"
        )
    if value.shape[:2] != key.shape[:2] or heads % max(key_heads, 1):
        raise InputError(
            f"tree_attention: expected value [{columns}, {key_heads}, Dv] and query heads a multiple of key heads, "
            f"got value {list(value.shape)}, {heads} query heads and {key_heads} key heads"
        )
    _check_index("until", until, columns, query.device, (torch.int32,))
    if anchor is None and rows != columns:
        raise InputError(f"tree_attention: {rows} queries over {columns} keys need an anchor each, got None")
    if anchor is not None:
        _check_index("anchor", anchor, rows, query.device, (torch.int32, torch.int64))
    if window is not None:
        if window < 1:
            raise InputError(f"tree_attention: window must be at least 1 token, got {window}")
        if query_positions is None or key_positions is None:
            raise InputError("tree_attention: a window needs query_positions and key_positions, got None")
        _check_index("query_positions", query_positions, rows, query.device, (torch.int32,))
        _check_index("key_positions", key_positions, columns, query.device, (torch.int32,))
    if softcap is not None and not (softcap > 0 and np.isfinite(softcap)):
        raise InputError(f"tree_attention: softcap must be positive and finite, got {softcap}")


def _check_index(name: str, tensor: Tensor, length: int, device: torch.device, dtypes: tuple[torch.dtype, ...]) -> None:
    if tensor.dtype not in dtypes or tuple(tensor.shape) != (length,) or tensor.device != device:
        allowed = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise InputError(
            f"tree_attention: {name} must be {allowed} [{length}] on {device}, "
            f"got {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} on {tensor.device}"
        )
