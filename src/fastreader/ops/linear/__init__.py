"""Linear layers by products of several precisions."""

from fastreader.ops.linear.api import PRODUCTS, Products, linear, linear_add, linear_gated, prepare
from fastreader.ops.linear.blocks import BlockStack, BlockTensor, BlockWeight
from fastreader.ops.linear.cpu import PackedWeight
from fastreader.ops.linear.unpacked import UnpackedTensor
from fastreader.ops.linear.widened import WidenedTensor

__all__ = [
    "PRODUCTS", "BlockStack", "BlockTensor", "BlockWeight", "PackedWeight", "Products", "UnpackedTensor",
    "WidenedTensor", "linear", "linear_add", "linear_gated", "prepare",
]  # fmt: skip
