"""A decoder layer before and after attention, one block of rows at a time in one thread."""

from fastreader.ops.decoder_layer.api import HeadNorms, Weight, decoder_layer_in, decoder_layer_out

__all__ = ["HeadNorms", "Weight", "decoder_layer_in", "decoder_layer_out"]
