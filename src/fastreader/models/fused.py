"""Our own forward for the parts that most decoder families share, adopted only where it gives their numbers.

transformers' code stays the definition. After a model has been widened (`models.wide`), each norm, feed-forward and
attention whose parts look familiar gets a fused counterpart (`ops.tokens`, joined projections), both are run on the
same input, and the counterpart replaces it only where they agree to rounding. So a family that does something else
keeps its own code, and nothing depends on a list of class names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fastreader.errors import InputError
from fastreader.models.attention import ATTENTION_NAME, KEYWORD, TreePass, attention_forward
from fastreader.models.keys import TreeKeys
from fastreader.ops.linear import PackedWeight, linear, prepare
from fastreader.ops.tokens import ACTIVATIONS, gate, rms_norm, rotary
from fastreader.tree import PrefixTree

_RECORD = "fastreader_record"
_TOKENS = 6  # of the input both are run on
_BLOCK = 512  # tokens of a feed-forward at a time, so that its inner values stay in cache
_AGREE = 1e-5  # largest difference, relative to the largest value: float32 sums in another order
_AGREE_BEHIND = 1e-3  # the same behind a softmax, which raises it
_AGREE_ROUNDED = 0.02  # where operands were rounded to bfloat16 on the way, and a last bit may fall otherwise
Windows = list[int | None]


class Joined(nn.Module):
    """Linear layers that read the same input, as one product where the kernels take a packed weight."""

    def __init__(self, layers: list[nn.Linear], precision: str) -> None:
        super().__init__()
        self.precision = precision
        self.widths = [layer.out_features for layer in layers]
        self._weights: list[Tensor | PackedWeight] = []
        self._biases: list[Tensor | None] = []
        if len(layers) > 1 and isinstance(prepare(layers[0].weight.detach()[:1], precision), PackedWeight):
            self._weights = [prepare(torch.cat([layer.weight.detach() for layer in layers]), precision)]
            self._biases = [_joined_bias(layers)]
        else:
            self._weights = [prepare(layer.weight.detach(), precision) for layer in layers]
            self._biases = [None if layer.bias is None else layer.bias.detach() for layer in layers]

    def forward(self, rows: Tensor) -> list[Tensor]:
        """[T, E] to one [T, F] for each layer; they may be views of one tensor."""
        parts = [linear(rows, w, b, precision=self.precision) for w, b in zip(self._weights, self._biases, strict=True)]
        return parts if len(parts) == len(self.widths) else list(torch.split(parts[0], self.widths, dim=1))


class FusedNorm(nn.Module):
    """Root-mean-square norm over the last axis."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.epsilon = epsilon

    def forward(self, input: Tensor) -> Tensor:
        """[..., E] to the same."""
        return rms_norm(input.reshape(-1, input.shape[-1]), self.weight, self.epsilon).view(input.shape)


class FusedFeedForward(nn.Module):
    """Gated feed-forward over blocks of tokens."""

    def __init__(self, inner: Joined, down: nn.Module, activation: str, split: bool) -> None:
        super().__init__()
        self.inner, self.down = inner, down
        self.activation = activation
        self.split = split  # one layer gives gate and up side by side

    def forward(self, input: Tensor) -> Tensor:
        """[1, T, E] to the same."""
        rows = input.reshape(-1, input.shape[-1])
        if len(rows) <= _BLOCK:
            return self._block(rows).view(input.shape)
        out = torch.empty_like(rows)
        for start in range(0, len(rows), _BLOCK):
            out[start : start + _BLOCK] = self._block(rows[start : start + _BLOCK])
        return out.view(input.shape)

    def _block(self, rows: Tensor) -> Tensor:
        parts = self.inner(rows)
        gates, up = parts[0].chunk(2, dim=1) if self.split else parts
        bf16 = self.inner.precision == "fast"
        result: Tensor = self.down(gate(gates, up, self.activation, bf16=bf16))
        return result


