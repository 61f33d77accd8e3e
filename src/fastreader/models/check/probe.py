"""Compare a packed tree with the model's own modules, layer by layer, before any number is reported.

The truth is the model's own modules on each text by itself, in float32 (float64 for float64 weights). The packed pass
gets the truth's input at every layer, so that errors cannot grow through depth, and each layer's update (output less
input) is compared, token by token and relative to the update. First with exact products, where only the order of sums
differs; then in the reader's precision, where the packed pass may differ no more than the model's own modules do in
bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastreader.core.tree import IntArray, PrefixTree
from fastreader.errors import ModelFileError, UnsupportedModelError
from fastreader.models.check.massive import massive_difference
from fastreader.models.check.own import Constants, RecordedLayers, run_own
from fastreader.models.check.packed import Packed, WrittenStep, run_packed, run_written, short_windows, step_difference
from fastreader.models.check.unit import activation_difference, attention_difference, step_attention_difference
from fastreader.models.config.windows import Chunk
from fastreader.models.rewriting.layers import decoder_layers, kinds_of, representatives, shares_keys
from fastreader.models.rewriting.quantised import stood_in
from fastreader.models.tree_model import TreeModel

_LENGTH, _WINDOW = 16, 8
_LONG, _LONG_WINDOW = 256, 100  # of the long texts, beyond every edge of which they reach
_WRITTEN = 36  # length of the texts after which a step in one call is compared
_STEP = 1e-5  # of its states' size; they usually have the same bits
_APART, _STEPS = 12, 2  # last tokens in which the long texts differ; of these the last are also written in steps
_STREAM = 4 * 2.0**-24  # rounding of the residual stream, which a difference of two of its values shows
# Largest differences with exact products. The second factor is on the model's own float32 error, for weights so large
# that float32 itself is further off.
_LAYER, _LAYER_NOISE = 2e-4, 30.0
_LOGPROB, _LOGPROB_NOISE = 5e-5, 100.0  # nats
_EMBEDDING = 1e-5
_UNIT = 1e-4  # of attention and activations on unit values
_QUERY = 1e-3  # of a query's length
_MASSIVE = 0.1  # of a product with massive inputs, of what the other inputs give; an erased block differs by half
_HIGH = 5e-4  # median over a layer's tokens
_QUANTISED = 0.05  # median, of layers that may round their inputs to 8 bits; with stand-ins the bounds above hold
_FAST, _FAST_NOISE = 1e-3, 1.5  # median, with the median of the model's own modules in bfloat16


@dataclass(frozen=True)
class Checked:
    """The largest differences that a check found.

    Attributes:
        layer: of a layer's update, relative, with exact products.
        logprob: of a token's log-probability, nats, with exact products.
        rounded: median over tokens of a layer's update, relative, in the reader's precision; None if that is exact.
    """

    layer: float
    logprob: float
    rounded: float | None


def within_limits(found: Mapping[str, Any]) -> bool:
    """Return whether the differences of a `Checked` are numbers that every check allows."""
    limits = {"layer": _LAYER, "logprob": _LOGPROB, "rounded": _QUANTISED}
    return all(
        (name == "rounded" and found[name] is None) or (type(found[name]) is float and 0 <= found[name] <= limit)
        for name, limit in limits.items()
    )


def check(model: TreeModel, quick: bool = False) -> Checked:
    """Compare a branching tree with one text at a time.

    Args:
        model: the model to check, with its `original`. Texts are shortened to its context.
        quick: if layers pass on states only, run short texts and steps in one call in the first and the last layer of
            each kind, and long texts in the last.

    Raises:
        UnsupportedModelError: if the packed pass differs by more than rounding; the message names where.
        ModelFileError: if a weight is not finite.
    """
    length = min(_LENGTH, model.max_length or _LENGTH)
    if length < 3:  # no branch to check
        return Checked(0.0, 0.0, None)
    states = model.hidden(PrefixTree.build([([0], [])]))  # how attention is reached is known after one pass
    quick = quick and _passes_on_states(model) and bool(states.isfinite().all())
    with short_windows(model, _WINDOW):
        checking = _Check(model, length)
        found = checking.run(quick)
    long = min(_LONG, model.max_length or _LONG)
    if long > _APART + _STEPS:
        with short_windows(model, _LONG_WINDOW, rotary=True):
            checking.run_long(long)
            checking.run_step(min(_WRITTEN, long))
    return found


def _passes_on_states(model: TreeModel) -> bool:
    """Return whether a decoder layer computes from the states that come in, as far as its modules say."""
    return not model.mixers and not shares_keys(decoder_layers(model.original, model.name))


class _Check:
    def __init__(self, model: TreeModel, length: int) -> None:
        self.model = model
        self.wide = torch.float64 if model.dtype == torch.float64 else torch.float32
        embedded = next(model.original.get_input_embeddings().parameters())
        self.vocabulary = min(model.head.weight.shape[0], embedded.shape[0])  # an LM head may be wider
        self._read(_texts(self.vocabulary, length, 2 if model.mixers else 1))

    def _read(self, texts: list[list[int]]) -> None:
        model = self.model
        self.tokens = torch.tensor(texts, device=model.device)
        self.tree = PrefixTree.build([(text[:1], text[1:]) for text in texts])
        places, owners = _places(self.tree, len(texts[0]) - 1)
        self.rows = tuple(torch.from_numpy(p).to(model.device) for p in (owners, places))
        pairs = [self.tree.pairs[a:b] for a, b in zip(self.tree.offsets, self.tree.offsets[1:], strict=False)]
        self.pairs = torch.from_numpy(np.stack(pairs)).to(model.device)  # [B, n - 1]

    def run(self, quick: bool = False) -> Checked:
        """Compare texts that branch, in all layers, or in two of each kind if layers pass on states only."""
        layers = decoder_layers(self.model.original, self.model.name)
        self.short = self.stepped = only = representatives(layers) if quick else None
        with stood_in(self.model.original, self.model.model) as quantised:
            truth = self._own(self.wide)
            self._require_finite(truth)
            given = self._packed(truth)
            exact = run_packed(self.model, self.tree, given, exact=True, only=only)
            self.only = self._layers(truth, exact)
            if only is not None and self.only != only:
                return self.run()
            if quick:
                self.only = sorted(members[-1] for members in kinds_of(layers))
            layer, logprob = self._compare_exact(given, truth, self._calls_of(truth, exact))
        rounded = None
        if quantised:
            truth = self._own(self.wide)
            self._require_finite(truth)
            given = self._packed(truth)
        if self.model.products != "torch" or quantised:
            found = run_packed(self.model, self.tree, given, exact=False, only=only)
            rounded = self._compare_rounded(given, truth, found, quantised)
            off = massive_difference(self.model.model)
            if not off <= _MASSIVE:
                self._fail(f"products of inputs with massive values differ by {off:.3g} of their size", f"{_MASSIVE}")
        return Checked(layer, logprob, rounded)

    def _own(self, dtype: torch.dtype, given: RecordedLayers | None = None, scored: bool = True) -> RecordedLayers:
        return run_own(self.model.original, self.tokens, dtype, self.model.name, given, self.short, scored=scored)

    def _layers(self, truth: RecordedLayers, exact: Packed) -> list[int]:
        """Return the layers that long texts run: two of each kind if layers pass on states only, else all."""
        layers = decoder_layers(self.model.original, self.model.name)
        ran = len(layers) if self.short is None else len(self.short)
        once = len(truth.outputs) == ran and truth.plain and exact.plain and _passes_on_states(self.model)
        chained = once and all(map(torch.equal, truth.outputs, truth.inputs[1:]))
        return representatives(layers) if chained else list(range(len(layers)))

    def _calls_of(self, truth: RecordedLayers, found: Packed) -> Packed:
        """Return a packed run with its calls of attention numbered as in the run of the model's own modules."""
        if self.short is None:
            return found
        calls = dict(zip(truth.constants, sorted(found.calls), strict=False))
        return replace(found, calls={at: found.calls[layer] for at, layer in calls.items()})

    def run_long(self, length: int) -> None:
        """Compare two texts of this length, which share all but the last tokens, and their last tokens in steps."""
        model = self.model
        first, second = _texts(self.vocabulary, 2 * _APART, 1)[-2:]
        shared = _texts(self.vocabulary, 2 * (length - _APART), 1)[0][: length - _APART]
        second[-_APART] = (first[-_APART] + 1) % self.vocabulary
        self._read([shared + first[-_APART:], shared + second[-_APART:]])
        # The second text is continued a token earlier, so that the rows of a step stand at two positions.
        ends = [self.tree.path(leaf)[-1 - _STEPS - text] for text, leaf in enumerate(self.tree.leaves.tolist())]
        starts = np.sort(np.asarray(ends, dtype=np.int64))
        order = np.argsort(ends)
        row = torch.from_numpy(order).to(model.device)
        rows = [(row, length - 1 - _STEPS - row + step) for step in range(_STEPS)]
        paths = [self.tree.path(leaf) for leaf in self.tree.leaves.tolist()]
        nodes = [
            np.array([paths[text][len(paths[text]) - _STEPS - text + step] for text in order.tolist()])
            for step in range(_STEPS)
        ]
        self.short = self.only
        with stood_in(model.original, model.model):
            truth = self._own(self.wide, scored=False)
            self._require_finite(truth)
            steps = [WrittenStep(self.tokens[at].cpu().numpy(), self._packed(truth, at)) for at in rows]
            given = self._packed(truth)
            exact, written = run_written(model, self.tree, given, starts, steps, self.only)
            self._compare_calls(truth, self._calls_of(truth, exact))
            self._compare_steps(exact, starts, nodes)
            noise: RecordedLayers | None = None
            runs = [("", given, exact), *((" in generation", s.given, w) for s, w in zip(steps, written, strict=True))]
            for what, before, found in runs:
                self._compare_embedded(before, found)
                for at, differences in enumerate(self._updates(before, found)):
                    most, allowed = float(differences.max()), _LAYER
                    if not most <= allowed and self.wide == torch.float32:
                        noise = noise or self._own(torch.float64, truth, scored=False)
                        allowed = max(allowed, _LAYER_NOISE * float(self._own_updates(truth, noise, at).max()))
                    if not most <= allowed:
                        self._fail(
                            f"the update of layer {self._number(at)} differs by {most:.3g} of its "
                            f"size in texts of {length} tokens{what}",
                            f"{allowed:.3g}",
                        )

    def run_step(self, length: int) -> None:
        """Compare a step of generation in one call with one layer by layer, in the reader's own arithmetic."""
        if isinstance(self.model.fused_step, str):
            return
        text = _texts(self.vocabulary, length, 1)[0]
        tree = PrefixTree.build([(text, []), (text[:-2] + text[:1], [])])
        tokens = [self.tokens[:, step].cpu().numpy() for step in range(_STEPS)]
        off = step_difference(self.model, tree, np.sort(tree.leaves).astype(np.int64), tokens, self.stepped)
        if not off <= _STEP:
            self._fail(f"a step of generation in one call differs by {off:.3g} of its size", f"{_STEP}")

    def _packed(self, own: RecordedLayers, rows: tuple[Tensor, ...] | None = None) -> RecordedLayers:
        """Return an own run's values in the order of the tree, [T, E], or [A T, E] if a model has A streams.

        Args:
            own: the run.
            rows: texts and places of the values, instead of the tree's.
        """
        places = self.rows if rows is None else rows

        def picked(value: Tensor) -> Tensor:  # [B, n, E], [A, B, n, E] in Gemma 3n, [B, n, A, E] in HY V4
            texts = next(axis for axis in range(2) if value.shape[axis : axis + 2] == self.tokens.shape)
            return value[(slice(None),) * texts + tuple(places)].reshape(-1, value.shape[-1])

        inputs, outputs = ([picked(value) for value in values] for values in (own.inputs, own.outputs))
        assert own.embedded is not None
        return RecordedLayers(picked(own.embedded), inputs, outputs, own.logprobs)

    def _require_finite(self, truth: RecordedLayers) -> None:
        scored = truth.logprobs is None or truth.logprobs.isfinite().all()
        if scored and all(o.isfinite().all() for o in truth.outputs):
            return
        for name, weight in self.model.original.named_parameters():
            if not weight.isfinite().all():
                raise ModelFileError(f"{self.model.name}: the weight {name} has values that are not finite")
        self._fail("the model's own modules give numbers that are not finite in float32", "finite numbers")

    def _compare_exact(self, given: RecordedLayers, truth: RecordedLayers, exact: Packed) -> tuple[float, float]:
        self._compare_calls(truth, exact)
        own: RecordedLayers | None = None

        def noise() -> RecordedLayers:
            nonlocal own
            if own is None:  # only if a difference is above what usual weights show
                own = self._own(torch.float64, truth)
            return own

        self._compare_embedded(given, exact)
        worst = 0.0
        for index, differences in enumerate(self._updates(given, exact)):
            most, allowed = float(differences.max()), _LAYER
            if not most <= allowed and self.wide == torch.float32:
                own_noise = float(self._own_updates(truth, noise(), index).max())
                allowed = max(allowed, _LAYER_NOISE * own_noise)
            if not most <= allowed:
                self._fail(
                    f"the update of layer {self._number(index)} differs by {most:.3g} of its size", f"{allowed:.3g}"
                )
            worst = max(worst, most)
        assert truth.logprobs is not None and exact.logprobs is not None and exact.head_logprobs is not None
        furthest = 0.0
        for what, values in (("", exact.logprobs), (" in generation", exact.head_logprobs)):
            most, allowed = float((values[self.pairs] - truth.logprobs).abs().max()), _LOGPROB
            if not most <= allowed and self.wide == torch.float32:
                last = noise().logprobs
                assert last is not None
                allowed = max(allowed, _LOGPROB_NOISE * float((last - truth.logprobs).abs().max()))
            if not most <= allowed:
                self._fail(f"log-probabilities{what} differ by {most:.3g} nats", f"{allowed:.3g}")
            furthest = max(furthest, most)
        return worst, furthest

    def _compare_embedded(self, given: RecordedLayers, found: Packed) -> None:
        assert given.embedded is not None and found.embedded is not None
        embedded = found.embedded.reshape(given.embedded.shape).to(given.embedded.dtype)
        off = float(((embedded - given.embedded).norm(dim=-1) / given.embedded.norm(dim=-1).clamp_min(1e-30)).max())
        if not off <= _EMBEDDING:
            self._fail(f"embeddings differ by {off:.3g} of their size", f"{_EMBEDDING}")

    def _compare_calls(self, truth: RecordedLayers, exact: Packed) -> None:
        """Compare what attention was called with, its results on unit values, and activations.

        In a trained layer softmax and activations may be saturated: a wrong factor, bound or function, or a wrong
        temperature of the queries, then changes no update of a short text.
        """
        checked = set()
        for layer, own in truth.constants.items():
            params, shapes, lengths = exact.calls[layer]
            window = None if isinstance(params.window, Chunk) else params.window
            sinks = None if params.sinks is None else tuple(params.sinks.tolist())
            used = Constants(params.scale, params.softcap, window, sinks)
            if not np.isclose(used.scaling, own.scaling, rtol=1e-6) or replace(used, scaling=own.scaling) != own:
                self._fail(f"attention of layer {layer} is called with {used}", f"{own}")
            assert own.lengths is not None
            true = own.lengths[self.rows[0], self.rows[1]]
            off = float(((lengths - true).abs() / true.clamp_min(_UNIT * float(true.max()))).max())
            if not off <= _QUERY:
                self._fail(f"queries of layer {layer} differ by {off:.3g} of their length", f"{_QUERY}")
            seen = None if own.visible is None else own.visible.cpu().numpy().tobytes()
            if (key := (own, seen, params.window, shapes)) in checked:
                continue
            checked.add(key)
            off = attention_difference(self.tree, layer, exact.calls[layer], own, self.model.device, self.wide)
            if not off <= _UNIT:
                self._fail(f"attention of layer {layer} on unit values differs by {off:.3g}", f"{_UNIT}")
        off = activation_difference(self.model.original, self.model.model, self.model.device)
        if not off <= _UNIT:
            self._fail(f"activations differ by {off:.3g} on unit values", f"{_UNIT}")

    def _compare_steps(self, exact: Packed, starts: IntArray, nodes: Sequence[IntArray]) -> None:
        """Compare attention in steps on unit values, which show also a key that has little weight in the model."""
        checked = set()
        for layer, call in exact.calls.items():
            terms = [None if term is None else tuple(term.tolist()) for term in (call.params.sinks, call.params.slopes)]
            key = (call.params.scale, call.params.window, call.params.softcap, *terms, call.shapes)
            if key in checked:
                continue
            checked.add(key)
            off = step_attention_difference(self.model, self.tree, starts, nodes, call)
            if not off <= _UNIT:
                self._fail(f"attention of layer {layer} in generation on unit values differs by {off:.3g}", f"{_UNIT}")

    def _compare_rounded(self, given: RecordedLayers, truth: RecordedLayers, found: Packed, quantised: bool) -> float:
        fast, worst = self.model.precision == "fast", 0.0
        own: RecordedLayers | None = None
        for index, differences in enumerate(self._updates(given, found)):
            median = float(differences.median())
            allowed = max(_FAST if fast else _HIGH, _QUANTISED if quantised else 0.0)
            if not median <= allowed and fast:  # as far as the model's own modules are off in bfloat16
                own = own or self._own(torch.bfloat16, truth, scored=False)
                allowed = max(allowed, _FAST + _FAST_NOISE * float(self._own_updates(truth, own, index).median()))
            if not median <= allowed:
                self._fail(
                    f"in precision {self.model.precision!r} the update of layer {self._number(index)} differs by "
                    f"{median:.3g} of its size",
                    f"{allowed:.3g}",
                )
            worst = max(worst, median)
        return worst

    def _updates(self, given: RecordedLayers, found: Packed) -> list[Tensor]:
        """Return how far each layer's update is off, relative, for each packed token: [T] for each layer."""
        return [
            _relative(inputs, outputs, before, after)
            for inputs, outputs, before, after in zip(
                given.inputs, given.outputs, found.inputs, found.outputs, strict=True
            )
        ]

    def _number(self, index: int) -> int:
        """Return the number of the layer that ran as the `index`-th."""
        return index if self.short is None else self.short[index % len(self.short)]

    def _own_updates(self, truth: RecordedLayers, own: RecordedLayers, index: int) -> Tensor:
        values = truth.inputs[index], truth.outputs[index], own.inputs[index], own.outputs[index]
        return _relative(*values).flatten()

    def _fail(self, found: str, allowed: str) -> None:
        raise UnsupportedModelError(
            f"{self.model.name}: the packed pass and the model's own modules differ: {found} (allowed: {allowed}); "
            "this architecture computes something that the packed pass does not"
        )


