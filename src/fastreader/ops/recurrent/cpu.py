"""The C++ kernel of linear attention, with and without the delta rule, token by token along whole chains."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastreader.ops import extension
from fastreader.ops.library import define
from fastreader.ops.recurrent.plan import ScanPlan

MAX_SIZE = 4096  # of keys and values, and number of heads


@define(
    "scan_chains(Tensor query, Tensor key, Tensor value, Tensor gate, Tensor? beta, Tensor? initial, Tensor chains, "
    "int[] levels, int rows, float scale, float? epsilon, str isa) -> (Tensor, Tensor)"
)
def _scan(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return value.new_empty(value.shape), value.new_empty((others[5], value.shape[1], query.shape[2], value.shape[2]))


def scan_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gate: Tensor,
    beta: Tensor | None,
    plan: ScanPlan,
    *,
    initial: Tensor | None,
    scale: float = 1.0,
    norm_epsilon: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return outputs and kept states of `gated_delta_rule` in float32, or of `linear_attention` if beta is None."""
    walks = plan.walks
    levels = [number for level in walks.levels for number in level]
    before = None if initial is None else initial.float()
    options = len(plan.keep), scale, norm_epsilon, extension.instruction_set()
    out, kept = torch.ops.fastreader.scan_chains(query, key, value, gate, beta, before, walks.table, levels, *options)
    return out, kept if walks.repeats is None else kept[walks.repeats]
