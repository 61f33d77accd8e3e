"""Match a model's modules to fused counterparts, which replace them only if they give the same numbers.

transformers' code stays the definition. After a model has been upcast, each norm, feed-forward and
attention with familiar parts gets a fused counterpart (`ops.pointwise`, joined projections). Both run on the same
inputs, and the counterpart replaces the module only if they agree to rounding: also on large values, which some
families clip, and at the last positions, where some scale their queries. So a family that computes something else keeps
its own code, and nothing depends on a list of class names.

Modules of one structure are tried once (`trials`). If the model's final states then differ, each is tried.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from fastreader.errors import InputError
from fastreader.models.passes.attention import KEYWORD, TreePass
from fastreader.models.passes.pass_argument import held
from fastreader.models.rewriting.device_hooks import replace_module
from fastreader.models.rewriting.draft import TOKENS, Draft
from fastreader.models.rewriting.experts import ParallelExperts, SortedExperts
from fastreader.models.rewriting.fused.attention import FusedAttention
from fastreader.models.rewriting.fused.layer import NORM_SCHEMES, PROJECTIONS, FusedEnd, FusedLayer, MixedLayer
from fastreader.models.rewriting.fused.parts import (
    FusedFeedForward,
    FusedGatedNorm,
    FusedNorm,
    JoinedLinear,
    UpcastLinear,
    can_split,
    split_heads,
)
from fastreader.models.rewriting.fused.trace import (
    AttentionCall,
    AttentionShape,
    LayerCall,
    attention_shapes,
    final_states,
    trace_attention,
    trace_layers,
    trace_scaled_attention,
    whole,
)
from fastreader.models.rewriting.fused.trials import Trials
from fastreader.models.rewriting.recurrent import has_mixers
from fastreader.ops.pointwise import ACTIVATIONS

# Largest difference, relative to the largest value.
_TOLERANCE = 1e-5  # float32 sums in another order
_SOFTMAX_TOLERANCE = 1e-3  # after a softmax, which raises the difference
_BF16_TOLERANCE = 0.02  # after operands were rounded to bfloat16, where a last bit may differ
_ROTATIONS = ("angles", "half angles", "no angles")  # as `FusedAttention.angles_of` takes them
_LARGE = 1024.0  # times a usual input: beyond the bounds of families that clip


class _Traces:
    """Calls that trials compare, by the name of what was called.

    Those within layers that were left out are traced once a trial needs one.
    """

    def __init__(self, draft: Draft, trace: Callable[[int], dict[str, Any]]) -> None:
        self._draft, self._trace = draft, trace
        self.first = [] if draft.choices.known else self._traced()
        self._whole: list[dict[str, Any]] = []

    def _traced(self) -> list[dict[str, Any]]:
        return [self._trace(start) for start in self._draft.starts]

    def needs_all(self, name: str) -> bool:
        """Return whether a trial of this module needs a run of all layers, which trials of others may make needless."""
        return bool(self.first) and self.first[0].get(name) is None

    def calls(self, name: str) -> list[Any]:
        """Return the calls of a module from each of the draft's starts."""
        if not self.needs_all(name):
            return [calls[name] for calls in self.first]
        if not self._whole:
            with whole(self._draft):
                self._whole = self._traced()
        return [calls[name] for calls in self._whole]


@torch.no_grad()
def fuse_parts(draft: Draft) -> None:
    """Replace norms, feed-forwards and attention layers of an upcast draft that have an equal counterpart."""
    shapes = attention_shapes(draft)
    if draft.choices.known:
        _fuse_parts(draft, Trials(draft.choices), shapes)
        return
    before = final_states(draft)
    for trials in (Trials(draft.choices), Trials(draft.choices, remembers=False)):
        replaced = _fuse_parts(draft, trials, shapes)
        if not trials.remembered or _close(final_states(draft), before, _tolerance(draft)):
            return
        _put_back(draft, replaced)


