"""Linear layers in three precisions."""

from fastreader.ops.linear.api import linear, linear_add, linear_gated, prepare
from fastreader.ops.linear.blocks import BlockTensor, BlockWeight
from fastreader.ops.linear.cpu import PackedWeight

__all__ = ["BlockTensor", "BlockWeight", "PackedWeight", "linear", "linear_add", "linear_gated", "prepare"]
