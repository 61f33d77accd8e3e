"""Trace the inputs and outputs of a model's layers on a few tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from fastreader.core.tree import PrefixTree
from fastreader.models.passes.attention import KEYWORD, AttentionInputs, TreePass
from fastreader.models.passes.packed_keys import TreeKeys
from fastreader.models.rewriting.draft import TOKENS, Draft
from fastreader.models.rewriting.fused.parts import UpcastLinear
from fastreader.models.rewriting.layers import Chain, found_layers, passed_through, representatives, shares_keys

_USUAL = {"hidden_states", "position_embeddings", "attention_mask", "past_key_values"}  # arguments of attention
# Called with a layer's name, module, positional and keyword arguments, and output.
Hook = Callable[[str, nn.Module, tuple[Any, ...], dict[str, Any], Any], None]


@dataclass
class AttentionCall:
    """A traced call of an attention layer: its arguments and output, and what it passed to the interface."""

    arguments: dict[str, Any]
    output: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    constants: dict[str, Any]


@dataclass(frozen=True)
class AttentionShape:
    """How an attention layer is called.

    Attributes:
        query, key, value: (heads, head size).
        constants: what it passes to the interface besides.
    """

    query: tuple[int, int]
    key: tuple[int, int]
    value: tuple[int, int]
    constants: dict[str, Any]

    @classmethod
    def of(cls, call: AttentionCall) -> AttentionShape:
        """Return the shape of a traced call."""
        query, key, value = ((part.shape[1], part.shape[3]) for part in (call.query, call.key, call.value))
        return cls(query, key, value, call.constants)

    @classmethod
    def kept(cls, values: dict[str, Any]) -> AttentionShape:
        """Return the shape that `asdict` turned into values and JSON held."""
        query, key, value = (tuple(values[name]) for name in ("query", "key", "value"))
        return cls(query, key, value, values["constants"])


@dataclass
class LayerCall:
    """A traced call of a decoder layer: the residual stream [1, T, E] before and after, the arguments and the pass."""

    input: Tensor
    arguments: dict[str, Any]
    output: Tensor
    state: TreePass


def attention_shapes(draft: Draft) -> dict[str, AttentionShape]:
    """Return how each attention layer is called, by its name, and keep it unless tensors are part of it.

    Where choices are not known, the draft learns which layers its trials can leave out.
    """
    choices = draft.choices
    if choices.attention is not None:
        return {name: AttentionShape.kept(values) for name, values in choices.attention.items()}
    layers = [] if choices.known or draft.mixers else found_layers(draft.model)
    chain = Chain(layers)
    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_pre_hook(chain.before, with_kwargs=True).remove)
            stack.callback(layer.register_forward_hook(chain.after, with_kwargs=True).remove)
        for module in draft.base.modules():  # no number of this pass counts, and laying out every weight takes long
            if isinstance(module, UpcastLinear):
                stack.enter_context(module.roughly())
        shapes = {name: AttentionShape.of(call) for name, call in trace_attention(draft, 0, 1).items()}
    if not any(isinstance(value, Tensor) for shape in shapes.values() for value in shape.constants.values()):
        choices.attention = {name: asdict(shape) for name, shape in shapes.items()}
    if layers and chain.complete and not shares_keys(layers):
        draft.left_out = sorted(set(range(len(layers))).difference(representatives(layers)))
    return shapes


@contextmanager
def shortened(draft: Draft) -> Iterator[None]:
    """Within the block, the decoder layers that trials can leave out return their input."""
    layers = found_layers(draft.model) if draft.left_out else []
    with passed_through([layers[index] for index in draft.left_out]):
        yield


@contextmanager
def whole(draft: Draft) -> Iterator[None]:
    """Within the block, trials leave out no layer."""
    left_out, draft.left_out = draft.left_out, []
    try:
        yield
    finally:
        draft.left_out = left_out


def trace_attention(draft: Draft, start: int, count: int = TOKENS) -> dict[str, AttentionCall]:
    """Return the call of each attention layer that runs, by its name, for `count` tokens from position `start`."""
    calls: dict[str, AttentionCall] = {}
    seen: dict[int, AttentionInputs] = {}

    def hook(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if id(module) not in seen or args or not isinstance(output, tuple):
            return
        if KEYWORD in kwargs or _takes_pass(module, kwargs):
            calls[name] = AttentionCall({**kwargs, KEYWORD: _pass_of(module, kwargs)}, output[0], *seen[id(module)])

    _run(draft, ("layer_idx", "o_proj"), hook, *sample(draft, "torch", start, seen, count))
    for call in calls.values():
        call.arguments[KEYWORD].trace = None
    return calls


def trace_scaled_attention(module: nn.Module, call: AttentionCall, factor: float) -> AttentionCall:
    """Return the call of the same attention layer on its input times `factor`, with products as they are now."""
    arguments = {**call.arguments, "hidden_states": call.arguments["hidden_states"] * factor}
    state: TreePass = arguments[KEYWORD]
    seen: dict[int, AttentionInputs] = {}
    state.trace = seen
    output = module(**arguments)[0]
    state.trace = None
    return AttentionCall(arguments, output, *seen[id(module)])


def trace_layers(draft: Draft, start: int) -> tuple[dict[str, LayerCall | None], Tensor]:
    """Return (each decoder layer's call by the layer's name, final hidden states [T, E]) of tokens from `start`.

    The call of a layer that was left out is None.
    """
    calls: dict[str, LayerCall | None] = {}

    def hook(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        state = _pass_of(module, kwargs)
        if len(args) == 1 and isinstance(output, Tensor) and state is not None:
            left_out = "forward" in vars(module)
            calls[name] = None if left_out else LayerCall(args[0].clone(), dict(kwargs), output.clone(), state)

    draft.states[start] = _run(draft, ("mlp",), hook, *sample(draft, draft.products, start))
    return calls, draft.states[start]


def final_states(draft: Draft, start: int = 0) -> Tensor:
    """Return the final hidden states [T, E] of a few tokens from position `start`."""
    state, tokens, positions = sample(draft, draft.products, start)
    with torch.inference_mode(), shortened(draft):
        draft.states[start] = state.run(draft.model, tokens, positions)
    return draft.states[start]


def _takes_pass(module: nn.Module, arguments: dict[str, Any]) -> bool:
    """Return whether a module that holds its pass could receive it, and names no argument that others do not know."""
    parameters = signature(module.forward).parameters.values()
    named = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}
    return len(named) < len(parameters) and named & set(arguments) <= _USUAL


def _pass_of(module: nn.Module, arguments: dict[str, Any]) -> TreePass | None:
    """Return the pass that a module received, or that a part of it holds."""
    found = [arguments, *(vars(part) for part in module.modules())]
    return next((each[KEYWORD] for each in found if KEYWORD in each), None)


def sample(
    draft: Draft, precision: str, start: int, trace: dict[int, AttentionInputs] | None = None, count: int = TOKENS
) -> tuple[TreePass, Tensor, Tensor]:
    """Return a pass of `count` tokens from position `start`, their ids and their positions."""
    device = next(draft.base.parameters()).device
    tree = PrefixTree.build([([(7 * i + 3) % draft.config.vocab_size for i in range(count)], [])])
    state = TreePass(TreeKeys(tree, device), draft.windows, precision, trace=trace, context=draft.context)
    tokens, positions = (torch.from_numpy(a).to(device, torch.int64) for a in (tree.token_ids, tree.positions))
    return state, tokens, start + positions


def _run(
    draft: Draft, children: tuple[str, ...], hook: Hook, state: TreePass, tokens: Tensor, positions: Tensor
) -> Tensor:
    """Return final hidden states [T, E] of a pass that calls `hook` after each module with these attributes."""

    def named(name: str) -> Callable[..., None]:
        return lambda *call: hook(name, *call)

    handles = [
        module.register_forward_hook(named(name), with_kwargs=True)
        for name, module in draft.base.named_modules()
        if all(hasattr(module, child) for child in children)
    ]
    try:
        with torch.inference_mode(), shortened(draft):
            return state.run(draft.model, tokens, positions)
    finally:
        for handle in handles:
            handle.remove()
