"""Run the packed pass with the inputs of each layer given, in the reader's arithmetic or with exact products."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fastreader.core.tree import IntArray, PrefixTree
from fastreader.models.check.own import RecordedLayers, converted, watched
from fastreader.models.config.windows import Chunk
from fastreader.models.machine.devices import moved
from fastreader.models.passes.decode_keys import DecodeKeys
from fastreader.models.passes.key_values import KeyValues
from fastreader.models.passes.packed_keys import AttentionParams, TreeKeys
from fastreader.models.passes.query_temperature import TEMPERATURE
from fastreader.models.passes.recurrent_states import RecurrentStates
from fastreader.models.rewriting import surgery
from fastreader.models.rewriting.fused import FusedAttention, FusedEnd, JoinedLinear, UpcastLinear
from fastreader.models.rewriting.layers import decoder_layers, passed_through
from fastreader.models.tree_model import TreeModel

_ROUNDED = 0.01  # how much a difference of keys in 16 bits counts, which may be of their rounding


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


@dataclass(frozen=True)
class WrittenStep:
    """A step of generation that is compared.

    Attributes:
        token_ids: int64 [B], of each text.
        given: input of each layer that runs, [B, E].
    """

    token_ids: npt.NDArray[np.int64]
    given: RecordedLayers


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

    def __init__(
        self,
        tree: PrefixTree,
        device: torch.device,
        calls: dict[int, RecordedCall],
        key_values: KeyValues | None = None,
    ) -> None:
        super().__init__(tree, device, key_values=key_values)
        self._calls, self._device = calls, device

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, params: AttentionParams) -> Tensor:
        """Compute attention of one layer, see `AttentionKeys.attend`."""
        lengths = query.norm(dim=-1).to(self._device)
        kept = replace(params, sinks=moved(params.sinks, self._device), slopes=moved(params.slopes, self._device))
        self._calls[layer] = RecordedCall(kept, (query.shape, key.shape, value.shape), lengths)
        return super().attend(layer, query, key, value, params)


@torch.inference_mode()
def run_packed(
    model: TreeModel, tree: PrefixTree, given: RecordedLayers, exact: bool, only: Sequence[int] | None = None
) -> Packed:
    """Run the packed pass on a tree.

    Args:
        tree: packed texts.
        given: each layer's input [T, E], and the last layer's output.
        exact: multiply in float32 (float64 if the weights are), whatever the reader's precision.
        only: layers that run, the others return their input; None runs all.

    Returns:
        Inputs and outputs [T, E], log-probabilities of the tree's pairs in float64.
    """
    every, found = decoder_layers(model.model, model.name), Packed()
    layers = every if only is None else [every[index] for index in only]
    with ExitStack() as stack:
        if only is not None:
            _leave_out(stack, model, every, only)
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
    return _gathered(found, model.device)


def _gathered(found: Packed, device: torch.device) -> Packed:
    found.move(device)
    for values in (found.inputs, found.outputs):
        values[:] = [value.reshape(-1, value.shape[-1]) for value in values]
    return found


@torch.inference_mode()
def run_written(
    model: TreeModel,
    tree: PrefixTree,
    given: RecordedLayers,
    starts: IntArray,
    steps: list[WrittenStep],
    only: Sequence[int],
) -> tuple[Packed, list[Packed]]:
    """Run layers of the packed pass on a tree with exact products, then on tokens written after nodes of the tree.

    Args:
        tree: packed texts.
        given: input of each layer that runs [T, E].
        starts: int64 [B], ascending, the nodes that texts are continued from.
        steps: of generation.
        only: layers that run, the others return their input.

    Returns:
        Inputs and outputs of these layers, of the tree and of each step.
    """
    every, found = decoder_layers(model.model, model.name), Packed()
    layers = [every[index] for index in only]
    key_values = KeyValues(states=RecurrentStates(starts)) if model.mixers else KeyValues()
    written: list[Packed] = []
    with ExitStack() as stack:
        _leave_out(stack, model, every, only)
        stack.enter_context(multiplied_exactly(model))
        with watched(layers, found, given):
            model.forward(tree.token_ids, tree.positions, _RecordedKeys(tree, model.device, found.calls, key_values))
        cache = DecodeKeys(tree, key_values, starts, len(steps), row_by_row=model.deterministic)
        for step in steps:
            cache.begin_step()
            written.append(Packed())
            with watched(layers, written[-1], step.given):
                model.forward(step.token_ids, cache.step_positions, cache)
    return _gathered(found, model.device), [_gathered(each, model.device) for each in written]


def _leave_out(stack: ExitStack, model: TreeModel, every: list[nn.Module], only: Sequence[int]) -> None:
    """Let all layers but some return their input until the stack closes."""
    skipped = [index for index in range(len(every)) if index not in only]
    stack.enter_context(passed_through([every[index] for index in skipped]))
    stack.enter_context(layer_by_layer(model, _attending(every, skipped)))


def _attending(layers: list[nn.Module], skipped: list[int]) -> set[int]:
    """Return the numbers of the attention layers in decoder layers, of which LongCat's have two each."""
    found = {
        index: {n for m in layers[index].modules() if isinstance(n := getattr(m, "layer_idx", None), int)}
        for index in skipped
    }
    return {number for index, numbers in found.items() for number in numbers or {index}}


