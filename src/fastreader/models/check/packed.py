"""Run the packed pass with the inputs of each layer given, in the reader's arithmetic or with exact products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastreader.core.tree import PrefixTree
from fastreader.models.adapter import TreeModel
from fastreader.models.attention_keys import AttentionParams, TreeKeys
from fastreader.models.check.own import Layers, converted, decoder_layers, watched
from fastreader.models.fused import FusedAttention, FusedLayer, JoinedLinear, UpcastLinear


class Call(NamedTuple):
    """What attention of a layer was called with: parameters, and [tokens, heads, size] of queries, keys and values."""

    params: AttentionParams
    shapes: tuple[torch.Size, torch.Size, torch.Size]


@dataclass
class Packed(Layers):
    """What a packed run found.

    Attributes:
        head_logprobs: the same log-probabilities by the head that generation uses, from all logits.
        calls: what each layer's attention was called with.
    """

    head_logprobs: Tensor | None = None
    calls: dict[int, Call] = field(default_factory=dict)


class _RecordedKeys(TreeKeys):
    """The keys of a packed tree, which record what attention is called with."""

    def __init__(self, tree: PrefixTree, device: torch.device, calls: dict[int, Call]) -> None:
        super().__init__(tree, device)
        self._calls = calls

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """Compute attention of one layer, see `AttentionKeys.attend`."""
        self._calls[layer] = Call(params, (query.shape, key.shape, value.shape))
        return super().attend(layer, query, key, value, params)


@torch.inference_mode()
def run_packed(model: TreeModel, tree: PrefixTree, given: Layers, exact: bool) -> Packed:
    """Run the packed pass on a tree.

    Args:
        model: the model to check.
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
            if isinstance(module, (UpcastLinear, JoinedLinear, FusedLayer)):
                stack.enter_context(module.exact())
        model.products = "exact"
        try:
            yield
        finally:
            model.products = kept


@contextmanager
def short_windows(model: TreeModel, size: int) -> Iterator[None]:
    """Within the block, sliding windows wider than `size` are that wide, in the model's own modules and in the pass.

    A short text never reaches the edge of a window of 512 tokens. A window as long as the context has no edge.
    """
    kept: list[tuple[Any, Any, int]] = []

    def shorten(values: Any, key: Any, value: Any) -> None:
        if isinstance(value, int) and not isinstance(value, bool) and size < value < (model.max_length or value + 1):
            kept.append((values, key, value))
            values[key] = size

    for copy in (model.original, model.model):
        for config in {id(c): c for c in (copy.config, copy.config.get_text_config())}.values():
            shorten(config.__dict__, "sliding_window", config.__dict__.get("sliding_window"))
        for module in copy.modules():
            shorten(module.__dict__, "sliding_window", module.__dict__.get("sliding_window"))
            if isinstance(module, FusedAttention):
                shorten(module.constants, "sliding_window", module.constants.get("sliding_window"))
    for layer, window in enumerate(model.windows):
        if getattr(model.config, "sliding_window", None) is not None:  # otherwise modules hold masks (GPT-Neo)
            shorten(model.windows, layer, window)
    try:
        yield
    finally:
        for values, key, value in reversed(kept):
            values[key] = value
