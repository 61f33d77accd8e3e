"""The work on each token between matrix products: norm, rotary embedding, gated activation."""

from fastreader.ops.operands import ACTIVATIONS
from fastreader.ops.pointwise.api import gate, rms_norm, rotary

__all__ = ["ACTIVATIONS", "gate", "rms_norm", "rotary"]
