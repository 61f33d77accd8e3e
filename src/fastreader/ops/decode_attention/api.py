"""decode_attention: attention of rows that each see different keys, which are not copied."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastreader.errors import InputError
from fastreader.ops import extension, triton_support
from fastreader.ops.decode_attention.ranges import Ranges
from fastreader.ops.decode_attention.reference import decode_attention_reference
from fastreader.ops.dispatch import choose
from fastreader.ops.operands import MAX_HEAD_SIZE, check_head_values, check_heads, check_indices, check_products

_OP = "decode_attention"
_MOST_PARTS = 2  # of keys, in the Triton kernel: prompts and new tokens


def decode_attention(
    query: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    ranges: Ranges,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    positions: Tensor | None = None,
    window: int | None = None,
    chunk: int | None = None,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute softmax attention of B rows, each over its own ranges of keys.

    It serves rows that share few keys, such as continuations of different prompts: keys are neither packed nor
    copied. If many rows share keys, `tree_attention` reads them once for all.

    Args:
        query: [B, Hq, D], floating; D a multiple of 8 up to 576.
        keys: parts [Tk, Hk, D] of query's dtype and device; Hq is a multiple of Hk.
        values: [Tk, Hk, Dv] for each part, Dv up to 576.
        ranges: the keys that each row sees; with slopes or positions they need offsets.
        scale: factor on the scores, usually ``D ** -0.5``.
        softcap: bound on the scores, as in Gemma 2.
        sinks, slopes: floating [Hq], see `tree_attention`.
        positions: int32 [B] on query's device, position of each row; offsets then count from position 0, and a row
            sees only the keys of its ranges up to its own position, none below 0. So the ranges of a text that is being
            generated can hold keys to come. None: a row sees all its keys.
        window, chunk: see `tree_attention`, with positions only.
        impl: "auto", or one of `IMPLEMENTATIONS` by name, which runs exactly that or raises.

    Returns:
        out [B, Hq, Dv] and lse [B, Hq], float32 (float64 for float64 inputs), natural logarithm; a row that sees
        nothing has output 0 and lse -inf, or its head's sink. Products are float32 for bfloat16 inputs too.

    Raises:
        InputError: if shapes, dtypes, devices or ranges do not fit, or an input requires a gradient.
        UnsupportedImplementationError: if `impl` is unknown, or the named one cannot take these inputs here.
    """
    if not keys or len(keys) != len(values):
        raise InputError(f"{_OP}: expected as many keys as values, got {len(keys)} and {len(values)}")
    named_keys, named_values, lengths = {}, {}, []
    for i, (key, value) in enumerate(zip(keys, values, strict=True)):
        named_keys[f"keys[{i}]"], named_values[f"values[{i}]"] = key, value
        lengths.append(key.shape[0])
    check_heads(_OP, query, named_keys, named_values)
    if not 1 <= values[0].shape[2] <= MAX_HEAD_SIZE:
        raise InputError(f"{_OP}: value size must be from 1 to {MAX_HEAD_SIZE}, got {values[0].shape[2]}")
    check_products(_OP, softcap, None, query.dtype)
    if sinks is not None:
        sinks = check_head_values(_OP, "sinks", sinks, query)
    if slopes is not None:
        slopes = check_head_values(_OP, "slopes", slopes, query)
    for named, given in (("slopes", slopes), ("positions", positions)):
        if given is not None and ranges.offset is None:
            raise InputError(f"{_OP}: {named} need ranges with offsets, got None")
    if positions is not None:
        check_indices(_OP, "positions", positions, query.shape[0], query.device)
    for named, size in (("window", window), ("chunk", chunk)):
        if size is not None and (positions is None or size < 1):
            expected = "positions" if positions is None else "at least 1 token"
            raise InputError(f"{_OP}: {named} needs {expected}, got {None if positions is None else size}")
    if window is not None and chunk is not None:
        raise InputError(f"{_OP}: chunk must be None with window, got {chunk}")
    tables = ranges.tensors(query.shape[0], lengths, query.device)
    chosen = choose(
        _OP,
        impl,
        query,
        cpu=partial(_why_not_cpu, query, positions),
        triton=partial(why_not_triton, query, keys, values),
        torch=False,
    )
    if chosen == "cpu":
        row_ptr, part, start, stop, *offset = tables
        operands = query, list(keys), list(values), row_ptr, part, start, stop, offset[0] if offset else None
        out, lse = torch.ops.fastreader.decode_attention(
            *operands, scale, softcap, sinks, slopes, extension.instruction_set()
        )
        return out, lse
    limits: dict[str, Any] = {"window": window, "chunk": chunk, "softcap": softcap, "sinks": sinks, "slopes": slopes}
    if chosen == "reference":
        return decode_attention_reference(query, keys, values, ranges, scale, positions=positions, **limits)
    from fastreader.ops.decode_attention.triton import decode_attention_triton

    return decode_attention_triton(
        query,
        list(keys),
        list(values),
        tables,
        longest=ranges.longest,
        scale=scale,
        positions=positions,
        **limits,
    )


def why_not_triton(query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> str | None:
    """Return why the Triton kernel cannot take these operands here, or None if it can."""
    if len(keys) > _MOST_PARTS:
        return f"it takes up to {_MOST_PARTS} parts of keys, got {len(keys)}"
    return triton_support.why_not(query, max(query.shape[2], values[0].shape[2]))


def _why_not_cpu(query: Tensor, positions: Tensor | None) -> str | None:
    if positions is not None:
        return "the C++ kernel takes no positions"
    return extension.why_not(query)
