"""Attention of rows that each see keys of their own, read where they lie."""

from fastreader.ops.decode_attention.api import decode_attention, status, why_not_triton
from fastreader.ops.decode_attention.ranges import Ranges

__all__ = ["Ranges", "decode_attention", "status", "why_not_triton"]
