"""Linear layers by products of several precisions."""

from fastreader.ops.linear.api import (
    PRODUCTS,
    ROUNDED,
    Products,
    linear,
    linear_add,
    linear_gated,
    linear_rounded,
    prepare,
)
from fastreader.ops.linear.blocks import BlockStack, BlockTensor, BlockWeight
from fastreader.ops.linear.cpu import PackedWeight

__all__ = [
    "PRODUCTS", "ROUNDED", "BlockStack", "BlockTensor", "BlockWeight", "PackedWeight", "Products", "linear", "linear_add",
    "linear_gated", "linear_rounded", "prepare",
]  # fmt: skip
