"""All decoder layers of one decoding step, in one call."""

from fastreader.ops.decoder_step.api import Layer, Shape, StackedLayers, StepKeys, decoder_step

__all__ = ["Layer", "Shape", "StackedLayers", "StepKeys", "decoder_step"]
