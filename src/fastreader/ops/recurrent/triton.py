"""The recurrences in Triton, by the names of their ops."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fastreader.ops.recurrent.triton_chunks import gated_delta_rule_triton, linear_attention_triton
from fastreader.ops.recurrent.triton_linear_recurrence import linear_recurrence_triton
from fastreader.ops.recurrent.triton_selective_scan import selective_scan_triton

# Each takes the operands of its op in order, of types that may differ, the plan and initial states.
SCANS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "gated_delta_rule": gated_delta_rule_triton,
    "linear_attention": linear_attention_triton,
    "linear_recurrence": linear_recurrence_triton,
    "selective_scan": selective_scan_triton,
}