def _fuse_parts(draft: Draft, trials: Trials, shapes: dict[str, AttentionShape]) -> list[tuple[str, nn.Module]]:
    """Replace the parts, and return the old ones by name."""
    base = draft.base
    replaced: list[tuple[str, nn.Module]] = []

    def replace(name: str, module: nn.Module | None) -> None:
        if module is not None:
            replaced.append((name, base.get_submodule(name)))
            replace_module(base, name, module)

    for name, module in list(base.named_modules()):
        replace(name, _norm(module) or _gated_norm(module))
    # Each layer's input; a pass with exact products would convert every weight.
    traces = _Traces(draft, partial(trace_attention, draft))
    with ExitStack() as stack:  # rounded products would hide one activation behind another
        for module in list(base.modules()):
            if isinstance(module, UpcastLinear):
                stack.enter_context(module.exact())
        modules = list(base.named_modules())
        undecided: list[tuple[str, nn.Module]] = []  # tried again after the others, from which they may take it
        for name, module in chain(modules, undecided):
            fused = _feed_forward(draft, name, module, stack, trials)
            if fused is not None and trials.ambiguous and (name, module) not in undecided:
                undecided.append((name, module))
            else:
                replace(name, fused)
        for name, shape in sorted(shapes.items(), key=lambda each: traces.needs_all(each[0])):
            replace(name, _attention(draft, name, shape, partial(traces.calls, name), stack, trials))
    return replaced


@torch.no_grad()
def fuse_layers(draft: Draft) -> None:
    """Replace whole layers, and put the old ones back if the final states of the model then differ."""
    base = draft.base
    mixed = has_mixers(draft.model)
    traces = _Traces(draft, lambda start: trace_layers(draft, start)[0])
    before = dict(draft.states)
    if not draft.choices.known:
        draft.choices.layers = list(traces.first[0])
    for trials in (Trials(draft.choices), Trials(draft.choices, remembers=False)):
        replaced = []
        for name in sorted(draft.choices.layers, key=traces.needs_all):
            module = base.get_submodule(name)
            calls = partial(traces.calls, name)
            if (layer := _layer(name, module, calls, draft.products, mixed, trials)) is not None:
                replaced.append((name, module))
                replace_module(base, name, layer)
        if draft.choices.known:
            return
        if all(_close(final_states(draft, start), before[start], _tolerance(draft)) for start in draft.starts):
            return
        _put_back(draft, replaced)
        draft.choices.made.update(dict.fromkeys(draft.choices.layers))
        if not trials.remembered:
            return


def _put_back(draft: Draft, replaced: list[tuple[str, nn.Module]]) -> None:
    for name, module in reversed(replaced):
        draft.base.set_submodule(name, module)


def _tolerance(draft: Draft) -> float:
    return _BF16_TOLERANCE if draft.products == "bf16" else _SOFTMAX_TOLERANCE


def describe(model: Any) -> str:
    """Return how much of an upcast model runs fused, in words."""
    kinds: dict[str, Any] = {"layer": FusedLayer, "layer around its mixer": MixedLayer, "attention": FusedAttention}
    kinds |= {"feed-forward": FusedFeedForward, "norm": (FusedNorm, FusedGatedNorm)}
    modules = list(model.base_model.modules())
    counts = {name: sum(isinstance(m, kind) for m in modules) for name, kind in kinds.items()}
    counts["mixture of experts"] = sum(isinstance(m, (SortedExperts, ParallelExperts)) for m in modules)
    parts = [f"{count} {name}" for name, count in counts.items() if count]
    return f"fused ({', '.join(parts)})" if parts else "upcast"


def covers(model: Any) -> bool:
    """Return whether every decoder layer of an upcast model runs fused."""
    count = sum(isinstance(m, FusedLayer) for m in model.base_model.modules())
    return count == int(model.config.get_text_config().num_hidden_layers)


def _norm(module: nn.Module) -> FusedNorm | None:
    found = _norm_weight(module, "RMSNorm")
    if found is None:
        return None
    weight, epsilon = found
    rows = _random(TOKENS, len(weight), weight)
    for own in (weight, weight + 1):  # Gemma stores its weight's difference from one
        fused = FusedNorm(own, epsilon)
        if all(_close(fused(rows * scale), module(rows * scale)) for scale in (1.0, 1e-3, _LARGE)):
            return fused
    return None


def _gated_norm(module: nn.Module) -> FusedGatedNorm | None:
    found = _norm_weight(module, "RMSNormGated")
    if found is None or list(inspect.signature(module.forward).parameters) != ["hidden_states", "gate"]:
        return None
    weight, epsilon = found
    rows, gates = _random(2 * TOKENS, len(weight), weight).chunk(2)
    for gated_first in (False, True):
        fused = FusedGatedNorm(weight, epsilon, gated_first)
        tried = [(rows * scale, gates * by) for scale in (1.0, 1e-3, _LARGE) for by in (1.0, 8.0)]
        if all(_close(fused(*each), module(*each)) for each in tried):
            return fused
    return None


