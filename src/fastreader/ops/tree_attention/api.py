"""tree_attention: attention over a packed prefix tree, whose mask is one integer per key."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops import triton_support
from fastreader.ops.dispatch import SERVED, choose
from fastreader.ops.operands import check_head_values, check_heads, check_indices, check_products
from fastreader.ops.tree_attention import cpu, flash
from fastreader.ops.tree_attention.plan import AttentionContext, AttentionPlan, chunk_ends
from fastreader.ops.tree_attention.reference import tree_attention_reference
from fastreader.ops.tree_attention.tiled import tree_attention_tiled

_OP = "tree_attention"
_MAX_CHUNK = 2**30  # the ends of chunks fit int32
_MAX_FLOAT32 = 512  # larger heads do not fit the shared memory of all GPUs


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
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    input_precision: str | None = None,
    return_lse: bool = False,
    plan: AttentionPlan | None = None,
    impl: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute softmax attention in which query i sees key j exactly when ``j <= query_node[i] < subtree_end[j]``.

    With ``s_ij = scale * <q_i, k_j>``, passed through ``softcap * tanh(s / softcap)`` if a soft cap is given, plus
    ``slope * (key_position_j - query_position_i)`` if slopes are,
    ``out_i = sum_j exp(s_ij - lse_i) v_j`` over visible j and ``lse_i = log(exp(sink) + sum_j exp(s_ij))``.
    Grouped heads: query head h reads key head ``h // (Hq / Hk)``.

    Args:
        query: [Tq, Hq, D], floating; D a multiple of 8 up to 576.
        key: [Tk, Hk, D], same dtype and device; Hq is a multiple of Hk.
        value: [Tk, Hk, Dv]; the kernels take Dv up to 576 (Triton 512).
        subtree_end: int32 [Tk], one past the last descendant of each key in depth-first order.
        query_node: int32 or int64 [Tq], the key whose visible keys each query sees; i itself when None (then
            Tq == Tk). During decoding it is the leaf that a new token continues.
        query_positions: int32 [Tq], depth of each query; needed with a window, a chunk or slopes.
        key_positions: int32 [Tk], depth of each key; needed with a window, a chunk or slopes.
        scale: factor on the scores, usually ``D ** -0.5``.
        window: a key is visible only if query_position - key_position < window (tokens).
        chunk: a key is visible only if key_position // chunk == query_position // chunk, as in Llama 4; up to 2^30
            tokens, without a window and slopes.
        softcap: bound on the scores, as in Gemma 2.
        sinks: floating [Hq], a score of each query head for a key that every query sees, whose value is 0 (attention
            sinks, as in GPT-OSS); -inf for none.
        slopes: floating [Hq], of each query head (ALiBi).
        input_precision: "bf16x3" lets kernels multiply float32 inputs as sums of two bfloat16 terms (three products
            each), with errors near float32's; other implementations multiply in float32. None: always float32.
        return_lse: also return the log-sum-exp.
        plan: `AttentionPlan(subtree_end, query_node, query_positions, key_positions)` of this tree, to share it
            between layers; None makes one. Positions are needed only with a window or a chunk.
        impl: "auto", or one of `IMPLEMENTATIONS` by name, which runs exactly that or raises. "flash" is
            FlashAttention over chains of the tree (`flash`), which "auto" never picks.

    Returns:
        out [Tq, Hq, Dv] in query's dtype, and with `return_lse` also lse [Tq, Hq], float32 (float64 for
        float64 inputs), natural logarithm. A query that sees nothing has output 0 and lse -inf, or its head's sink.

    Raises:
        InputError: if shapes, dtypes or devices do not fit, or an input requires a gradient.
        UnsupportedImplementationError: if `impl` is unknown, or the named one cannot take these inputs here.
    """
    rows, columns, device = query.shape[0], key.shape[0], query.device
    like = None
    if impl == "auto" and not torch.is_grad_enabled():
        dtypes, devices = (query.dtype, key.dtype, value.dtype), (device, key.device, value.device)
        shapes = query.shape[1:], key.shape[1:], value.shape[1:]
        like = (_OP, dtypes, devices, shapes, softcap, input_precision)
    chosen = SERVED.get(like)
    if chosen is None or value.shape[0] != columns:
        check_heads(_OP, query, {"key": key}, {"value": value})
        check_products(_OP, softcap, input_precision, query.dtype)
    check_indices(_OP, "subtree_end", subtree_end, columns, device)
    if query_node is not None:
        check_indices(_OP, "query_node", query_node, rows, device, dtypes=(torch.int32, torch.int64))
    elif rows != columns:
        raise InputError(f"{_OP}: {rows} queries over {columns} keys need a query_node, got None")
    if sinks is not None:
        sinks = check_head_values(_OP, "sinks", sinks, query)
    if slopes is not None:
        slopes = check_head_values(_OP, "slopes", slopes, query)
    if window is not None and window < 1:
        raise InputError(f"{_OP}: window must be at least 1 token, got {window}")
    if chunk is not None and not 1 <= chunk <= _MAX_CHUNK:
        raise InputError(f"{_OP}: chunk must be from 1 to {_MAX_CHUNK} tokens, got {chunk}")
    for other, given in (("window", window), ("slopes", slopes)):
        if chunk is not None and given is not None:
            raise InputError(f"{_OP}: chunk must be None with {other}, got {chunk}")
    for named, given in (("a window needs", window), ("a chunk needs", chunk), ("slopes need", slopes)):
        if given is None:
            continue
        if query_positions is None or key_positions is None:
            raise InputError(f"{_OP}: {named} query_positions and key_positions, got None")
        check_indices(_OP, "query_positions", query_positions, rows, device)
        check_indices(_OP, "key_positions", key_positions, columns, device)
    if chosen is None:
        limits = {"window": window, "chunk": chunk, "softcap": softcap, "sinks": sinks, "slopes": slopes}
        chosen = choose(
            _OP,
            impl,
            query,
            cpu=partial(cpu.why_not, query, key, value),
            triton=partial(_why_not_triton, query, value),
            flash=partial(flash.why_not, query, value, plan, **limits),
        )
        if like is not None:
            SERVED[like] = chosen
    index = torch.int32 if chosen == "triton" else torch.int64
    nodes = torch.arange(rows, dtype=index, device=device) if query_node is None else query_node.to(index)
    if plan is None:
        positions = (None if t is None else t.cpu().numpy() for t in (query_positions, key_positions))
        plan = AttentionPlan(subtree_end.cpu().numpy(), nodes.cpu().numpy(), *positions)
    elif (len(plan.subtree_end), len(plan.query_node)) != (columns, rows):
        raise InputError(
            f"{_OP}: plan is of a tree of {len(plan.subtree_end)} keys and {len(plan.query_node)} queries, "
            f"got {columns} and {rows}"
        )
    if chosen == "flash" and (why := flash.why_not(query, value, plan)) is not None:
        raise UnsupportedImplementationError(f"{_OP}: impl 'flash' cannot run here: {why}")
    if chunk is not None:
        assert query_positions is not None
        window, query_positions, plan = chunk, chunk_ends(query_positions, chunk), plan.chunked(chunk)
    context = AttentionContext(
        query=query,
        key=key,
        value=value,
        subtree_end=subtree_end,
        query_node=nodes,
        query_positions=query_positions,
        key_positions=key_positions,
        plan=plan,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        slopes=slopes,
        input_precision=input_precision,
        return_lse=return_lse,
    )
    if chosen == "triton":
        from fastreader.ops.tree_attention.triton import tree_attention_triton

        out, lse = tree_attention_triton(context)
    else:
        run = {
            "reference": tree_attention_reference,
            "torch": tree_attention_tiled,
            "cpu": cpu.tree_attention_cpu,
            "flash": flash.tree_attention_flash,
        }
        out, lse = run[chosen](context)
    out = out.to(query.dtype)
    return (out, lse) if return_lse else out


def _why_not_triton(query: Tensor, value: Tensor) -> str | None:
    """Return why the Triton kernel cannot take these inputs here, or None if it can."""
    if query.dtype == torch.float32 and query.shape[2] > _MAX_FLOAT32:
        return f"it takes float32 head sizes up to {_MAX_FLOAT32}, got {query.shape[2]}"
    return triton_support.why_not(query, value.shape[2])
