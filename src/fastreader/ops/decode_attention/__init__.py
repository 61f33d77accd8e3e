"""Attention of rows that each see different keys, which are not copied."""

from fastreader.ops.decode_attention.api import decode_attention, why_not_triton
from fastreader.ops.decode_attention.ranges import Ranges

__all__ = ["Ranges", "decode_attention", "why_not_triton"]
