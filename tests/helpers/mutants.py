"""Wrong passes made on purpose: each changes one thing that the packed pass computes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn

from fastreader.models.config.windows import Chunk
from fastreader.models.passes.decode_keys import DecodeKeys, Paths
from fastreader.models.passes.packed_keys import PackedKeys
from fastreader.models.passes.query_temperature import Temperature
from fastreader.models.passes.recurrent_states import PathStates
from fastreader.models.rewriting.experts import ScaledExperts, SortedExperts
from fastreader.models.rewriting.fused import FusedFeedForward, FusedNorm, FusedStep
from fastreader.models.tree_model import TreeModel
from fastreader.ops.recurrent import ScanPlan
from fastreader.ops.recurrent.chains import Walks

MUTANTS: dict[str, Callable[[TreeModel], AbstractContextManager[None]]] = {}


def mutant(function):
    MUTANTS[function.__name__] = contextmanager(function)
    return function


@contextmanager
def patched(owner, name, value):
    before = owner.__dict__.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _attending(change):
    """Patch what all layers' attention is computed with: `change` maps the parameters."""
    attend = PackedKeys.attend
    return patched(
        PackedKeys, "attend", lambda self, q, k, v, params, *a, **n: attend(self, q, k, v, change(params), *a, **n)
    )


@mutant
def scale(model):
    with _attending(lambda params: replace(params, scale=params.scale * 1.05)):
        yield


def _resized(params, by):
    """Change the length of a window or a chunk."""
    if params.window is None:
        return params
    chunk = isinstance(params.window, Chunk)
    return replace(params, window=Chunk(params.window.tokens + by) if chunk else params.window + by)


@mutant
def window_wider(model):
    with _attending(lambda params: _resized(params, 1)):
        yield


@mutant
def window_narrower(model):
    with _attending(lambda params: _resized(params, -1)):
        yield


@mutant
def chunk_as_window(model):
    """A chunk's tokens counted from each query."""
    with _attending(
        lambda params: replace(params, window=params.window.tokens) if isinstance(params.window, Chunk) else params
    ):
        yield


@mutant
def no_sinks(model):
    with _attending(lambda params: replace(params, sinks=None)):
        yield


@mutant
def sinks_of_the_next_head(model):
    with _attending(
        lambda params: params if params.sinks is None else replace(params, sinks=params.sinks.roll(1, dims=0))
    ):
        yield


@mutant
def sinks_of_the_other_sign(model):
    with _attending(lambda params: params if params.sinks is None else replace(params, sinks=-params.sinks)):
        yield


@mutant
def slopes(model):
    """ALiBi in a model without it. Layers of chunks take no slopes."""
    attend = PackedKeys.attend

    def sloped(self, query, key, value, params, *others, **named):
        if not isinstance(params.window, Chunk):
            params = replace(params, slopes=torch.full((query.shape[1],), 0.02, device=query.device))
        return attend(self, query, key, value, params, *others, **named)

    with patched(PackedKeys, "attend", sloped):
        yield


@mutant
def slopes_of_the_other_sign(model):
    with _attending(lambda params: params if params.slopes is None else replace(params, slopes=-params.slopes)):
        yield


@mutant
def keys_of_another_layer(model):
    """Layers that reuse keys and values (Gemma 3n, Gemma 4) take them from a layer of the other kind."""
    reusing = [m for m in model.model.modules() if getattr(m, "is_kv_shared_layer", False)]
    kinds = [m.layer_type for m in reusing]
    for module, kind in zip(reusing, kinds, strict=True):
        module.layer_type = next((other for other in kinds if other != kind), kind)
    try:
        yield
    finally:
        for module, kind in zip(reusing, kinds, strict=True):
            module.layer_type = kind


@mutant
def experts_of_the_next_token(model):
    """Tokens go to the experts that the router chose for their neighbours."""
    mixtures = [m for m in model.model.modules() if isinstance(m, SortedExperts)]

    def moved(own, rows, *routes):
        if not routes:  # Llama 4: every token once an expert, zeros where it is not sent
            sent = rows.unflatten(0, (len(own.experts), -1))
            return ScaledExperts.forward(own, sent.roll(1, 1).flatten(0, 1))
        chosen, factors = routes
        return SortedExperts.forward(own, rows, chosen.roll(1, 0), factors)

    for module in mixtures:
        module.forward = partial(moved, module)
    try:
        yield
    finally:
        for module in mixtures:
            del module.forward


