"""Recurrences over the paths of a packed tree: linear attention, state spaces and gated linear recurrences."""

from fastreader.ops.recurrent.api import gated_delta_rule, linear_attention, linear_recurrence, selective_scan
from fastreader.ops.recurrent.plan import ScanPlan

__all__ = ["ScanPlan", "gated_delta_rule", "linear_attention", "linear_recurrence", "selective_scan"]
