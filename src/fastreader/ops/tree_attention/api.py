"""tree_attention: attention over a packed prefix tree, with the mask given by one integer a key."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops import extension
from fastreader.ops.extension import Serving
from fastreader.ops.tree_attention import cpu
from fastreader.ops.tree_attention.plan import AttentionPlan
from fastreader.ops.tree_attention.reference import tree_attention_reference
from fastreader.ops.tree_attention.tiled import tree_attention_tiled
from fastreader.ops.triton_support import cuda_serving, require_triton, why_not

IMPLEMENTATIONS = ("auto", "reference", "torch", "cpu", "triton")


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    subtree_end: Tensor,
    *,
    query_node: Tensor | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    split: bool = False,
    return_lse: bool = False,
    plan: AttentionPlan | None = None,
    impl: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Softmax attention in which query i sees key j exactly when ``j <= query_node[i] < subtree_end[j]``.

    With ``s_ij = scale * <q_i, k_j>`` (passed through ``softcap * tanh(s / softcap)`` where a soft cap is
    given), ``out_i = sum_j exp(s_ij - lse_i) v_j`` over visible j and ``lse_i = log sum_j exp(s_ij)``.
    Grouped heads: query head h reads key head ``h // (Hq / Hk)``.

    Args:
        query: [Tq, Hq, D], floating; D a multiple of 8 up to 256.
        key: [Tk, Hk, D], same dtype and device; Hq is a multiple of Hk.
        value: [Tk, Hk, Dv].
        subtree_end: int32 [Tk], one past the last descendant of each key in depth-first order.
        query_node: int32 or int64 [Tq], the key in whose place each query stands; i itself when None (then
            Tq == Tk). During decoding it is the leaf that a new token continues.
        query_positions: int32 [Tq], depth of each query; needed with a window.
        key_positions: int32 [Tk], depth of each key; needed with a window.
        scale: factor on the scores, usually ``D ** -0.5``.
        window: a key is visible only when query_position - key_position < window (tokens).
        softcap: bound on the scores, as in Gemma 2.
        split: multiply float32 inputs as sums of two bfloat16 terms (three products each) where a kernel has
            that, with errors near float32's; everywhere else they are multiplied in float32.
        return_lse: also return the log-sum-exp.
        plan: `AttentionPlan(subtree_end, query_node, query_positions, key_positions)` of this tree, to share it between
            layers; made here when None. Positions are needed only with a window.
        impl: "auto", or one of `IMPLEMENTATIONS` by name, which runs exactly that or raises; see `status`.

    Returns:
        out [Tq, Hq, Dv] in query's dtype, and with `return_lse` also lse [Tq, Hq], float32 (float64 for
        float64 inputs), natural logarithm. A query that sees nothing has output 0 and lse -inf.

    Raises:
        InputError: shapes, dtypes or devices do not fit, or an input requires a gradient.
        UnsupportedImplementationError: no such implementation, or the one named cannot take these inputs here.
    """
    _check(query, key, value, subtree_end, query_node, query_positions, key_positions, window, softcap, split)
    if impl == "auto" and query.is_cuda and why_not(query, value.shape[2]) is None:
        impl = "triton"
    if impl == "triton":
        require_triton("tree_attention", query, value.shape[2])
    rows = query.shape[0]
    places = torch.arange(rows, device=query.device) if query_node is None else query_node.to(torch.int64)
    if impl not in IMPLEMENTATIONS:
        raise UnsupportedImplementationError(
            f"tree_attention: impl must be one of {', '.join(IMPLEMENTATIONS)}, got {impl!r}"
        )
    if impl == "reference":
        out, lse = tree_attention_reference(
            query, key, value, subtree_end, places, query_positions, key_positions, scale, window, softcap
        )
        return (out.to(query.dtype), lse) if return_lse else out.to(query.dtype)
    plan = plan or _plan(subtree_end, None if query_node is None else places, query_positions, key_positions)
    _check_plan(plan, subtree_end, rows)
    if impl == "triton":
        from fastreader.ops.tree_attention.triton import tree_attention_triton

        out, maybe_lse = tree_attention_triton(
            query,
            key,
            value,
            subtree_end,
            places,
            query_positions,
            key_positions,
            scale,
            window,
            softcap,
            plan,
            return_lse,
        )
        return out if maybe_lse is None else (out, maybe_lse)
    why_not_cpu = cpu.why_not(query, key, value) if impl in ("auto", "cpu") else None
    if impl == "cpu" and why_not_cpu is not None:
        raise UnsupportedImplementationError(f"tree_attention: impl 'cpu' cannot run: {why_not_cpu}")
    if impl == "torch" or why_not_cpu is not None:
        out, maybe_lse = tree_attention_tiled(
            query,
            key,
            value,
            subtree_end,
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
        return out, maybe_lse
    out, lse = cpu.tree_attention_cpu(
        query,
        key,
        value,
        places,
        query_positions,
        key_positions,
        scale,
        window,
        softcap,
        split,
        plan,
        return_lse,
    )
    return (out, lse) if return_lse else out


def status() -> list[Serving]:
    """Which implementation `impl="auto"` picks on each kind of device, and why."""
    missing = extension.why_missing()
    if missing is not None:
        served = Serving("cpu", "torch", missing)
    else:
        served = Serving(
            "cpu (float32, bfloat16)", "cpu", f"C++ kernels, up to {extension.best_instruction_set()} on this machine"
        )
    return [served, cuda_serving(), Serving("other dtypes and devices", "torch", "no kernel takes them")]


def _plan(
    subtree_end: Tensor, places: Tensor | None, query_positions: Tensor | None, key_positions: Tensor | None
) -> AttentionPlan:
    return AttentionPlan(
        subtree_end.cpu().numpy(),
        None if places is None else places.cpu().numpy(),
        None if query_positions is None else query_positions.cpu().numpy(),
        None if key_positions is None else key_positions.cpu().numpy(),
    )


def _check_plan(plan: AttentionPlan, subtree_end: Tensor, rows: int) -> None:
    if len(plan.subtree_end) != len(subtree_end) or len(plan.query_node) != rows:
        raise InputError(
            f"tree_attention: plan is of a tree of {len(plan.subtree_end)} keys and {len(plan.query_node)} queries, "
            f"got {len(subtree_end)} and {rows}"
        )


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    subtree_end: Tensor,
    query_node: Tensor | None,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
    window: int | None,
    softcap: float | None,
    split: bool,
) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 3 or not tensor.is_floating_point():
            raise InputError(
                f"tree_attention: {name} must be floating [tokens, heads, size], "
                f"got {tensor.dtype} {list(tensor.shape)}"
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
    if split and query.dtype != torch.float32:
        raise InputError(f"tree_attention: split takes float32 inputs, got {query.dtype}")
    rows, heads, size = query.shape
    columns, key_heads, _ = key.shape
    if size % 8 or not 8 <= size <= 256 or key.shape[2] != size:
        raise InputError(
            f"tree_attention: head size must be a multiple of 8 up to 256, the same in query and key, "
            f"got {size} and {key.shape[2]}"
        )
    if value.shape[:2] != key.shape[:2] or (heads % key_heads if key_heads else heads):
        raise InputError(
            f"tree_attention: expected value [{columns}, {key_heads}, Dv] and query heads a multiple of key heads, "
            f"got value {list(value.shape)}, {heads} query heads and {key_heads} key heads"
        )
    _check_index("subtree_end", subtree_end, columns, query.device, (torch.int32,))
    if query_node is None and rows != columns:
        raise InputError(f"tree_attention: {rows} queries over {columns} keys need an query_node each, got None")
    if query_node is not None:
        _check_index("query_node", query_node, rows, query.device, (torch.int32, torch.int64))
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
