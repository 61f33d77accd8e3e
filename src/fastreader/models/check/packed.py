"""Run the packed pass with the inputs of each layer given, in the reader's arithmetic or with exact products."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastreader.core.tree import PrefixTree
from fastreader.models.check.own import RecordedLayers, converted, decoder_layers, watched
from fastreader.models.config.windows import Chunk
from fastreader.models.machine.devices import moved
from fastreader.models.passes.packed_keys import AttentionParams, TreeKeys
from fastreader.models.passes.query_temperature import TEMPERATURE
from fastreader.models.rewriting.fused import FusedAttention, FusedEnd, JoinedLinear, UpcastLinear
from fastreader.models.tree_model import TreeModel


class RecordedCall(NamedTuple):
    """What attention of a layer was called with.

    Attributes:
        params: of the scores.
        shapes: [tokens, heads, size] of queries, keys and values.
        lengths: [T, Hq], Euclidean lengths of the queries.
    """

    params: AttentionParams
    shapes: tuple[torch.Size, torch.Size, torch.Size]
    lengths: Tensor


@dataclass
class Packed(RecordedLayers):
    """What a packed run found.

    Attributes:
        head_logprobs: the same log-probabilities by the head that generation uses, from all logits.
        calls: what each layer's attention was called with.
    """

    head_logprobs: Tensor | None = None
    calls: dict[int, RecordedCall] = field(default_factory=dict)


class _RecordedKeys(TreeKeys):
    """The keys of a packed tree, which record what attention is called with."""

    def __init__(self, tree: PrefixTree, device: torch.device, calls: dict[int, RecordedCall]) -> None:
        super().__init__(tree, device)
        self._calls, self._device = calls, device

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """Compute attention of one layer, see `AttentionKeys.attend`."""
        lengths = query.norm(dim=-1).to(self._device)
        kept = replace(params, sinks=moved(params.sinks, self._device), slopes=moved(params.slopes, self._device))
        self._calls[layer] = RecordedCall(kept, (query.shape, key.shape, value.shape), lengths)
        return super().attend(layer, query, key, value, params)


@torch.inference_mode()
def run_packed(model: TreeModel, tree: PrefixTree, given: RecordedLayers, exact: bool) -> Packed:
    """Run the packed pass on a tree.

    Args:
        tree: packed texts.
        given: each layer's input [T, E], and the last layer's output.
        exact: multiply in float32 (float64 if the weights are), whatever the reader's precision.

    Returns:
        Inputs and outputs [T, E], log-probabilities of the tree's pairs in float64.
    """
    layers, found = decoder_layers(model.model, model.name), Packed()
    with ExitStack() as stack:
        head = model.logits
        if exact:
            stack.enter_context(multiplied_exactly(model))
            head = model.logits.exact()
        stack.enter_context(watched(layers, found, given))
        states = model.forward(tree.token_ids, tree.positions, _RecordedKeys(tree, model.device, found.calls))
        states = states[torch.from_numpy(tree.sources).to(model.device)]
        found.logprobs = model.pair_logprobs(states, tree).logprob.double()
        if exact:  # a prepared head would stay in memory
            logits = head(states).double()
            targets = torch.from_numpy(tree.targets).to(model.device)
            found.head_logprobs = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    found.move(model.device)
    for values in (found.inputs, found.outputs):
        values[:] = [value.reshape(-1, value.shape[-1]) for value in values]
    return found


@contextmanager
def multiplied_exactly(model: TreeModel) -> Iterator[None]:
    """Within the block, the packed pass multiplies weights as stored in the type of its activations."""
    kept = model.products
    with ExitStack() as stack:
        if model.why_not_upcast:
            dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
            stack.enter_context(converted(model.model, decoder_layers(model.model, model.name), dtype))
        for module in model.model.modules():
            if isinstance(module, (UpcastLinear, JoinedLinear, FusedEnd)):
                stack.enter_context(module.exact())
        model.products = "exact"
        try:
            yield
        finally:
            model.products = kept


@contextmanager
def short_windows(model: TreeModel, size: int) -> Iterator[None]:
    """Within the block, windows, chunks and steps of a temperature wider than `size` are that wide in both passes.

    They are in the model's own modules and in the packed pass. A short text never reaches the edge of a window of 512
    tokens. A window as long as the context has no edge.
    """
    kept: list[tuple[Any, Any, Any]] = []
    longest = model.max_length or math.inf

    def shorten(values: Any, *keys: Any) -> None:
        for key in keys:
            value = values[key] if isinstance(key, int) else values.get(key)
            length = value.tokens if isinstance(value, Chunk) else value
            edge = longest if key == "sliding_window" or (isinstance(key, int) and length is value) else math.inf
            if isinstance(length, int | float) and not isinstance(length, bool) and size < length < edge:
                kept.append((values, key, value))
                values[key] = Chunk(size) if isinstance(value, Chunk) else size

    for copy in (model.original, model.model):
        for config in {id(c): c for c in (copy.config, copy.config.get_text_config())}.values():
            shorten(vars(config), "sliding_window", "attention_chunk_size")
        for temperature in {id(t): t for m in copy.modules() if (t := getattr(m, TEMPERATURE, None))}.values():
            shorten(vars(temperature), "floor_scale")
        for module in copy.modules():
            shorten(vars(module), "sliding_window", "floor_scale")
            if isinstance(module, FusedAttention):
                shorten(module.constants, "sliding_window")
    held = getattr(model.config, "sliding_window", None) is None  # by masks in the modules (GPT-Neo)
    shorten(model.windows, *(at for at, window in enumerate(model.windows) if isinstance(window, Chunk) or not held))
    try:
        yield
    finally:
        for values, key, value in reversed(kept):
            values[key] = value
