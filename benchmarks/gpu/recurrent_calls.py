"""Calls of the recurrent ops over a tree, at Qwen3-Next's heads and Mamba's channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastreader.core.tree import PrefixTree
from fastreader.ops.causal_conv import causal_conv
from fastreader.ops.recurrent import ScanPlan, gated_delta_rule, linear_attention, linear_recurrence, selective_scan
from fastreader.ops.recurrent.chains import nearest_ancestors

KEY_HEADS, HEADS, SIZE = 16, 32, 128
CHANNELS, STATES, TAPS = 8192, 16, 4


class Call(NamedTuple):
    """An op by the name of its implementation, with its useful operations and bytes."""

    op: str
    run: Callable[[str], Tensor]
    flops: float
    bytes: float


def recurrent_calls(tree: PrefixTree) -> list[Call]:
    """Return a call of each op, in float32."""
    tokens, device = len(tree), torch.device("cuda")
    plan = ScanPlan(tree.parent, np.zeros(0, dtype=np.int64), device)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device)

    query, key = (torch.nn.functional.normalize(draw(tokens, KEY_HEADS, SIZE), dim=-1) for _ in range(2))
    value, beta = draw(tokens, HEADS, SIZE), draw(tokens, HEADS).sigmoid()
    gate, gates = -draw(tokens, HEADS).abs(), -draw(tokens, HEADS, SIZE).abs()
    rows, decay = draw(tokens, CHANNELS), draw(tokens, CHANNELS).sigmoid()
    entry, transition = draw(tokens, STATES), -draw(CHANNELS, STATES).exp()
    near = torch.from_numpy(nearest_ancestors(tree.parent, TAPS - 1)).to(device)
    weight = draw(CHANNELS, TAPS)
    product = 2.0 * tokens * HEADS * SIZE * SIZE  # of all tokens with a state
    moved = 4.0 * (query.numel() + key.numel() + 2 * value.numel())
    column = 4.0 * rows.numel()
    return [
        Call(
            "gated_delta_rule",
            lambda impl: gated_delta_rule(query, key, value, gate, beta, plan, impl=impl)[0],
            3 * product,
            moved,
        ),
        Call(
            "gated_delta_rule, a gate a channel",
            lambda impl: gated_delta_rule(query, key, value, gates, beta, plan, impl=impl)[0],
            3 * product,
            moved + gates.nbytes,
        ),
        Call(
            "linear_attention",
            lambda impl: linear_attention(query, key, value, gate, plan, impl=impl)[0],
            2 * product,
            moved,
        ),
        Call(
            "selective_scan",
            lambda impl: selective_scan(rows, decay, transition, entry, entry, plan, impl=impl)[0],
            0.0,
            3 * column,
        ),
        Call("linear_recurrence", lambda impl: linear_recurrence(rows, decay, plan, impl=impl)[0], 0.0, 3 * column),
        Call(
            "causal_conv",
            lambda impl: causal_conv(rows, weight, near, check_ancestors=False, impl=impl),
            0.0,
            2 * column,
        ),
    ]
