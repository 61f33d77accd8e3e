"""What a model's layers are called with and what they answer, on a few tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fastreader.core.tree import PrefixTree
from fastreader.models.attention import ATTENTION_NAME, KEYWORD, TreePass, attention_forward
from fastreader.models.attention_keys import TreeKeys

TOKENS = 6
_RECORD = "fastreader_record"
Windows = list[int | None]
Hook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], None]


@dataclass
class AttentionCall:
    """An attention layer's call as it was seen: its own arguments, and what it handed to the interface."""

    arguments: dict[str, Any]
    output: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    constants: dict[str, Any]


@dataclass
class LayerCall:
    """A decoder layer's call as it was seen: the residual stream [1, T, E] before and after, and the arguments."""

    input: Tensor
    arguments: dict[str, Any]
    output: Tensor


def record_attention(model: Any, windows: Windows, precision: str, start: int) -> dict[str, AttentionCall]:
    """Run a few tokens through the widened model and note each attention layer's call, by the layer's name.

    Args:
        model: the model.
        windows: each layer's attention window, tokens or None.
        precision: of the products.
        start: position of the first token.
    """
    base = model.base_model
    calls: dict[str, AttentionCall] = {}

    def note(name: str) -> Hook:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if id(module) in seen and not args and isinstance(output, tuple):
                (q, k, v), constants = seen[id(module)]
                calls[name] = AttentionCall(dict(kwargs), output[0], q, k, v, constants)

        return hook

    watched = {
        name: module
        for name, module in base.named_modules()
        if hasattr(module, "layer_idx") and hasattr(module, "o_proj")
    }
    with _recording(model) as seen, _hooked(watched, note):
        _run(model, windows, precision, start)
    return calls


def scaled_attention(model: Any, module: nn.Module, call: AttentionCall, factor: float) -> AttentionCall:
    """The same attention layer's call on its input times `factor`."""
    arguments = {**call.arguments, "hidden_states": call.arguments["hidden_states"] * factor}
    with _recording(model) as seen:
        output = module(**arguments)[0]
    (q, k, v), constants = seen[id(module)]
    return AttentionCall(arguments, output, q, k, v, constants)


def record_layers(model: Any, windows: Windows, precision: str, start: int) -> tuple[dict[str, LayerCall], Tensor]:
    """Run a few tokens from position `start` and note each decoder layer's call.

    Returns:
        (calls by the layer's name, final hidden states [T, E])
    """
    calls: dict[str, LayerCall] = {}

    def note(name: str) -> Hook:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if len(args) == 1 and isinstance(output, Tensor):
                calls[name] = LayerCall(args[0].clone(), dict(kwargs), output.clone())

        return hook

    watched = {
        name: module
        for name, module in model.base_model.named_modules()
        if hasattr(module, "self_attn") and hasattr(module, "mlp")
    }
    with _hooked(watched, note):
        states = _run(model, windows, precision, start)
    return calls, states


def _run(model: Any, windows: Windows, precision: str, start: int) -> Tensor:
    base = model.base_model
    device = next(base.parameters()).device
    vocabulary = model.config.get_text_config().vocab_size
    tree = PrefixTree.build([([(7 * i + 3) % vocabulary for i in range(TOKENS)], [])])
    state = TreePass(TreeKeys(tree, device), windows, precision)
    with torch.inference_mode():
        states: Tensor = base(
            input_ids=torch.from_numpy(tree.token_ids).to(device)[None],
            position_ids=torch.from_numpy(start + tree.positions).to(device, torch.int64)[None],
            use_cache=False,
            **{KEYWORD: state},
        ).last_hidden_state
    return states[0]


@contextmanager
def _hooked(modules: dict[str, nn.Module], note: Callable[[str], Hook]) -> Iterator[None]:
    handles = [module.register_forward_hook(note(name), with_kwargs=True) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _recording(model: Any) -> Iterator[dict[int, tuple[tuple[Tensor, ...], dict[str, Any]]]]:
    """What attention layers hand to the interface meanwhile: (queries, keys, values) and constants, by module's id."""
    from transformers import AttentionInterface

    seen: dict[int, tuple[tuple[Tensor, ...], dict[str, Any]]] = {}

    def record(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **named: Any) -> Any:
        constants = {key: x for key, x in named.items() if key in ("scaling", "sliding_window", "softcap", "dropout")}
        seen[id(module)] = ((q, k, v), constants)
        return attention_forward(module, q, k, v, mask, **named)

    AttentionInterface.register(_RECORD, record)
    model.config._attn_implementation = _RECORD
    try:
        yield seen
    finally:
        model.config._attn_implementation = ATTENTION_NAME
