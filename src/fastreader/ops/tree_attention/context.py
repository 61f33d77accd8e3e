"""AttentionContext: one call of tree_attention, as every implementation takes it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fastreader.ops.tree_attention.plan import AttentionPlan


@dataclass(frozen=True, eq=False)
class AttentionContext:
    """The checked arguments of one `tree_attention` call.

    Attributes are the arguments, except that `query_node` (int64 [Tq]) and `plan` are always set. An implementation
    takes a context and returns (out [Tq, Hq, Dv], lse [Tq, Hq]); lse is undefined unless `return_lse`.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    subtree_end: Tensor
    query_node: Tensor
    query_positions: Tensor | None
    key_positions: Tensor | None
    plan: AttentionPlan
    scale: float
    window: int | None = None
    softcap: float | None = None
    input_precision: str | None = None
    return_lse: bool = True

    @property
    def groups(self) -> int:
        """Return the number of query heads per key head, at least 1."""
        return max(self.query.shape[1] // max(self.key.shape[1], 1), 1)