class FusedAttention(nn.Module):
    """Projections, norms of queries and keys, rotary embedding and attention of one layer."""

    def __init__(self, general: nn.Module, projections: Joined, sizes: tuple[int, int, int], norms: str) -> None:
        super().__init__()
        self.layer_idx: int = general.layer_idx  # type: ignore[assignment]
        self.projections = projections
        self.heads, self.key_heads, self.head_dim = sizes
        self.norms = norms
        self.q_norm, self.k_norm = getattr(general, "q_norm", None), getattr(general, "k_norm", None)
        self.o_proj: nn.Module = general.o_proj  # type: ignore[assignment]
        self.rotates = True
        self.constants: dict[str, Any] = {}

    def project(self, rows: Tensor, angles: tuple[Tensor, Tensor] | None, bf16: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Rows [T, E] to queries [T, Hq, D], keys and values [T, Hk, D]."""
        parts = self.projections(rows)
        if len(parts) == 1:
            widths = [self.heads * self.head_dim, *([self.key_heads * self.head_dim] * 2)]
            parts = list(torch.split(parts[0], widths, dim=1))
        if self.norms == "flat":
            parts[:2] = [self.q_norm(parts[0]), self.k_norm(parts[1])]  # type: ignore[misc]
        query, key, value = (part.unflatten(1, (-1, self.head_dim)) for part in parts)
        if self.norms == "head":
            query, key = self.q_norm(query), self.k_norm(key)  # type: ignore[misc]
        if self.rotates and angles is not None:
            cosine, sine = angles[0][0], angles[1][0]
            query, key = rotary(query, cosine, sine, bf16=bf16), rotary(key, cosine, sine, bf16=bf16)
        elif bf16:
            query, key = query.bfloat16(), key.bfloat16()
        return query, key, value.bfloat16() if bf16 else value

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """[1, T, E] to the same; the arguments are those of transformers' attention layers."""
        bf16 = self.projections.precision == "fast"
        query, key, value = self.project(hidden_states[0], position_embeddings, bf16)
        query, key, value = (x[None].transpose(1, 2) for x in (query, key, value))
        out, _ = attention_forward(self, query, key, value, attention_mask, **self.constants, **others)
        result: Tensor = self.o_proj(out.flatten(2))
        return result, None


@dataclass
class _Call:
    """An attention layer's call as it was seen: its own arguments, and what it handed to the interface."""

    arguments: dict[str, Any]
    output: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    constants: dict[str, Any]


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
    calls = _record(model, windows, precision)
    for name, call in calls.items():
        module = base.get_submodule(name)
        if (attention := _attention(name, module, call, layers, precision)) is not None:
            _set(base, name, attention)


def describe(model: Any) -> str:
    """How much of a widened model runs fused, in words."""
    kinds = {"attention": FusedAttention, "feed-forward": FusedFeedForward, "norm": FusedNorm}
    modules = list(model.base_model.modules())
    counts = {name: sum(isinstance(m, kind) for m in modules) for name, kind in kinds.items()}
    parts = [f"{count} {name}" for name, count in counts.items() if count]
    return f"fused ({', '.join(parts)})" if parts else "widened"


def _norm(module: nn.Module) -> FusedNorm | None:
    parameters = dict(module.named_parameters())
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("RMSNorm") or list(parameters) != ["weight"] or epsilon is None:
        return None
    weight = parameters["weight"].detach()
    if weight.dim() != 1:
        return None
    rows = _random(_TOKENS, len(weight), weight)
    for own in (weight, weight + 1):  # Gemma keeps its weight's difference from one
        fused = FusedNorm(own, float(epsilon))
        if all(_close(fused(rows * scale), module(rows * scale)) for scale in (1.0, 1e-3)):
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
    if len(inner) < len(names):
        return None
    rows = _random(_TOKENS, inner[0].in_features, inner[0].weight)[None]
    want = module(rows)
    joined = Joined(inner, precision)
    for activation in ACTIVATIONS:
        fused = FusedFeedForward(joined, children["down_proj"], activation, split=not apart)
        if _close(fused(rows), want, _AGREE_ROUNDED if precision == "fast" else _AGREE):
            return fused
    return None


def _attention(
    name: str, module: nn.Module, call: _Call, layers: dict[str, nn.Linear], precision: str
) -> FusedAttention | None:
    children = dict(module.named_children())
    names = ["qkv_proj"] if "qkv_proj" in children else ["q_proj", "k_proj", "v_proj"]
    inner = [layer for child in names if (layer := layers.get(f"{name}.{child}")) is not None]
    known = {*names, "o_proj", "q_norm", "k_norm"}
    if len(inner) < len(names) or "o_proj" not in children or not set(children) <= known:
        return None
    heads, key_heads, size = call.query.shape[1], call.key.shape[1], call.query.shape[3]
    if call.value.shape != call.key.shape or sum(i.out_features for i in inner) != (heads + 2 * key_heads) * size:
        return None
    joined = Joined(inner, precision)
    norms = "none"
    if "q_norm" in children:
        norms = "head" if _width(children["q_norm"]) == size else "flat"
    fused = FusedAttention(module, joined, (heads, key_heads, size), norms)
    fused.constants = call.constants
    hidden = call.arguments["hidden_states"][0]
    angles = call.arguments.get("position_embeddings")
    for rotates in (True, False):
        fused.rotates = rotates
        try:
            seen = fused.project(hidden, angles, bf16=False)
        except InputError:  # angles wider than a head: not this scheme
            continue
        wanted = (call.query, call.key, call.value)
        if all(_close(got.transpose(0, 1)[None], want) for got, want in zip(seen, wanted, strict=True)):
            break
    else:
        return None
    arguments = {k: v for k, v in call.arguments.items() if k != KEYWORD}
    state: TreePass = call.arguments[KEYWORD]
    state.calls.clear()
    out, _ = fused(**arguments, **{KEYWORD: state})
    return fused if _close(out, call.output, _AGREE_BEHIND if precision == "exact" else _AGREE_ROUNDED) else None


def _record(model: Any, windows: Windows, precision: str) -> dict[str, _Call]:
    """Run a few tokens through the widened model and note each attention layer's call, by the layer's name."""
    from transformers import AttentionInterface

    base = model.base_model
    seen: dict[int, tuple[tuple[Tensor, ...], dict[str, Any]]] = {}

    def record(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **named: Any) -> Any:
        constants = {key: x for key, x in named.items() if key in ("scaling", "sliding_window", "softcap", "dropout")}
        seen[id(module)] = ((q, k, v), constants)
        return attention_forward(module, q, k, v, mask, **named)

    AttentionInterface.register(_RECORD, record)
    device = next(base.parameters()).device
    vocabulary = model.config.get_text_config().vocab_size
    tree = PrefixTree.build([([(7 * i + 3) % vocabulary for i in range(_TOKENS)], [])])
    state = TreePass(TreeKeys(tree, device), windows, precision)
    calls: dict[str, _Call] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if id(module) in seen and not args and isinstance(output, tuple):
                (q, k, v), constants = seen[id(module)]
                calls[name] = _Call(dict(kwargs), output[0], q, k, v, constants)

        return hook

    handles = [
        module.register_forward_hook(note(name), with_kwargs=True)
        for name, module in base.named_modules()
        if hasattr(module, "layer_idx") and hasattr(module, "o_proj")
    ]
    with _attention_named(model, _RECORD), torch.inference_mode():
        base(
            input_ids=torch.from_numpy(tree.token_ids).to(device)[None],
            position_ids=torch.from_numpy(tree.positions).to(device, torch.int64)[None],
            use_cache=False,
            **{KEYWORD: state},
        )
    for handle in handles:
        handle.remove()
    return calls


@contextmanager
def _attention_named(model: Any, name: str) -> Iterator[None]:
    model.config._attn_implementation = name
    try:
        yield
    finally:
        model.config._attn_implementation = ATTENTION_NAME


def _joined_bias(layers: list[nn.Linear]) -> Tensor | None:
    if all(layer.bias is None for layer in layers):
        return None
    parts: list[Tensor] = [
        layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers
    ]
    return torch.cat(parts).detach()


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
