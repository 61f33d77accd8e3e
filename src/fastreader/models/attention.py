"""How a packed tree enters a transformers model: through its attention interface, one call a layer.

The tree travels in the forward keyword arguments, which transformers hands down to every attention call.
Anything in such a call that this adapter does not compute is refused: passing over an attention sink or a
window that lives only in the mask gives numbers that look right and are off by several nats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fastreader.errors import UnsupportedModelError
from fastreader.models.attention_keys import Keys, Scores

ATTENTION_NAME = "fastreader_tree"
KEYWORD = "fastreader_pass"

# Arguments of an attention call that say nothing about what is computed.
_HARMLESS = {"position_ids", "cache_position", "use_cache", "return_dict", "output_hidden_states", "is_causal"}


@dataclass(frozen=True)
class Asked:
    """The new tokens whose final states are asked for; the last layer need not compute the others'.

    Attributes:
        rows: int64 [A], which of the new tokens, ascending.
        keys: what they attend to.
    """

    rows: Tensor
    keys: Keys


@dataclass
class TreePass:
    """One pass of new tokens through the model, as the attention calls see it.

    Attributes:
        keys: what the new tokens attend to.
        windows: expected window of each layer in tokens, None for full attention.
        precision: of the products: "fast" rounds queries, keys and values to bfloat16, "high" splits them,
            None and "exact" take them as they come.
        asked: the tokens whose final states are asked for; None for all.
        calls: how often each layer called attention.
        narrowed: whether the last layer computed those alone.
    """

    keys: Keys
    windows: list[int | None]
    precision: str | None = None
    asked: Asked | None = None
    calls: dict[int, int] = field(default_factory=dict)
    narrowed: bool = False

    def narrow(self, layer: int) -> Tensor | None:
        """For a layer that can leave rows out: those that it must compute, int64 [A], or None for all.

        Its call of attention then takes queries of these alone, with keys and values of all.
        """
        if self.asked is None or layer != len(self.windows) - 1:
            return None
        self.keys, self.narrowed = self.asked.keys, True
        return self.asked.rows

    def check_calls(self, model_name: str) -> None:
        """Refuse a pass in which some layer did not attend, or attended twice.

        Raises:
            UnsupportedModelError: naming the layers.
        """
        odd = [layer for layer in range(len(self.windows)) if self.calls.get(layer, 0) != 1]
        if odd:
            raise UnsupportedModelError(
                f"{model_name}: of {len(self.windows)} layers, layers {_ranges(odd)} did not call attention through "
                "transformers' attention interface exactly once; state-space, linear-attention and ALiBi layers "
                "cannot run on a packed tree"
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
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention function registered with transformers.

    Args:
        module: the attention layer; its `layer_idx` tells which.
        query: [1, Hq, T, D]; key and value: [1, Hk, T, D] and [1, Hk, T, Dv].
        attention_mask: must be None, the tree is the mask.
        scaling: factor on the scores; D ** -0.5 when None.
        dropout: must be 0.
        sliding_window: must be what the config says of this layer.
        softcap: bound on the scores, or None.
        others: `fastreader_pass`, and arguments that change nothing; any other is refused.

    Returns:
        ([1, T, Hq, Dv], None)

    Raises:
        UnsupportedModelError: the call asks for something the packed pass does not compute.
    """
    layer = getattr(module, "layer_idx", None)
    name = f"{type(module).__name__} (layer {layer})"
    state = others.pop(KEYWORD, None)
    if not isinstance(state, TreePass):
        raise UnsupportedModelError(
            f"{name} did not receive the packed tree: this model does not hand keyword arguments down to attention"
        )
    unknown = sorted(k for k, v in others.items() if k not in _HARMLESS and v is not None and v is not False)
    if unknown:
        raise UnsupportedModelError(f"{name} passes {', '.join(unknown)} to attention, which the packed pass ignores")
    if attention_mask is not None:
        raise UnsupportedModelError(f"{name} passes an attention mask of its own, which the packed pass ignores")
    if dropout:
        raise UnsupportedModelError(f"{name} uses dropout {dropout}; put the model in evaluation mode")
    if others.get("is_causal") is False:
        raise UnsupportedModelError(f"{name} asks for attention that is not causal")
    if layer is None or not 0 <= layer < len(state.windows):
        raise UnsupportedModelError(f"{name}: expected layer_idx in 0..{len(state.windows) - 1}, got {layer}")
    if sliding_window != state.windows[layer]:
        raise UnsupportedModelError(
            f"{name}: the config gives this layer a window of {state.windows[layer]} tokens, "
            f"its attention call one of {sliding_window}"
        )
    state.calls[layer] = state.calls.get(layer, 0) + 1
    given = query.dtype
    if state.precision == "fast":
        query, key, value = query.bfloat16(), key.bfloat16(), value.bfloat16()
    out = state.keys.attend(
        layer,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        Scores(
            scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
            window=sliding_window,
            softcap=softcap,
            input_precision="bf16x3" if state.precision == "high" else None,
        ),
    )
    return out[None].to(given), None


def layer_windows(config: Any, model_name: str) -> list[int | None]:
    """The attention window of each layer, from a text model's config; None is full attention.

    Raises:
        UnsupportedModelError: a layer is neither full nor sliding attention.
    """
    count = int(config.num_hidden_layers)
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return [window] * count
    windows: list[int | None] = []
    for layer, kind in enumerate(kinds[:count]):
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModelError(
                f"{model_name}: layer {layer} is {kind!r}; the packed pass knows full_attention and sliding_attention"
            )
        windows.append(window if kind == "sliding_attention" else None)
    return windows


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] as "0-2, 5"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