@mutant
def temperature_by_place(model):
    """Llama 4's temperature by a token's place in the packing, as transformers' own code has it."""
    applied = Temperature.applied

    def placed(self, query, positions):
        return applied(self, query, torch.arange(len(positions), device=positions.device))

    with patched(Temperature, "applied", placed):
        yield


@mutant
def no_window(model):
    with _attending(lambda params: replace(params, window=None)):
        yield


@mutant
def no_soft_cap(model):
    with _attending(lambda params: replace(params, softcap=None)):
        yield


@mutant
def siblings_visible(model):
    """Every token sees all before it in the packing."""
    init = PackedKeys.__init__

    def seeing(self, subtree_end, *others, **named):
        subtree_end = subtree_end.copy()
        subtree_end[:] = len(subtree_end)
        init(self, subtree_end, *others, **named)

    with patched(PackedKeys, "__init__", seeing):
        yield


@mutant
def positions(model):
    """Tokens stand at their place in the packing, not in their text."""
    forward = TreeModel.forward

    def placed(self, token_ids, positions, *others, **named):
        return forward(self, token_ids, np.arange(len(positions), dtype=positions.dtype), *others, **named)

    with patched(TreeModel, "forward", placed):
        yield


@mutant
def rotary(model):
    """Angles a hundredth too wide."""
    modules = [m for m in model.model.modules() if hasattr(m, "inv_freq") and isinstance(m.inv_freq, torch.Tensor)]
    kept = [dict(m.named_buffers()) for m in modules]
    for module, buffers in zip(modules, kept, strict=True):
        for name, buffer in buffers.items():
            setattr(module, name, buffer * 1.01)
    try:
        yield
    finally:
        for module, buffers in zip(modules, kept, strict=True):
            for name, buffer in buffers.items():
                setattr(module, name, buffer)


def _norms(model):
    return [m for m in model.model.base_model.modules() if isinstance(m, FusedNorm) or "Norm" in type(m).__name__]


