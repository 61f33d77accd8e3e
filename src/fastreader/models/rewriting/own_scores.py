"""Give the packed attention to modules that compute attention scores in their own code.

These families do not call transformers' attention interface. In a reader's private copy of the model, the function
that maps queries, keys and values to attention's output is replaced; projections and rotary embeddings stay the
module's own. The check at load compares each layer with the unchanged modules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fastreader.errors import UnsupportedModelError
from fastreader.models.config.windows import Window
from fastreader.models.passes.attention import attention_forward
from fastreader.models.passes.pass_argument import ask_for_mask
from fastreader.models.rewriting import surgery

Windows = list[Window]


def replace_scores(model: Any, windows: Windows, name: str) -> None:
    """Replace what computes scores in each attention module of a structural copy that does so itself.

    Args:
        windows: each layer's window, in tokens; corrected if a module's own mask has another.

    Raises:
        UnsupportedModelError: if a module adds something to the scores that the packed attention does not compute.
    """
    index = 0
    for module in model.base_model.modules():
        replace = _REPLACED.get(type(module).__name__)
        if replace is None or not type(module).__module__.startswith("transformers."):
            continue
        module.layer_idx = index
        replace(module, windows, name)
        index += 1
    if type(model.base_model).__name__ == "MptModel":
        ask_for_mask(model)


def computes_scores(model: Any) -> bool:
    """Return whether a model has modules that `replace_scores` changes."""
    return any(type(module).__name__ in _REPLACED for module in model.base_model.modules())


def adds_positions(model: Any) -> bool:
    """Return whether a model's positions enter only as a bias on the scores, so that it takes no position_ids."""
    return any(type(module).__name__ in _BIASED for module in model.base_model.modules())


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *_: Any,
    scale: float,
    window: int | None = None,
    slopes: Tensor | None = None,
) -> tuple[Tensor, None]:
    """Return ([1, Hq, T, Dv], None) of queries [1, Hq, T, D], keys and values [1, Hk, T, ...]."""
    query, key = query.to(value.dtype), key.to(value.dtype)
    out, _none = attention_forward(module, query, key, value, None, scaling=scale, sliding_window=window, slopes=slopes)
    return out.transpose(1, 2), None


def _scaled(attribute: str, power: float) -> Callable[[Any, Windows, str], None]:
    """Return what replaces a module's `_attn`, whose scale is a power of one of its attributes."""

    def replace(module: Any, _windows: Windows, _name: str) -> None:
        surgery.mark(module, "_attn", partial(_attend, module, scale=float(getattr(module, attribute)) ** power))

    return replace


def _gpt_neo(module: Any, windows: Windows, _name: str) -> None:
    """Replace GPT-Neo's `_attn`, which does not scale and holds a mask with the window of local layers."""
    places = module.bias.shape[-1]
    seen = int(module.bias[0, 0, -1].sum())
    windows[module.layer_idx] = seen if seen < places else None
    surgery.mark(module, "_attn", partial(_attend, module, scale=1.0, window=windows[module.layer_idx]))


def _openai_gpt(module: Any, _windows: Windows, _name: str) -> None:
    """Replace GPT's `_attn`, whose keys come transposed and whose result is a list."""

    def attn(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> list[Tensor]:
        scale = value.shape[-1] ** -0.5 if module.scale else 1.0
        return [_attend(module, query, key.transpose(2, 3), value, scale=scale)[0]]

    surgery.mark(module, "_attn", attn)


def _xglm(module: Any, _windows: Windows, _name: str) -> None:
    """Replace the forward of XGLM's attention."""

    def forward(hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        parts = (layer(hidden_states) for layer in (module.q_proj, module.k_proj, module.v_proj))
        query, key, value = (part.unflatten(2, (-1, module.head_dim)).transpose(1, 2) for part in parts)
        return module.out_proj(_merged(_attend(module, query, key, value, scale=module.scaling)[0])), None

    module.forward = forward


def _falcon(module: Any, _windows: Windows, name: str) -> None:
    """Replace the forward of Falcon's attention, of those with a rotary embedding."""
    import transformers.models.falcon.modeling_falcon as falcon

    if module.config.alibi:
        raise UnsupportedModelError(
            f"{name}: its bias on the scores (ALiBi) is rounded to bfloat16, which the packed pass does not compute"
        )

    split_heads = surgery.method_of(module, "_split_heads")

    def forward(hidden_states: Tensor, alibi: None, attention_mask: Any, **named: Any) -> tuple[Tensor, None]:
        parts = split_heads(module.query_key_value(hidden_states))
        query, key, value = (part.transpose(1, 2) for part in parts)
        query, key = falcon.apply_rotary_pos_emb(query, key, *named["position_embeddings"])
        return module.dense(_merged(_attend(module, query, key, value, scale=module.head_dim**-0.5)[0])), None

    module.forward = forward


def _bloom(module: Any, _windows: Windows, _name: str) -> None:
    """Replace the forward of BLOOM's attention, which adds a slope times the key's position."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    slopes = build_alibi_tensor(torch.ones(1, 2), module.num_heads, torch.float32)[:, 0, 1]

    def forward(hidden_states: Tensor, residual: Tensor, *_: Any, **named: Any) -> tuple[Tensor, None]:
        parts = module.query_key_value(hidden_states).unflatten(2, (module.num_heads, 3, module.head_dim))
        query, key, value = (part.transpose(1, 2) for part in parts.unbind(3))
        own = slopes.to(hidden_states.device)
        out = _attend(module, query, key, value, scale=module.inv_norm_factor, slopes=own)[0]
        return module.dense(_merged(out)) + residual, None

    module.forward = forward


def _mpt(module: Any, _windows: Windows, _name: str) -> None:
    """Replace the forward of MPT's attention, which adds a slope times the distance to the key."""
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    bias = build_mpt_alibi_tensor(module.n_heads, 2)[:, 0]
    slopes = bias[:, 1] - bias[:, 0]

    def forward(hidden_states: Tensor, *_: Any, **named: Any) -> tuple[Tensor, None]:
        joined = module.Wqkv(hidden_states)
        if module.clip_qkv:
            joined = joined.clamp(-module.clip_qkv, module.clip_qkv)
        parts = (part.unflatten(2, (module.n_heads, -1)).transpose(1, 2) for part in joined.chunk(3, dim=2))
        own = slopes.to(hidden_states.device)
        return module.out_proj(_merged(_attend(module, *parts, scale=module.softmax_scale, slopes=own)[0])), None

    module.forward = forward


def _merged(out: Tensor) -> Tensor:
    """Return [1, T, H D] of [1, H, T, D]."""
    return out.transpose(1, 2).flatten(2)


_BIASED = {"BloomAttention", "MptAttention"}
_REPLACED: dict[str, Callable[[Any, Windows, str], None]] = {
    "Attention": _openai_gpt,
    "BloomAttention": _bloom,
    "CodeGenAttention": _scaled("scale_attn", -1.0),
    "FalconAttention": _falcon,
    "GPTJAttention": _scaled("scale_attn", -1.0),
    "GPTNeoSelfAttention": _gpt_neo,
    "GPTNeoXJapaneseAttention": _scaled("norm_factor", -1.0),
    "MptAttention": _mpt,
    "XGLMAttention": _xglm,
}