def _relative(inputs: Tensor, outputs: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Return |update - true update| / |true update| for each token, less the rounding of the residual stream."""
    true = outputs.double() - inputs.double()
    found = after.double() - before.double()
    rounding = _STREAM * outputs.double().norm(dim=-1)
    away = ((found - true).norm(dim=-1) - rounding).clamp_min(0.0)
    return torch.where(away > 0, away / true.norm(dim=-1).clamp_min(1e-300), away)


def _texts(vocabulary: int, length: int, pairs: int) -> list[list[int]]:
    """Return texts of one length that share their first half, and `pairs` of them that share three quarters.

    With one pair there is a third text. Two pairs start from different states of a recurrent layer, at one level.
    """
    rng = np.random.default_rng(0)

    def draw(count: int) -> list[int]:
        tokens: list[int] = rng.integers(0, vocabulary, count).tolist()
        return tokens

    half, quarter = length // 2, length // 4
    shared, nested = draw(half), [draw(quarter) for _ in range(pairs)]
    rest = length - half - quarter
    alone = [] if pairs > 1 else [shared + draw(length - half)]
    return [*alone, *(shared + part + draw(rest) for part in nested for _ in range(2))]


def _places(tree: PrefixTree, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return for each packed token its place in a text, and that text: int64 [T] each."""
    places, owners = np.zeros(len(tree), dtype=np.int64), np.zeros(len(tree), dtype=np.int64)
    for text, leaf in reversed(list(enumerate(tree.leaves.tolist()))):
        path = tree.path(leaf)
        assert len(path) == length
        places[path], owners[path] = np.arange(length), text
    return places, owners