def _norm_weight(module: nn.Module, kind: str) -> tuple[Tensor, float] | None:
    """Return weight and epsilon of a norm of one weight whose class's name ends so."""
    parameters = dict(module.named_parameters())
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith(kind) or list(parameters) != ["weight"] or epsilon is None:
        return None
    weight = parameters["weight"].detach()
    return (weight, float(epsilon)) if weight.dim() == 1 else None


def _feed_forward(
    draft: Draft, name: str, module: nn.Module, stack: ExitStack, trials: Trials
) -> FusedFeedForward | None:
    children = dict(module.named_children())
    names = ["gate_up_proj"] if "gate_up_proj" in children else ["gate_proj", "up_proj"]
    inner = [part for child in names if isinstance(part := children.get(child), UpcastLinear)]
    down = children.get("down_proj")
    adapted = any(isinstance(child, nn.ModuleList) for child in children.values())  # Zamba2's has one a layer
    if len(inner) < len(names) or not isinstance(down, UpcastLinear) or adapted:
        return None
    joined = JoinedLinear(inner, draft.products, draft.owned)
    stack.enter_context(joined.exact())
    tried: list[tuple[Tensor, Tensor]] = []

    def agrees(activation: str) -> bool:
        if not tried:
            weight = inner[0].stored[0].weight
            usual = _random(TOKENS, weight.shape[1], weight)[None]
            rows = torch.cat([usual, usual * _LARGE], dim=1)
            tried.append((rows, module(rows)))
        ((rows, expected),) = tried
        got = FusedFeedForward(joined, down, activation)(rows)
        return got.shape == expected.shape and all(map(_close, got.chunk(2, dim=1), expected.chunk(2, dim=1)))

    activation = trials.choose(name, module, ACTIVATIONS, agrees)
    return None if activation is None else FusedFeedForward(joined, down, activation)


def _attention(
    draft: Draft,
    name: str,
    shape: AttentionShape,
    calls: Callable[[], list[AttentionCall]],
    stack: ExitStack,
    trials: Trials,
) -> FusedAttention | None:
    module = draft.base.get_submodule(name)
    children = dict(module.named_children())
    names = ["qkv_proj"] if "qkv_proj" in children else ["q_proj", "k_proj", "v_proj"]
    inner = [part for child in names if isinstance(part := children.get(child), UpcastLinear)]
    out = children.get("o_proj")
    known = {*names, "o_proj", "q_norm", "k_norm"}
    if len(inner) < len(names) or not isinstance(out, UpcastLinear) or not set(children) <= known:
        return None
    (heads, size), (key_heads, _) = shape.query, shape.key
    extra = sum(part.stored[0].out_features for part in inner) - (heads + 2 * key_heads) * size
    gate = None
    if extra == heads * size and len(inner) == 3 and can_split(inner[0].stored[0], draft.products):
        queries, gates = split_heads(inner[0].stored[0], heads)
        inner[0].hold(None)
        inner[0], gate = UpcastLinear(queries, draft.products), UpcastLinear(gates, draft.products)
        stack.enter_context(gate.exact())
    elif extra:
        return None
    if shape.value != shape.key:
        return None
    norms = "none"
    if "q_norm" in children:
        weight = next(children["q_norm"].parameters(), None)
        if weight is None:  # NanoChat's have no weights
            return None
        norms = "head" if len(weight) == size else "flat"
    joined = JoinedLinear(inner, draft.products, draft.owned)
    fused = FusedAttention(module, joined, out, (heads, key_heads, size), norms, gate)
    fused.constants = shape.constants
    stack.enter_context(joined.exact())

    exact: list[AttentionCall] = []

    def agrees(rotates: str) -> bool:
        _rotate(fused, rotates)
        if not exact:
            exact.extend(trace_scaled_attention(module, call, 1.0) for call in calls())
            exact.append(trace_scaled_attention(module, calls()[0], _LARGE))
        if not all(_projects_alike(fused, call) for call in exact):
            return False
        arguments = calls()[0].arguments
        state: TreePass = arguments[KEYWORD]
        state.calls.clear()
        return _close(fused(**arguments)[0], exact[0].output, _SOFTMAX_TOLERANCE)

    rotates = trials.choose(name, module, _ROTATIONS, agrees, shape.constants)
    if rotates is None:
        return None
    _rotate(fused, rotates)
    return fused


