"""decode_attention: attention of rows that each see keys of their own, read where they lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops import extension
from fastreader.ops.decode_attention import schema as _schema  # noqa: F401  (defines the op)
from fastreader.ops.decode_attention.ranges import Ranges
from fastreader.ops.decode_attention.reference import decode_attention_reference
from fastreader.ops.extension import Serving

IMPLEMENTATIONS = ("auto", "reference", "cpu")


def decode_attention(
    query: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    ranges: Ranges,
    *,
    scale: float,
    softcap: float | None = None,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Softmax attention of B rows, each over its own ranges of keys.

    For rows that share few keys, such as texts written after prompts of their own: keys are neither packed nor
    copied. Where many rows share keys, `tree_attention` reads them once for all.

    Args:
        query: [B, Hq, D], floating; D a multiple of 8 up to 256.
        keys: parts [Tk, Hk, D] of query's dtype and device; Hq is a multiple of Hk.
        values: [Tk, Hk, Dv] for each part.
        ranges: which keys each row sees.
        scale: factor on the scores, usually ``D ** -0.5``.
        softcap: bound on the scores, as in Gemma 2.
        impl: "auto", or one of `IMPLEMENTATIONS` by name, which runs exactly that or raises.

    Returns:
        out [B, Hq, Dv] and lse [B, Hq], float32 (float64 for float64 inputs), natural logarithm; a row that sees
        nothing has output 0 and lse -inf. Products are float32 for bfloat16 inputs too.

    Raises:
        InputError: shapes, dtypes, devices or ranges do not fit, or an input requires a gradient.
        UnsupportedImplementationError: no such implementation, or the one named cannot take these inputs here.
    """
    _check(query, keys, values, softcap)
    tensors = ranges.tensors(query.shape[0], [key.shape[0] for key in keys])
    if impl not in IMPLEMENTATIONS:
        raise UnsupportedImplementationError(
            f"decode_attention: impl must be one of {', '.join(IMPLEMENTATIONS)}, got {impl!r}"
        )
    missing = why_not_cpu(query)
    if impl == "cpu" and missing is not None:
        raise UnsupportedImplementationError(f"decode_attention: impl 'cpu' cannot run: {missing}")
    if impl == "reference" or missing is not None:
        return decode_attention_reference(query, keys, values, ranges, scale, softcap)
    out, lse = torch.ops.fastreader.decode_attention(
        query,
        list(keys),
        list(values),
        *tensors,
        scale,
        softcap,
        extension.instruction_set(),
    )
    return out, lse


def why_not_cpu(query: Tensor) -> str | None:
    """Why the C++ kernel cannot take such inputs here, or None when it can."""
    missing = extension.why_missing()
    if missing is not None:
        return missing
    if query.device.type != "cpu":
        return f"the C++ kernel runs on the CPU, the inputs are on {query.device}"
    if query.dtype not in (torch.float32, torch.bfloat16):
        return f"the C++ kernel takes float32 and bfloat16, got {query.dtype}"
    return None


def status() -> list[Serving]:
    """Which implementation `impl="auto"` picks on each kind of device, and why."""
    missing = extension.why_missing()
    served = (
        Serving("cpu", "reference", missing)
        if missing
        else Serving(
            "cpu (float32, bfloat16)", "cpu", f"C++ kernel, up to {extension.best_instruction_set()} on this machine"
        )
    )
    return [served, Serving("other dtypes and devices", "reference", "generation uses tree_attention there")]


def _check(query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], softcap: float | None) -> None:
    if not keys or len(keys) != len(values):
        raise InputError(f"decode_attention: expected as many keys as values, got {len(keys)} and {len(values)}")
    size = query.shape[-1]
    for name, tensor in (("query", query), *(("keys", k) for k in keys), *(("values", v) for v in values)):
        if tensor.dim() != 3 or not tensor.is_floating_point():
            raise InputError(
                f"decode_attention: {name} must be floating [tokens, heads, size], got {tensor.dtype} {list(tensor.shape)}"
            )
        if tensor.dtype != query.dtype or tensor.device != query.device:
            raise InputError(
                f"decode_attention: {name} must be {query.dtype} on {query.device} like query, "
                f"got {tensor.dtype} on {tensor.device}"
            )
        if tensor.requires_grad and torch.is_grad_enabled():
            raise InputError(
                f"decode_attention: {name} requires a gradient, and this op is forward only; use torch.no_grad()"
            )
    if size % 8 or not 8 <= size <= 256 or not 1 <= values[0].shape[2] <= 256:
        raise InputError(
            f"decode_attention: head sizes must be a multiple of 8 up to 256 (values: any up to 256), "
            f"got {size} and {values[0].shape[2]}"
        )
    heads, key_heads = query.shape[1], keys[0].shape[1]
    for key, value in zip(keys, values, strict=True):
        if key.shape[1:] != (key_heads, size) or value.shape != (len(key), key_heads, values[0].shape[2]):
            raise InputError(
                f"decode_attention: expected keys [Tk, {key_heads}, {size}] and values [Tk, {key_heads}, "
                f"{values[0].shape[2]}], got {list(key.shape)} and {list(value.shape)}"
            )
    if heads % key_heads if key_heads else heads:
        raise InputError(f"decode_attention: query heads must be a multiple of key heads, got {heads} and {key_heads}")
    if softcap is not None and not (softcap > 0 and np.isfinite(softcap)):
        raise InputError(f"decode_attention: softcap must be positive and finite, got {softcap}")
