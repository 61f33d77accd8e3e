"""All decoder layers of one decoding step, in one call."""

from fastreader.ops.decoder_step.api import decoder_step
from fastreader.ops.decoder_step.operands import Layer, Shape, StackedLayers, StepKeys

__all__ = ["Layer", "Shape", "StackedLayers", "StepKeys", "decoder_step"]