@contextmanager
def layer_by_layer(model: TreeModel, silent: Collection[int] = ()) -> Iterator[None]:
    """Within the block, a step of generation calls its layers one by one, and those at `silent` may not attend."""
    exchange = surgery.Exchange()
    exchange.attribute(vars(model), "fused_step", "compared layer by layer")
    exchange.attribute(vars(model), "silent_layers", model.silent_layers | frozenset(silent))
    try:
        yield
    finally:
        exchange.restore()


@torch.inference_mode()
def step_difference(
    model: TreeModel, tree: PrefixTree, starts: IntArray, tokens: list[Any], only: Sequence[int] | None = None
) -> float:
    """Return how far a step in one call is from the same step layer by layer, relative to the size.

    The final states are compared, and the keys and values that are kept: a rotation that is wrong by little can leave
    attention as it was at one place and not at another.

    Args:
        tree: the texts before.
        starts: int64 [B], ascending, the nodes that texts are continued from.
        tokens: int64 [B] of each step.
        only: layers that run, the others return their input; None runs all.
    """
    with ExitStack() as stack:
        if only is not None:
            every = decoder_layers(model.model, model.name)
            stack.enter_context(_stepping_through(model, every, only))
        return _step_difference(model, tree, starts, tokens)


@contextmanager
def _stepping_through(model: TreeModel, every: list[nn.Module], only: Sequence[int]) -> Iterator[None]:
    """Within the block, all layers but some return their input, also in a step of generation in one call."""
    assert not isinstance(model.fused_step, str)
    skipped = [index for index in range(len(every)) if index not in only]
    exchange = surgery.Exchange()
    exchange.attribute(vars(model), "fused_step", model.fused_step.part(only))
    exchange.attribute(vars(model), "silent_layers", model.silent_layers | _attending(every, skipped))
    try:
        with passed_through([every[index] for index in skipped]):
            yield
    finally:
        exchange.restore()


def _step_difference(model: TreeModel, tree: PrefixTree, starts: IntArray, tokens: list[Any]) -> float:
    key_values, worst = KeyValues(), 0.0
    model.forward(tree.token_ids, tree.positions, TreeKeys(tree, model.device, key_values=key_values))
    ways = [DecodeKeys(tree, key_values, starts, len(tokens), row_by_row=model.deterministic) for _ in range(2)]
    for step in tokens:
        states = []
        for cache in ways:
            cache.begin_step()
            with nullcontext() if cache is ways[0] else layer_by_layer(model):
                states.append(model.forward(step, cache.step_positions, cache).double())
        worst = max(worst, _apart(*states))
        for own, other in zip(*(cache.written() for cache in ways), strict=True):
            rounds = own.element_size() < torch.float32.itemsize
            worst = max(worst, _apart(own.double(), other.double()) * (_ROUNDED if rounds else 1))
    return worst


def _apart(own: Tensor, other: Tensor) -> float:
    """Return the largest distance of two rows relative to the other's size."""
    return float(((own - other).norm(dim=-1) / other.norm(dim=-1).clamp_min(1e-30)).max())


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
        model.products = "torch"
        try:
            yield
        finally:
            model.products = kept


@contextmanager
def short_windows(model: TreeModel, size: int, rotary: bool = False) -> Iterator[None]:
    """Within the block, windows, chunks and steps of a temperature wider than `size` are that wide in both passes.

    They are in the model's own modules and in the packed pass. A short text never reaches the edge of a window of 512
    tokens. A window as long as the context has no edge. With `rotary` the length is shortened too from which longrope
    has other frequencies.
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
            schemes = getattr(config, "rope_parameters", None) or {}
            for scheme in (schemes, *(value for value in schemes.values() if isinstance(value, dict))):
                if rotary and scheme.get("rope_type") == "longrope":
                    shorten(scheme, "original_max_position_embeddings")
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
