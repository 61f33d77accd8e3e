"""All decoder layers of one step of writing, in one call."""

from fastreader.ops.decoder_step.api import decoder_step, status
from fastreader.ops.decoder_step.operands import Layer, Layers, RowKeys, Shape

__all__ = ["Layer", "Layers", "RowKeys", "Shape", "decoder_step", "status"]
