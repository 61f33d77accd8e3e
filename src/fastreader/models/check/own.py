"""Run a model's own modules in a chosen type, one decoder layer at a time, and keep what goes in and comes out."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from fastreader.models.machine.devices import moved
from fastreader.models.passes.pass_argument import marked
from fastreader.models.rewriting import surgery
from fastreader.models.rewriting.layers import decoder_layers, passed_through
from fastreader.ops.linear import BlockStack, WidenedTensor
from fastreader.ops.linear.blocks import AT_ONCE, multiply_in_parts

_HALF = (torch.bfloat16, torch.float16)
_OWN_ATTENTION = "fastreader_own"
_CONSTANTS = "fastreader_constants"  # mark of attention layers while they are recorded


@dataclass(frozen=True)
class Constants:
    """What an attention layer passes to the interface besides queries, keys and values.

    Attributes:
        scaling, softcap, sliding_window: as transformers names them.
        sinks: of each query head, or None.
        visible: bool [n, n], which places of a text each place sees by the layer's mask; None without a mask.
        lengths: [B, n, Hq], Euclidean lengths of the queries.
    """

    scaling: float
    softcap: float | None
    sliding_window: int | None
    sinks: tuple[float, ...] | None
    visible: Tensor | None = field(default=None, compare=False)
    lengths: Tensor | None = field(default=None, compare=False)


@dataclass
class RecordedLayers:
    """What went into and came out of the decoder layers of one run.

    Attributes:
        embedded: input of the first layer as the model made it, [..., E].
        inputs, outputs: of each layer; an input that was replaced is listed as replaced.
        logprobs: of the tokens scored.
        constants: what each attention call passed to the interface.
        plain: whether each layer maps one tensor to another of its shape, and passes on nothing else.
    """

    embedded: Tensor | None = None
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    logprobs: Tensor | None = None
    constants: dict[int, Constants] = field(default_factory=dict)
    plain: bool = True

    def move(self, device: torch.device) -> None:
        """Bring together what layers on several devices left."""
        self.embedded = moved(self.embedded, device)
        self.inputs, self.outputs = moved(self.inputs, device), moved(self.outputs, device)
        self.constants = {
            call: replace(own, visible=moved(own.visible, device), lengths=moved(own.lengths, device))
            for call, own in self.constants.items()
        }


@contextmanager
def watched(layers: list[nn.Module], found: RecordedLayers, given: RecordedLayers | None = None) -> Iterator[None]:
    """Within the block, record the inputs and outputs of layers as they run, which some do more than once.

    Args:
        layers: of the model that runs.
        found: filled.
        given: inputs that replace the model's own, so that no error grows from layer to layer; its last output also
            replaces the last layer's, for the norm and the LM head after it.
    """

    def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        own, index = args[0] if args else kwargs["hidden_states"], len(found.inputs)
        if index == 0:
            found.embedded = own.clone()
        used = own if given is None else given.inputs[index].to(own).reshape(own.shape)
        found.inputs.append(used.clone())
        if args:
            return (used.clone(), *args[1:]), kwargs  # a fused layer writes to its input
        return args, {**kwargs, "hidden_states": used.clone()}

    def after(_module: nn.Module, _args: Any, output: Any) -> Any:
        own, index = output[0] if isinstance(output, (tuple, list)) else output, len(found.outputs)
        found.outputs.append(own.clone())
        found.plain &= isinstance(output, Tensor) and own.shape == found.inputs[index].shape
        if given is None or index < len(given.outputs) - 1:
            return None
        last = given.outputs[index].to(own).reshape(own.shape)
        return type(output)([last, *output[1:]]) if isinstance(output, (tuple, list)) else last

    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(layer.register_forward_hook(after).remove)
        yield


@contextmanager
def converted(
    model: Any, layers: list[nn.Module], dtype: torch.dtype, skipped: Sequence[nn.Module] = ()
) -> Iterator[None]:
    """Within the block, each module holds its weights in `dtype` while it runs, and as stored before and after.

    Only one decoder layer at a time is converted, of embeddings only the rows that are read, and of the LM head one
    block. Parameters are replaced, not written to, so that modules that share them see nothing. Layers that are
    `skipped` do not run.
    """
    inside = {id(part) for layer in (*layers, *skipped) for part in layer.modules()}
    head = model.get_output_embeddings()
    units = [(layer, list(layer.modules())) for layer in layers]
    others = [module for module in model.modules() if id(module) not in inside and module is not head]
    units += [(module, [module]) for module in others if surgery.parameters_of(module)]
    with ExitStack() as stack:
        for unit, parts in units:
            _convert_while_running(stack, unit, parts, dtype)
        if head is not None:
            stack.enter_context(_blockwise(head, dtype))
        yield


def _convert_while_running(stack: ExitStack, unit: nn.Module, parts: list[nn.Module], dtype: torch.dtype) -> None:
    exchange = surgery.Exchange()

    def in_dtype(parameter: nn.Parameter) -> nn.Parameter | None:
        converts = parameter.is_floating_point() and parameter.dtype != dtype
        return _parameter(parameter, dtype) if converts or isinstance(parameter, BlockStack) else None

    def widened(buffer: Tensor) -> Tensor | None:
        return buffer.to(dtype) if buffer.dtype in _HALF and dtype not in _HALF else None

    def before(module: nn.Module, args: tuple[Any, ...]) -> Any:
        if args and _looks_up(module):
            ids, places = args[0].unique(return_inverse=True)
            assert isinstance(module, nn.Embedding)
            exchange.parameters(module, lambda weight: _parameter(weight[ids], dtype))
            exchange.attribute(vars(module), "padding_idx", None)
            return (places, *args[1:])
        for part in parts:
            exchange.parameters(part, in_dtype)
            exchange.buffers(part, widened)
        return None

    def after(*_: Any) -> None:
        exchange.restore()

    stack.callback(after)
    stack.callback(unit.register_forward_pre_hook(before).remove)
    stack.callback(unit.register_forward_hook(after, always_call=True).remove)


def _looks_up(module: nn.Module) -> bool:
    """Return whether a module reads rows by ids only, unlike OPT's positions, which accept an attention mask."""
    first = next(iter(inspect.signature(module.forward).parameters), "")
    return isinstance(module, nn.Embedding) and first in ("input", "input_ids")