@contextmanager
def _outputs(modules, change):
    handles = [module.register_forward_hook(lambda _m, _a, out: change(out)) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@mutant
def norm(model):
    """A seventh of the norms' weights off by a hundredth."""
    norms = [m for m in _norms(model) if m._parameters.get("weight") is not None]
    kept = [m._parameters["weight"] for m in norms]
    for module, weight in zip(norms, kept, strict=True):  # the model's own modules may hold the same parameter
        moved = weight.detach().clone()
        moved[::7] *= 1.01
        module._parameters["weight"] = nn.Parameter(moved, requires_grad=False)
    try:
        yield
    finally:
        for module, weight in zip(norms, kept, strict=True):
            module._parameters["weight"] = weight


@mutant
def activation(model):
    """GELU for SiLU, and SiLU for GELU."""
    other = {"silu": "gelu_tanh", "gelu_tanh": "silu"}
    fused = [m for m in model.model.modules() if isinstance(m, FusedFeedForward)]
    plain = [m for m in model.model.modules() if not isinstance(m, FusedFeedForward) and hasattr(m, "act_fn")]
    kept = [m.activation for m in fused], [m.act_fn for m in plain]
    for module in fused:
        module.activation = other[module.activation]
    for module in plain:
        module.act_fn = nn.GELU() if isinstance(module.act_fn, nn.SiLU) or "SiLU" in repr(module.act_fn) else nn.SiLU()
    try:
        yield
    finally:
        for module, before in zip(fused, kept[0], strict=True):
            module.activation = before
        for module, before in zip(plain, kept[1], strict=True):
            module.act_fn = before


@mutant
def embedding_scale(model):
    with _outputs([model.model.get_input_embeddings()], lambda rows: rows * 1.002):
        yield


@mutant
def logit_scale(model):
    kept = model.logit_scale
    model.logit_scale = kept * 1.01
    try:
        yield
    finally:
        model.logit_scale = kept


@mutant
def logit_cap(model):
    kept = model.logit_softcap
    model.logit_softcap = None if kept is not None else 20.0
    try:
        yield
    finally:
        model.logit_softcap = kept


@mutant
def generation_scale(model):
    """The head that generation uses, which scoring does not."""
    kept = model.logit_scale
    model.logits._scale *= 1.01
    try:
        yield
    finally:
        model.logits._scale = kept


@mutant
def router(model):
    """Experts weighed a hundredth differently."""
    gates = [
        m for name, m in model.model.named_modules() if name.endswith((".gate", ".router")) and "experts" not in name
    ]

    def change(out):
        if isinstance(out, tuple):
            return tuple(x * 1.01 if x.is_floating_point() else x for x in out)
        return out * 1.01

    with _outputs(gates, change):
        yield


@contextmanager
def starts(change):
    """Chunks and whole chains of a level start from the states that `change` returns."""
    batch, table = ScanPlan._batch, Walks.__init__

    def changed_batch(self, *args):
        made = batch(self, *args)
        return replace(made, before=change(made.before))

    def changed_table(self, *args):
        table(self, *args)
        for level in self.levels:
            before = self.table[level.first : level.first + level.chains, 2]
            before.copy_(change(before))

    with patched(ScanPlan, "_batch", changed_batch), patched(Walks, "__init__", changed_table):
        yield


@mutant
def no_parent_state(model):
    """Every chain of a recurrence starts from nothing."""
    with starts(lambda before: torch.full_like(before, -1)):
        yield


@mutant
def state_of_another_branch(model):
    """Chains of a level start from each other's states."""
    with starts(lambda before: before.roll(1)):
        yield


@mutant
def convolution_of_packed_neighbours(model):
    """A short convolution reads the tokens before in the packing."""
    table = PathStates._table

    def neighbouring(self, before):
        ancestors, last = table(self, before)
        return (torch.arange(len(ancestors))[:, None] - torch.arange(1, before + 1)).clamp_min(-1), last

    with patched(PathStates, "_table", neighbouring):
        yield


@mutant
def convolution_without_its_past(model):
    table = PathStates._table

    def forgetting(self, before):
        ancestors, last = table(self, before)
        return torch.full_like(ancestors, -1), last

    with patched(PathStates, "_table", forgetting):
        yield


# Passes that go wrong beyond some length or position, or in generation only, which no short text shows in one pass.
LATE: dict[str, Callable[[TreeModel], AbstractContextManager[None]]] = {}


def late(name, function):
    LATE[name] = contextmanager(function)


def _hiding(edge):
    """Hide keys further back than `edge` tokens, in passes and steps."""

    def mutated(_model):
        def hiding(params):
            window = params.window
            narrow = window is None or (not isinstance(window, Chunk) and window > edge)
            return replace(params, window=edge) if narrow else params

        attend, row_keys = DecodeKeys.attend, DecodeKeys.row_keys

        def in_steps(self, layer, q, k, v, params):
            return attend(self, layer, q, k, v, hiding(params))

        def in_one_call(self, windows):
            return row_keys(self, [edge if w is None or (isinstance(w, int) and w > edge) else w for w in windows])

        with (
            _attending(hiding),
            patched(DecodeKeys, "attend", in_steps),
            patched(DecodeKeys, "row_keys", in_one_call),
        ):
            yield

    return mutated


def _placing(change, passes=True):
    """Change positions, in passes and steps or in steps only."""

    def mutated(_model):
        states, call = TreeModel.states, FusedStep.__call__

        def placed(self, tokens, positions, keys, selected=None):
            if passes or isinstance(keys, DecodeKeys):
                positions = change(positions)
            return states(self, tokens, positions, keys, selected)

        def stepped(self, token_ids, positions, keys):
            return call(self, token_ids, change(torch.from_numpy(positions)).numpy(), keys)

        with patched(TreeModel, "states", placed), patched(FusedStep, "__call__", stepped):
            yield

    return mutated


for _edge in (28, 32, 60, 140):
    late(f"keys_hidden_beyond_{_edge}", _hiding(_edge))
for _most in (30, 64, 200):
    late(f"positions_clipped_at_{_most}", _placing(lambda positions, most=_most: positions.clip(max=most)))
late("positions_wrapped_at_100", _placing(lambda positions: positions % 100))
late("positions_of_steps_one_late", _placing(lambda positions: positions + 1, passes=False))
late("positions_of_steps_stand_still", _placing(lambda positions: positions * 0 + positions.min(), passes=False))


def _steps(name, change):
    """Replace a method of `DecodeKeys` by one that gets the old one first."""

    def mutated(_model):
        before = getattr(DecodeKeys, name)
        with patched(DecodeKeys, name, lambda self, *args, **named: change(before, self, *args, **named)):
            yield

    return mutated


def _without_the_newest(ranges_of, self, *args, **named):
    found = ranges_of(self, *args, **named)
    last = found.row_ptr[1:] - 1
    stop = found.stop.copy()
    stop[last] = np.maximum(stop[last] - 1, found.start[last])
    return replace(found, stop=stop)


def _without_the_first(ranges_of, self, *args, **named):
    found = ranges_of(self, *args, **named)
    start, first = found.start.copy(), found.row_ptr[:-1]
    start[first] = np.minimum(start[first] + 1, found.stop[first])
    return replace(found, start=start)


late("steps_without_their_newest_key", _steps("_ranges_of", _without_the_newest))
late("steps_without_the_first_key", _steps("_ranges_of", _without_the_first))


def _lost_in_one_call(row_keys, self, windows):
    found = row_keys(self, windows)
    if found is None:
        return None
    return replace(found, ranges=[_without_the_first(lambda _self, own=own: own, self) for own in found.ranges])


late("steps_in_one_call_without_the_first_key", _steps("row_keys", _lost_in_one_call))


def _from_the_other_text(_model):
    of = Paths.of
    with patched(Paths, "of", classmethod(lambda _cls, tree, leaves: of(tree, leaves[::-1]))):
        yield


late("steps_after_the_other_text", _from_the_other_text)


def _scaled_steps(_model):
    attend, call = DecodeKeys.attend, FusedStep.__call__

    def in_steps(self, layer, q, k, v, params):
        return attend(self, layer, q * 1.02, k, v, params)

    def in_one_call(self, *args):
        return call(self, *args) * 1.002

    with patched(DecodeKeys, "attend", in_steps), patched(FusedStep, "__call__", in_one_call):
        yield


late("steps_of_another_scale", _scaled_steps)


def _turned_in_one_call(_model):
    embedded = FusedStep._embedded

    def turned(self, tokens, positions):
        stream, (cosine, sine) = embedded(self, tokens, positions)
        return stream, (cosine * 1.01, sine)

    with patched(FusedStep, "_embedded", turned):
        yield


late("steps_in_one_call_turned_otherwise", _turned_in_one_call)


def longer(vocabulary, longest, seed=0):
    """Two pairs of texts of almost `longest` tokens which differ at their end, and prompts of two lengths."""
    rng = np.random.default_rng(3 + seed)
    text = rng.integers(2, vocabulary, longest - 8).tolist()
    texts = [text, [*text[:-6], *rng.integers(2, vocabulary, 6).tolist()]]
    return [(context[:-40], context[-40:]) for context in texts], [texts[0][:-3], texts[1]]


def shown(reader, sequences, prompts):
    """The log-probabilities of texts, and tokens with theirs that are written."""
    scores = np.concatenate(reader.score(sequences).token_logprobs)
    written = [g for (g,) in reader.generate(prompts, max_new_tokens=5, token_logprobs=True)]
    return scores, [(list(g.token_ids), list(g.token_logprobs)) for g in written]


def apart(one, other):
    """Return how far results are apart, in nats, up to the first token that is another."""
    worst = float(np.abs(one[0] - other[0]).max())
    for (tokens, logprobs), (others, values) in zip(one[1], other[1], strict=True):
        for token, another, x, y in zip(tokens, others, logprobs, values, strict=False):
            worst = max(worst, abs(x - y))
            if token != another:
                break
    return worst
