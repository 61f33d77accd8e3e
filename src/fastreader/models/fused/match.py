"""Our own forward for the parts that most decoder families share, adopted only where it gives their numbers.

transformers' code stays the definition. After a model has been widened (`models.wide`), each norm, feed-forward and
attention whose parts look familiar gets a fused counterpart (`ops.pointwise`, joined projections), both are run on the
same inputs, and the counterpart replaces it only where they agree to rounding: also on large values, which some
families clip, and at the last positions, where some scale their queries. So a family that does something else keeps
its own code, and nothing depends on a list of class names.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastreader.errors import InputError
from fastreader.models.architecture import context_length
from fastreader.models.attention import KEYWORD, TreePass
from fastreader.models.fused.attention import FusedAttention
from fastreader.models.fused.layer import NORM_SCHEMES, FusedLayer
from fastreader.models.fused.parts import FusedFeedForward, FusedNorm, Joined
from fastreader.models.fused.trace import (
    TOKENS,
    AttentionCall,
    LayerCall,
    Windows,
    record_attention,
    record_layers,
    scaled_attention,
)
from fastreader.models.linear import WideLinear
from fastreader.models.rotary import rotary_regimes
from fastreader.ops.pointwise import ACTIVATIONS

_AGREE = 1e-5  # largest difference, relative to the largest value: float32 sums in another order
_AGREE_BEHIND = 1e-3  # the same behind a softmax, which raises it
_LARGE = 1024.0  # times a usual input: beyond the bounds of families that clip
_AGREE_ROUNDED = 0.02  # where operands were rounded to bfloat16 on the way, and a last bit may fall otherwise


@torch.no_grad()
def fuse(model: Any, layers: dict[str, nn.Linear], windows: Windows, precision: str) -> None:
    """Replace in place what has an equal counterpart.

    Args:
        model: a widened transformers model whose activations are float32.
        layers: its linear layers before widening, by name in ``model.base_model``.
        windows: each layer's attention window, tokens or None.
        precision: of the products.
    """
    base = model.base_model
    for name, module in list(base.named_modules()):
        if (norm := _norm(module)) is not None:
            _set(base, name, norm)
    for name, module in list(base.named_modules()):
        if (feed_forward := _feed_forward(name, module, layers, precision)) is not None:
            _set(base, name, feed_forward)
    starts = _starts(model)
    near, *far = [record_attention(model, windows, precision, start) for start in starts]
    for name, call in near.items():
        module = base.get_submodule(name)
        calls = [call, *(other[name] for other in far), scaled_attention(model, module, call, _LARGE)]
        if (attention := _attention(name, module, calls, layers, precision)) is not None:
            _set(base, name, attention)
    _fuse_layers(model, windows, precision, starts)


def describe(model: Any) -> str:
    """How much of a widened model runs fused, in words."""
    kinds = {"layer": FusedLayer, "attention": FusedAttention, "feed-forward": FusedFeedForward, "norm": FusedNorm}
    modules = list(model.base_model.modules())
    counts = {name: sum(isinstance(m, kind) for m in modules) for name, kind in kinds.items()}
    parts = [f"{count} {name}" for name, count in counts.items() if count]
    return f"fused ({', '.join(parts)})" if parts else "widened"


def covers(model: Any) -> bool:
    """Whether every decoder layer of a widened model runs fused."""
    count = sum(isinstance(m, FusedLayer) for m in model.base_model.modules())
    return count == int(model.config.get_text_config().num_hidden_layers)


def _norm(module: nn.Module) -> FusedNorm | None:
    parameters = dict(module.named_parameters())
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("RMSNorm") or list(parameters) != ["weight"] or epsilon is None:
        return None
    weight = parameters["weight"].detach()
    if weight.dim() != 1:
        return None
    rows = _random(TOKENS, len(weight), weight)
    for own in (weight, weight + 1):  # Gemma keeps its weight's difference from one
        fused = FusedNorm(own, float(epsilon))
        if all(_close(fused(rows * scale), module(rows * scale)) for scale in (1.0, 1e-3, _LARGE)):
            return fused
    return None


def _feed_forward(
    name: str, module: nn.Module, layers: dict[str, nn.Linear], precision: str
) -> FusedFeedForward | None:
    children = dict(module.named_children())
    apart = {"gate_proj", "up_proj", "down_proj"} <= set(children)
    if not apart and not {"gate_up_proj", "down_proj"} <= set(children):
        return None
    names = ["gate_proj", "up_proj"] if apart else ["gate_up_proj"]
    found = [layers.get(f"{name}.{child}") for child in names]
    inner = [layer for layer in found if layer is not None]
    down = children["down_proj"]
    if len(inner) < len(names) or not isinstance(down, WideLinear):
        return None
    usual = _random(TOKENS, inner[0].in_features, inner[0].weight)[None]
    wanted = [(rows, module(rows)) for rows in (usual, usual * _LARGE)]
    agree = _AGREE_ROUNDED if precision == "fast" else _AGREE
    joined = Joined(inner, precision)
    for activation in ACTIVATIONS:
        fused = FusedFeedForward(joined, down, activation)
        if all(_close(fused(rows), want, agree) for rows, want in wanted):
            return fused
    return None


def _attention(
    name: str, module: nn.Module, calls: list[AttentionCall], layers: dict[str, nn.Linear], precision: str
) -> FusedAttention | None:
    children = dict(module.named_children())
    names = ["qkv_proj"] if "qkv_proj" in children else ["q_proj", "k_proj", "v_proj"]
    inner = [layer for child in names if (layer := layers.get(f"{name}.{child}")) is not None]
    known = {*names, "o_proj", "q_norm", "k_norm"}
    out = children.get("o_proj")
    if len(inner) < len(names) or not isinstance(out, WideLinear) or not set(children) <= known:
        return None
    first = calls[0]
    heads, key_heads, size = first.query.shape[1], first.key.shape[1], first.query.shape[3]
    if first.value.shape != first.key.shape or sum(i.out_features for i in inner) != (heads + 2 * key_heads) * size:
        return None
    joined = Joined(inner, precision)
    norms = "none"
    if "q_norm" in children:
        norms = "head" if _width(children["q_norm"]) == size else "flat"
    fused = FusedAttention(module, joined, out, (heads, key_heads, size), norms)
    fused.constants = first.constants
    for rotates in (True, False):
        fused.rotates = rotates
        if all(_projects_alike(fused, call) for call in calls):
            break
    else:
        return None
    state: TreePass = first.arguments[KEYWORD]
    state.calls.clear()
    answer, _ = fused(**first.arguments)
    return fused if _close(answer, first.output, _AGREE_BEHIND if precision == "exact" else _AGREE_ROUNDED) else None


def _projects_alike(fused: FusedAttention, call: AttentionCall) -> bool:
    """Whether attention is asked for the same. Its answer on large values is not compared: softmax is a step there."""
    angles = call.arguments.get("position_embeddings")
    try:
        seen = fused.project(call.arguments["hidden_states"][0], angles, bf16=False)
    except InputError:  # angles wider than a head: not this scheme
        return False
    wanted = (call.query, call.key, call.value)
    return call.constants == fused.constants and all(
        _close(got.transpose(0, 1)[None], want) for got, want in zip(seen, wanted, strict=True)
    )


def _fuse_layers(model: Any, windows: Windows, precision: str, starts: list[int]) -> None:
    """Replace whole layers. They change their input, so the model is run again, and put back unless nothing moved."""
    base = model.base_model
    recorded = [record_layers(model, windows, precision, start) for start in starts]
    replaced = {}
    for name in recorded[0][0]:
        module = base.get_submodule(name)
        if (layer := _layer(module, [calls[name] for calls, _ in recorded], precision)) is not None:
            replaced[name] = module
            _set(base, name, layer)
    agree = _AGREE_ROUNDED if precision == "fast" else _AGREE_BEHIND
    for start, (_, before) in zip(starts, recorded, strict=True):
        if replaced and not _close(record_layers(model, windows, precision, start)[1], before, agree):
            for name, module in replaced.items():
                _set(base, name, module)
            return


def _layer(module: nn.Module, calls: list[LayerCall], precision: str) -> FusedLayer | None:
    children = {name for name, child in module.named_children() if not isinstance(child, nn.Dropout)}
    attention, feed_forward = module.self_attn, module.mlp
    if not isinstance(attention, FusedAttention) or not isinstance(feed_forward, FusedFeedForward):
        return None
    large = LayerCall(calls[0].input * _LARGE, calls[0].arguments, calls[0].output)
    large.output = _answer(module, large)
    for names in NORM_SCHEMES:
        if children != {"self_attn", "mlp", *filter(None, names)}:
            continue
        fused = FusedLayer(module, names, float(getattr(module, "residual_multiplier", 1.0)))
        first, *others = [*calls, large]
        # Far from the usual what is looked for is larger than a bit of a rounded operand that falls otherwise.
        agree = _AGREE_ROUNDED if precision == "fast" else _AGREE_BEHIND
        if _close(_answer(fused, first), first.output) and all(
            _close(_answer(fused, call), call.output, agree) for call in others
        ):
            return fused
    return None


def _answer(layer: nn.Module, call: LayerCall) -> Tensor:
    state: TreePass = call.arguments[KEYWORD]
    state.calls.clear()
    answer: Tensor = layer(call.input.clone(), **call.arguments)
    return answer


def _starts(model: Any) -> list[int]:
    """Positions to try: the first, and the last that the model takes, where it sets a limit."""
    config = model.config.get_text_config()
    last = context_length(config, rotary_regimes(config))
    return [0] if last is None or last <= TOKENS else [0, last - TOKENS]


def _width(norm: nn.Module) -> int:
    return int(next(norm.parameters()).shape[0])


def _random(rows: int, width: int, like: Tensor) -> Tensor:
    values = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    return values.to(like.device)


def _close(got: Tensor, want: Tensor, agree: float = _AGREE) -> bool:
    if got.shape != want.shape:
        return False
    allowed = agree * float(want.abs().max())
    return float((got.float() - want.float()).abs().max()) <= allowed


def _set(root: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(root.get_submodule(parent) if parent else root, child, module)
