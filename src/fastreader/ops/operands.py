"""Checks of operands that several ops share. Messages name the op, the operand, what was expected and what came."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from fastreader.errors import InputError

ACTIVATIONS = ("silu", "gelu_tanh")
MAX_HEAD_SIZE = 576  # of queries, keys and values: the latents of DeepSeek's attention


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")


def check_operands(
    op: str, operands: Mapping[str, Tensor | None], dtypes: Collection[torch.dtype] | None = None
) -> None:
    """Check that operands are on the device of the first one, and that no operand requires a gradient.

    Each must have one of `dtypes`; None is the dtype of the first operand, an empty collection allows any.
    """
    like, graded = None, torch.is_grad_enabled()
    for name, tensor in operands.items():
        if tensor is None:
            continue
        if like is None:
            first, like, device = name, tensor, tensor.device
            allowed = (like.dtype,) if dtypes is None else dtypes
        if allowed and tensor.dtype not in allowed:
            wanted = " or ".join(map(name_of, dtypes)) if dtypes else f"{name_of(like.dtype)} like {first}"
            raise InputError(f"{op}: {name} must be {wanted}, got {name_of(tensor.dtype)}")
        if tensor.device != device:
            raise InputError(f"{op}: {name} must be on {device} like {first}, got {tensor.device}")
        if graded and tensor.requires_grad:
            raise InputError(f"{op}: {name} requires a gradient, and this op is forward only; use torch.no_grad()")


def check_indices(
    op: str,
    name: str,
    tensor: Tensor,
    length: int | None,
    device: torch.device,
    *,
    dtypes: Collection[torch.dtype] = (torch.int32,),
    below: int | None = None,
) -> None:
    """Check a vector of integers on a device, of any length if None, and in [0, below) if `below` is given."""
    fits = tensor.dim() == 1 and (length is None or len(tensor) == length)
    if tensor.dtype not in dtypes or not fits or tensor.device != device:
        wanted = f"{' or '.join(map(name_of, dtypes))} [{length if length is not None else 'L'}] on {device}"
        got = f"{name_of(tensor.dtype)} {list(tensor.shape)} on {tensor.device}"
        raise InputError(f"{op}: {name} must be {wanted}, got {got}")
    if below is not None and len(tensor) and (int(tensor.min()) < 0 or int(tensor.max()) >= below):
        raise InputError(f"{op}: {name} must be in [0, {below}), got {int(tensor.min())}..{int(tensor.max())}")


def check_heads(op: str, query: Tensor, keys: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Check query [Tq, Hq, D] with parts of keys [Tk, Hk, D] and values [Tk, Hk, Dv], and their heads and sizes."""
    operands = {"query": query, **keys, **values}
    for name, tensor in operands.items():
        if tensor.dim() != 3 or not tensor.is_floating_point():
            got = f"{name_of(tensor.dtype)} {list(tensor.shape)}"
            raise InputError(f"{op}: {name} must be floating [tokens, heads, size], got {got}")
    check_operands(op, operands)
    _, heads, size = query.shape
    if size % 8 or not 8 <= size <= MAX_HEAD_SIZE:
        raise InputError(f"{op}: head size must be a multiple of 8 up to {MAX_HEAD_SIZE}, got {size}")
    first, last = next(iter(keys.values())), next(iter(values.values()))
    key_heads, value_size = first.shape[1], last.shape[2]
    for (key_name, key), (value_name, value) in zip(keys.items(), values.items(), strict=True):
        if key.shape[1:] != (key_heads, size) or value.shape != (len(key), key_heads, value_size):
            raise InputError(
                f"{op}: expected {key_name} [Tk, {key_heads}, {size}] and {value_name} [Tk, {key_heads}, "
                f"{value_size}], got {list(key.shape)} and {list(value.shape)}"
            )
    if heads % key_heads if key_heads else heads:
        raise InputError(f"{op}: query heads must be a multiple of key heads, got {heads} and {key_heads}")


def check_head_values(op: str, name: str, values: Tensor, query: Tensor) -> Tensor:
    """Check one number for each head of query [Tq, Hq, D], and return them in float32 (float64 for a float64 query)."""
    heads = query.shape[1]
    if values.shape != (heads,) or not values.is_floating_point():
        got = f"{name_of(values.dtype)} {list(values.shape)}"
        raise InputError(f"{op}: {name} must be floating [{heads}], one for each query head, got {got}")
    check_operands(op, {"query": query, name: values}, ())
    return values.detach().to(torch.float64 if query.dtype == torch.float64 else torch.float32).contiguous()


def check_products(
    op: str,
    softcap: float | None,
    input_precision: str | None,
    dtype: torch.dtype,
    precisions: tuple[str, ...] = ("bf16x3",),
) -> None:
    """Check a soft cap, positive and finite or None, and how float32 operands are multiplied.

    The latter is None or one of `precisions`; "bf16x3" means sums of two bfloat16 terms.
    """
    if softcap is not None and not (softcap > 0 and math.isfinite(softcap)):
        raise InputError(f"{op}: softcap must be positive and finite, got {softcap}")
    if input_precision not in (None, *precisions):
        allowed = " or ".join(map(repr, (None, *precisions)))
        raise InputError(f"{op}: input_precision must be {allowed}, got {input_precision!r}")
    if input_precision is not None and dtype != torch.float32:
        raise InputError(f"{op}: input_precision {input_precision!r} takes float32 inputs, got {name_of(dtype)}")


def check_activation(op: str, activation: str) -> None:
    """Check the name of an activation."""
    if activation not in ACTIVATIONS:
        raise InputError(f"{op}: activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