def _rotate(fused: FusedAttention, rotates: str) -> None:
    fused.rotates, fused.half_angles = rotates != "no angles", rotates == "half angles"


def _projects_alike(fused: FusedAttention, call: AttentionCall) -> bool:
    """Return whether attention gets the same inputs. Outputs on large values are not compared: softmax is a step."""
    angles = call.arguments.get("position_embeddings")
    if fused.rotates and not (angles is None or isinstance(angles, tuple)):  # Llama 4's are complex numbers
        return False
    try:
        projected = fused.project(call.arguments["hidden_states"][0], angles, bf16=False)
    except InputError:  # angles wider than a head: another rotary scheme
        return False
    expected = (call.query, call.key, call.value)
    return call.constants == fused.constants and all(
        _close(got.transpose(0, 1)[None], want) for got, want in zip(projected, expected, strict=True)
    )


def _layer(
    name: str, module: nn.Module, calls: Callable[[], list[LayerCall]], precision: str, mixed: bool, trials: Trials
) -> FusedEnd | None:
    candidates = list(_candidates(module, mixed))
    chosen = trials.choose(
        name, module, range(len(candidates)), lambda i: _same_layer(module, candidates[i], calls(), precision)
    )
    return None if chosen is None else candidates[chosen]


def _same_layer(module: nn.Module, fused: FusedEnd, calls: list[LayerCall], precision: str) -> bool:
    large = LayerCall(calls[0].input * _LARGE, calls[0].arguments, calls[0].output, calls[0].state)
    large.output = _output(module, large)
    # Far from the usual input, the differences looked for are larger than one bit of a rounded operand.
    tolerance = _BF16_TOLERANCE if precision == "bf16" else _SOFTMAX_TOLERANCE
    if not all(_close(_output(fused, call), call.output, tolerance) for call in (*calls, large)):
        return False
    if precision in ("bf16", "bf16x3"):  # a last bit of a sum may move a term by one of bfloat16's
        return _same_unrounded(module, fused, calls[0])
    return _close(_output(fused, calls[0]), calls[0].output)


def _candidates(module: nn.Module, mixed: bool) -> Iterator[FusedEnd]:
    """Yield what a layer may be, around transformers' mixers only in models with recurrences (`mixed`)."""
    if not isinstance(module.mlp, FusedFeedForward):
        return
    children = {name for name, child in module.named_children() if not isinstance(child, nn.Dropout)}
    factor = float(getattr(module, "residual_multiplier", 1.0))
    for names in NORM_SCHEMES:
        norms = set(filter(None, names))
        rest = children - norms - {"mlp"}
        if len(rest) != 1 or not norms <= children:
            continue
        (name,) = rest
        mixer = getattr(module, name)
        if name == "self_attn" and isinstance(mixer, FusedAttention):
            yield FusedLayer(module, names, factor)
        elif mixed and hasattr(mixer, "layer_idx"):
            last = [own for own in PROJECTIONS if isinstance(getattr(mixer, own, None), UpcastLinear)]
            if len(last) == 1:
                yield MixedLayer(module, name, last[0], names, factor)


def _same_unrounded(module: nn.Module, fused: FusedEnd, call: LayerCall) -> bool:
    """Return whether both give the same if nothing is rounded, since sums in another order may round to a neighbour."""
    kept = call.state.precision
    with ExitStack() as stack:
        for part in fused.modules():  # both have the same mixer and feed-forward
            if isinstance(part, (UpcastLinear, JoinedLinear, FusedEnd)):
                stack.enter_context(part.exact())
        call.state.precision = "torch"
        try:
            return _close(_output(fused, call), _output(module, call))
        finally:
            call.state.precision = kept


def _output(layer: nn.Module, call: LayerCall) -> Tensor:
    call.state.calls.clear()
    with held(layer, call.state):
        output: Tensor = layer(call.input.clone(), **call.arguments)
    return output


def _random(rows: int, width: int, like: Tensor) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(0)).to(like.device)


def _close(got: Tensor, want: Tensor, tolerance: float = _TOLERANCE) -> bool:
    if got.shape != want.shape:
        return False
    return float((got.float() - want.float()).abs().max()) <= tolerance * float(want.abs().max())
