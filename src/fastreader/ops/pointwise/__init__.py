"""What happens to each token alone between the matrix products: norm, rotary embedding, gated activation."""

from fastreader.ops.pointwise.api import ACTIVATIONS, gate, rms_norm, rotary, status

__all__ = ["ACTIVATIONS", "gate", "rms_norm", "rotary", "status"]