def _parameter(values: Tensor, dtype: torch.dtype) -> nn.Parameter:
    values = values.detach()
    # A copy of a large weight would have to be written to new memory before it is multiplied.
    large = values.dim() in (2, 3) and values.device.type == "cpu" and values.numel() > AT_ONCE
    lazily = isinstance(values, BlockStack) or (large and values.dtype != dtype)
    return nn.Parameter(WidenedTensor(values, dtype) if lazily else values.to(dtype), requires_grad=False)


@contextmanager
def _blockwise(head: nn.Linear, dtype: torch.dtype) -> Iterator[None]:
    """Let a linear LM head convert its weight block by block."""
    weight, bias = head.weight.detach(), None if head.bias is None else head.bias.detach().to(dtype)

    def forward(states: Tensor) -> Tensor:
        return multiply_in_parts(states.to(dtype), weight, bias)

    head.forward = forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del head.forward


@contextmanager
def _typed(head: nn.Linear, dtype: torch.dtype) -> Iterator[None]:
    """Let an LM head that `_blockwise` computes show a weight of this type, to which Mamba-2 converts its input."""
    exchange, own = surgery.Exchange(), head.weight
    shown = _parameter(torch.zeros(1, 1, dtype=dtype, device=own.device).expand(own.shape), dtype)
    exchange.parameters(head, lambda parameter: shown if parameter is own else None)
    try:
        yield
    finally:
        exchange.restore()


@contextmanager
def _without_advice() -> Iterator[None]:
    """Within the block, transformers does not advise to install kernels, which only its own passes would use."""
    logger = logging.getLogger("transformers.integrations.hub_kernels")

    def wanted(record: logging.LogRecord) -> bool:
        return "falling back" not in record.getMessage()

    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)


def _eager(module: nn.Module) -> Callable[..., Any] | None:
    """Return the eager attention function of the file that defines an attention layer."""
    return getattr(sys.modules.get(type(module).__module__), "eager_attention_forward", None)


def _own_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **named: Any
) -> Any:
    """Compute a layer's own eager attention and record what it was called with."""
    constants: dict[int, Constants] = surgery.mark_of(module, _CONSTANTS)
    scaling, sinks = named.get("scaling"), named.get("s_aux")
    visible = None if attention_mask is None else attention_mask[0, 0]
    if visible is not None and visible.dtype != torch.bool:
        visible = visible == 0
    constants[len(constants)] = Constants(  # in the order of the calls
        query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        named.get("softcap"),
        named.get("sliding_window"),
        None if sinks is None else tuple(sinks.tolist()),
        visible,
        query.norm(dim=-1).transpose(1, 2),
    )
    eager = _eager(module)
    assert eager is not None
    key, value = key.to(query.device), value.to(query.device)  # of a layer on another device
    return eager(module, query, key, value, attention_mask, **named)


@contextmanager
def _recorded(model: Any, constants: dict[int, Constants]) -> Iterator[None]:
    """Within the block, record what attention layers pass to the interface, if their file has an eager function."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    attention = [module for module in model.base_model.modules() if hasattr(module, "layer_idx")]
    if any(_eager(module) is None for module in attention):
        yield
        return
    AttentionInterface.register(_OWN_ATTENTION, _own_attention)
    AttentionMaskInterface.register(_OWN_ATTENTION, eager_mask)
    before = surgery.choose_attention(model, _OWN_ATTENTION)
    try:
        with marked(attention, _CONSTANTS, constants):
            yield
    finally:
        surgery.choose_attention(model, before)


@torch.inference_mode()
def run_own(
    model: Any,
    tokens: Tensor,
    dtype: torch.dtype,
    name: str,
    given: RecordedLayers | None = None,
    only: Sequence[int] | None = None,
    *,
    scored: bool = True,
) -> RecordedLayers:
    """Run a model's own modules in `dtype` on texts of one length, which do not see each other.

    Args:
        model: a structural copy with eager attention.
        tokens: int64 [B, n].
        dtype: of weights and activations.
        given: inputs that replace each layer's own, as `watched` takes them.
        only: layers that run, the others return their input; None runs all.
        scored: compute log-probabilities. The LM head of a long text would take longer than a few layers.

    Returns:
        Inputs and outputs [B, n, E], log-probabilities of tokens 1..n-1 in float64, [B, n - 1].
    """
    every, found = decoder_layers(model, name), RecordedLayers()
    layers = every if only is None else [every[index] for index in only]
    skipped = [layer for layer in every if layer not in layers]
    with ExitStack() as stack:
        stack.enter_context(passed_through(skipped))
        stack.enter_context(converted(model, layers, dtype, skipped))
        stack.enter_context(watched(layers, found, given))
        stack.enter_context(_recorded(model, found.constants))
        stack.enter_context(_without_advice())
        stack.enter_context(_typed(model.get_output_embeddings(), dtype))
        if scored:
            logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].double()
            found.logprobs = logits.log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
        else:
            stack.enter_context(passed_through([model.get_output_embeddings()]))
            model(input_ids=tokens, use_cache=False)
    found.move(tokens.device)
    return found
