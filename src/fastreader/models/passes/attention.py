"""The attention function that runs a packed tree inside a transformers model.

The tree travels in the forward keyword arguments, which transformers passes on to every attention call. A call that
needs something this adapter does not compute raises: without an attention sink, or with a window that exists only in
the mask, the numbers look right and are off by several nats.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from fastreader.core.progress import STEPPED
from fastreader.errors import InputError, UnsupportedModelError
from fastreader.models.config.windows import Chunk, Window
from fastreader.models.passes.packed_keys import AttentionKeys, AttentionParams, RecurrentKeys, SelectedRows
from fastreader.models.passes.pass_argument import KEYWORD as KEYWORD
from fastreader.models.passes.pass_argument import WITHOUT_POSITIONS, NotHandedDownError, run_with
from fastreader.models.passes.query_temperature import TEMPERATURE
from fastreader.models.passes.recurrent_states import PathStates
from fastreader.ops.pointwise import rotary

ATTENTION_NAME = "fastreader_tree"

AttentionInputs = tuple[Tensor, Tensor, Tensor, dict[str, Any]]
# Arguments of an attention call that do not change the result.
_IGNORED = {"position_ids", "cache_position", "use_cache", "return_dict", "output_hidden_states", "is_causal"}


@dataclass
class TreePass:
    """One pass of new tokens through the model, as its attention calls see it.

    Attributes:
        keys: what the new tokens attend to.
        windows: expected window of each layer, in tokens or a chunk; None for full attention.
        precision: of the products, as in `ops.linear`: "bf16" rounds queries, keys (`rounded_heads`) and values to
            bfloat16, "bf16x3" splits them, all others leave them as they are.
        selected: the tokens whose final states are needed; None for all.
        calls: number of attention calls of each layer.
        narrowed: whether the last layer computed only the selected tokens.
        last_keys: what the selected tokens attend to in the last layer, once that layer takes queries of these only.
        positions: int64 [N] of the new tokens, known while the pass runs.
        trace: if not None, filled with what each attention module passes: (query, key, value, constants) by its id.
        context: longest text that the model takes, in tokens; None without a limit.
    """

    keys: AttentionKeys
    windows: list[Window]
    precision: str | None = None
    selected: SelectedRows | None = None
    calls: dict[int, int] = field(default_factory=dict)
    narrowed: bool = False
    last_keys: AttentionKeys | None = None
    positions: Tensor | None = None
    trace: dict[int, AttentionInputs] | None = None
    context: int | None = None

    @property
    def states(self) -> PathStates:
        """The recurrences of the pass, over all its tokens."""
        return cast(RecurrentKeys, self.keys).states

    def covers(self, window: int | None) -> bool:
        """Return whether a window holds any text that the model takes, so that it hides nothing (Phi-3.5-MoE)."""
        return window is not None and self.context is not None and window >= self.context

    def run(self, model: Any, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return final hidden states of the new tokens, [N, E], from a model that uses `attention_forward`.

        Args:
            model: on the device of the other arguments, or with its first layers there.
            tokens: int64 [N].
            positions: int64 [N].
        """
        self.positions = positions
        arguments: dict[str, Any] = {"input_ids": tokens[None], "use_cache": False}
        if not vars(model).get(WITHOUT_POSITIONS):
            arguments["position_ids"] = self.positions[None]
        output = run_with(model, self, arguments)
        states: Tensor | None = getattr(output, "last_hidden_state", None)
        if states is None:
            kind = type(model.base_model).__name__
            raise UnsupportedModelError(f"{kind} returns no final hidden states, but a {type(output).__name__}")
        return states[0]

    def last_rows(self, layer: int, *, attending: bool = False) -> Tensor | None:
        """Return the rows that a layer must return if it can skip rows after its attention, int64 [A], or None for all.

        Args:
            attending: its attention skips them too: it takes queries of these rows, with keys and values of all.
        """
        if self.selected is None or layer != len(self.windows) - 1:
            return None
        self.narrowed = True
        if attending:
            self.last_keys = self.selected.keys
        return self.selected.indices.get()

    def check_calls(self, model_name: str, without: Collection[int] = ()) -> None:
        """Raise UnsupportedModelError with the layers that did not call attention.

        Args:
            without: layers that do not run on text.
        """
        missing = sorted(set(range(len(self.windows))).difference(self.calls, without))
        if missing:
            raise UnsupportedModelError(
                f"{model_name}: of {len(self.windows)} layers, layers {_ranges(missing)} did not call attention "
                "through transformers' attention interface; modules that compute attention themselves cannot run on a "
                "packed tree"
            )


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    slopes: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention over the packed tree, as the function registered with transformers.

    Args:
        module: the attention layer, with its index in `layer_idx`.
        query: [1, Hq, T, D]; key and value: [1, Hk, T, D] and [1, Hk, T, Dv].
        attention_mask: must be None or a single value, since the tree is the mask.
        scaling: factor on the scores; D ** -0.5 if None.
        dropout: must be 0.
        sliding_window: must equal the config's window of this layer; None for a chunk, which only masks know.
        softcap: bound on the scores, or None.
        s_aux: attention sinks [Hq], or None.
        slopes: ALiBi's slopes [Hq], or None.
        others: `fastreader_pass`, and arguments that do not change the result, such as an index that selects all keys;
            any other raises.

    Returns:
        ([1, T, Hq, Dv], None)

    Raises:
        UnsupportedModelError: if the call needs something that the packed pass does not compute.
    """
    layer = getattr(module, "layer_idx", None)
    name = f"{type(module).__name__} (layer {layer})"
    state = others.pop(KEYWORD, vars(module).get(KEYWORD))
    if not isinstance(state, TreePass):
        raise NotHandedDownError(
            f"{name} did not receive the packed tree: this model does not pass keyword arguments on to attention"
        )
    for argument, given in others.items():
        selects_all = argument in ("indices", "block_indices") and given is not None and given.numel() == 0
        if argument not in _IGNORED and given is not None and given is not False and not selects_all:
            raise UnsupportedModelError(f"{name} passes {argument} to attention, which the packed pass ignores")
    if attention_mask is not None and attention_mask.numel() > 1:  # one value is the mask that `ask_for_mask` asks for
        raise UnsupportedModelError(f"{name} passes its own attention mask, which the packed pass ignores")
    if dropout:
        raise UnsupportedModelError(f"{name} uses dropout {dropout}; put the model in evaluation mode")
    if others.get("is_causal") is False:
        raise UnsupportedModelError(f"{name} uses attention that is not causal")
    if layer is None or not 0 <= layer < len(state.windows):
        raise UnsupportedModelError(f"{name}: expected layer_idx in 0..{len(state.windows) - 1}, got {layer}")
    window = state.windows[layer]
    in_call = None if isinstance(window, Chunk) else window
    if sliding_window != in_call and not (sliding_window is None and state.covers(in_call)):
        raise UnsupportedModelError(
            f"{name}: the config gives this layer a window of {window} tokens, "
            f"its attention call one of {sliding_window}"
        )
    if key.shape[2] != value.shape[2] or query.shape[2] > key.shape[2]:
        raise UnsupportedModelError(
            f"{name} attends from {query.shape[2]} tokens to {key.shape[2]} keys and {value.shape[2]} values; "
            "expected a key and a value of each token"
        )
    # Where the call's keys and values are kept: a layer may attend more than once, to different values (DiffLlama) or
    # in several cycles (HRM).
    call = sum(state.calls.values())
    if not isinstance(window, Chunk):
        window = sliding_window
    state.calls[layer] = state.calls.get(layer, 0) + 1
    if (stepped := STEPPED.get()) is not None:
        stepped()
    if state.trace is not None:
        constants = {
            "scaling": scaling,
            "sliding_window": sliding_window,
            "softcap": softcap,
            "dropout": dropout,
            "s_aux": s_aux,
        }
        state.trace[id(module)] = (query, key, value, constants)
    if (temperature := getattr(module, TEMPERATURE, None)) is not None:
        assert state.positions is not None
        query = temperature.applied(query, state.positions.to(query.device))
    key, value = key.to(query.device), value.to(query.device)  # of a layer on another device
    dtype = query.dtype
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    if state.precision == "bf16":
        query, key, value = rounded_heads(query), rounded_heads(key), value.bfloat16()
    keys = state.keys if state.last_keys is None else state.last_keys
    try:
        out = keys.attend(
            call,
            query,
            key,
            value,
            AttentionParams(
                scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
                window=window,
                softcap=softcap,
                input_precision="bf16x3" if state.precision == "bf16x3" else None,
                sinks=s_aux,
                slopes=slopes,
            ),
        )
    except InputError as error:  # a size that no implementation has
        raise UnsupportedModelError(f"{name}: {error}") from error
    return out[None].to(dtype), None


def rounded_heads(states: Tensor, angles: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Return queries or keys in bfloat16. On the CPU a Hadamard matrix multiplies them first, see `rotary`.

    Args:
        states: [T, H, D]; returned as they are if they are bfloat16 already and do not rotate.
        angles: cosine and sine [T, R] to rotate them by before, or None.
    """
    on_cpu = states.device.type == "cpu"
    if angles is None:
        if states.dtype == torch.bfloat16 or not on_cpu:
            return states.bfloat16()
        none = states.new_empty((len(states), 0), dtype=torch.float32)
        states, angles = states.float(), (none, none)
    return rotary(states, *angles, hadamard=on_cpu, bf16=True)


def register() -> None:
    """Register the packed attention with transformers as `ATTENTION_NAME`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, attention_forward)


def _ranges(numbers: list[int]) -> str:
    """Return [0, 1, 2, 5] as "0-2, 5"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
