"""decoder_step: all decoder layers of one decoding step, on the CPU.

It gives the bits of `decoder_layer_in`, `decode_attention` and `decoder_layer_out`. One call a step instead of
three a layer: with small weights Python and the start of threads take longer than the products.
"""

from __future__ import annotations

from collections.abc import Sized

import torch
from torch import Tensor

from fastreader.errors import InputError
from fastreader.ops.decoder_step import schema as _schema  # noqa: F401  (defines the op)
from fastreader.ops.decoder_step.operands import StackedLayers, StepKeys


def decoder_step(stream: Tensor, layers: StackedLayers, angles: tuple[Tensor, Tensor] | None, keys: StepKeys) -> None:
    """Run the layers over the newest token of B rows, and write its keys and values.

    Args:
        stream: [B, E], float32 of contiguous rows, overwritten.
        layers: the layers.
        angles: cosine and sine, [B, R] each, float32; None for no rotary embedding.
        keys: keys and values of the rows; keys and values of the new token are written to its slots.

    Raises:
        InputError: if the keys do not fit the layers or the rows.
    """
    rows = len(stream)
    of_layers: tuple[Sized, ...] = (keys.keys, keys.values, keys.new_keys, keys.new_values, keys.ranges_of)
    for part in of_layers:
        if len(part) != layers.count:
            raise InputError(
                f"decoder_step: expected keys, values and ranges of {layers.count} layers, got {len(part)}"
            )
    if stream.shape[1] != layers.hidden or len(keys.slots) != rows:
        raise InputError(
            f"decoder_step: expected a stream [B, {layers.hidden}] and B slots, got {list(stream.shape)} and "
            f"{len(keys.slots)}"
        )
    lengths = [len(keys.keys[0]), len(keys.new_keys[0])]
    ranges: list[Tensor] = []
    for of_window in keys.ranges:
        ranges += of_window.tensors(rows, lengths)[:4]
    torch.ops.fastreader.decoder_step_(
        stream,
        *layers.before,
        *(angles if angles is not None and layers.rotates else (None, None)),
        *layers.after,
        keys.keys,
        keys.values,
        keys.new_keys,
        keys.new_values,
        keys.slots,
        ranges,
        keys.ranges_of,
        *layers.scores,
        *layers.layout,
    )
