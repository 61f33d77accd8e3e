"""What the CPU computes for operators that it has not, or not with a device's types."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _attend(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float | None, offset: int = 0
) -> tuple[Tensor, Tensor]:
    """Return (output, lse) of [..., tokens, size] in float64. A query sees the keys up to its index plus `offset`."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query.double() @ key.double().transpose(-1, -2)) * scale
    if causal:
        rows, columns = torch.arange(query.shape[-2])[:, None], torch.arange(key.shape[-2])
        scores = scores.masked_fill(columns > rows + offset, float("-inf"))
    out = torch.softmax(scores, -1).nan_to_num(0.0) @ value.double()
    return out.to(query.dtype), scores.logsumexp(-1).float()


def _batched(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if bias is None:
        return _attend(query, key, value, causal, scale)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query.double() @ key.double().transpose(-1, -2)) * factor + bias.double()
    return (torch.softmax(scores, -1) @ value.double()).to(query.dtype), scores.logsumexp(-1).float()


def _flash(query, key, value, dropout=0.0, causal=False, debug=False, *, scale=None):
    return _batched(query, key, value, None, causal, scale)


def _efficient(query, key, value, bias, lse, dropout=0.0, causal=False, *, scale=None):
    return _batched(query, key, value, bias, causal, scale)[:1]


def _cudnn(query, key, value, bias, lse, dropout=0.0, causal=False, debug=False, *, scale=None):
    return _batched(query, key, value, bias, causal, scale)[:1]


def _of_lengths(
    query, key, value, query_starts, key_starts, most_queries, most_keys, dropout, causal, debug, *, scale=None, **_
):
    """Attend within sequences that follow one another, [tokens, heads, size]. Queries are the last tokens of keys."""
    out, lse = torch.zeros_like(query), torch.zeros(query.shape[1], query.shape[0])
    groups = query.shape[1] // key.shape[1]
    spans = (itertools.pairwise(starts.tolist()) for starts in (query_starts, key_starts))
    for (begin, end), (first, last) in zip(*spans, strict=True):
        keys, values = (x[first:last].transpose(0, 1).repeat_interleave(groups, 0) for x in (key, value))
        offset = (last - first) - (end - begin)
        rows, lse[:, begin:end] = _attend(query[begin:end].transpose(0, 1), keys, values, causal, scale, offset)
        out[begin:end] = rows.transpose(0, 1)
    return out, lse


def _product(left, right, dtype):
    return (left.float() @ right.float()).to(dtype)


def _sum_and_product(added, left, right, dtype, beta=1, alpha=1):
    return (beta * added.float() + alpha * (left.float() @ right.float())).to(dtype)


OWN: dict[str, Callable[..., Any]] = {
    "aten::mm.dtype": _product,
    "aten::mm.dtype_out": lambda left, right, dtype, out: out.copy_(_product(left, right, torch.float32)),
    "aten::addmm.dtype": _sum_and_product,
    "aten::addmm.dtype_out": lambda added, left, right, dtype, beta=1, alpha=1, out=None: out.copy_(
        _sum_and_product(added, left, right, torch.float32, beta, alpha)
    ),
    "aten::_flash_attention_forward": _of_lengths,
    "aten::_scaled_dot_product_flash_attention": _flash,
    "aten::_scaled_dot_product_efficient_attention": _efficient,
    "aten::_scaled_dot_product_cudnn_attention": _cudnn,
}
