"""decoder_step against its reference, and bit for bit against the ops it is made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cpu_cases import available
from decoder_cases import ALLOWED, EPSILON, HEADS, HIDDEN, KEY_HEADS, SIZE, Case

from fastreader.errors import InputError
from fastreader.ops import extension
from fastreader.ops.decode_attention import Ranges, decode_attention
from fastreader.ops.decoder_layer import decoder_layer_in, decoder_layer_out
from fastreader.ops.decoder_step import Layer, Shape, StackedLayers, StepKeys, decoder_step
from fastreader.ops.decoder_step.reference import PlainLayer, decoder_step_reference

pytestmark = pytest.mark.skipif(not available(), reason=f"no C++ extension: {extension.why_missing()}")

LAYERS, PROMPT, CAPACITY, WRITTEN, WINDOW = 3, 90, 8, 5, 3
VARIANTS = [
    pytest.param({}, id="plain"),
    pytest.param({"biases": True, "norms": "head", "softcap": 5.0}, id="biases, norms of heads, cap"),
    pytest.param({"norms": "flat", "windows": [None, WINDOW, None], "rotates": [True, False, True]}, id="windows"),
]


@pytest.fixture(params=available(products=True))
def isa(request, monkeypatch):
    monkeypatch.setenv("FASTREADER_CPU_ISA", request.param)
    return request.param


class Step:
    """Layers, and rows that have written some tokens after prompts that branch."""

    def __init__(self, rows: int, precision: str, *, softcap=None, windows=None, rotates=None, **options) -> None:
        self.cases = [Case(rows, precision, seed=i, **options) for i in range(LAYERS)]
        first = self.cases[0]
        self.rows, self.stream, self.angles = rows, first.stream, first.angles
        self.shape = Shape(HEADS, KEY_HEADS, EPSILON, "silu", SIZE**-0.5, softcap)
        self.rotates = rotates or [True] * LAYERS
        self.list = [
            Layer(c.norm, c.second, c.weights["projections"], c.head_norms, *self.rest(c), rotates=rotates_)
            for c, rotates_ in zip(self.cases, self.rotates, strict=True)
        ]
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.windows = windows or [None] * LAYERS
        self.slots = torch.randperm(rows + 2, generator=first.generator)[:rows]
        self.first = {
            name: [first.random(length, KEY_HEADS, SIZE).to(self.dtype) for _ in range(LAYERS)]
            for name, length in (
                *(("keys", PROMPT), ("values", PROMPT)),
                *(("new_keys", (rows + 2) * CAPACITY), ("new_values", (rows + 2) * CAPACITY)),
            )
        }

    @staticmethod
    def rest(case):
        return [case.weights[name] for name in ("out", "inner", "down")]

    def ranges(self, window) -> Ranges:
        """Row b sees the prompt's first keys, another branch, and its new tokens, the last just written."""
        part, start, stop = [], [], []
        for b in range(self.rows):
            new = int(self.slots[b]) * CAPACITY
            seen = WRITTEN if window is None else window
            part += [0, 0, 1]
            start += [0, 20 + b % 30, new + WRITTEN - seen]
            stop += [10 if window is None else 0, (50 + b % 40) if window is None else 0, new + WRITTEN]
        arrays = (np.array(x, dtype=np.int32) for x in (range(0, 3 * self.rows + 1, 3), part, start, stop))
        return Ranges(*arrays)

    def keys(self) -> StepKeys:
        distinct = list(dict.fromkeys(self.windows))
        return StepKeys(
            **{name: [x.clone() for x in tensors] for name, tensors in self.first.items()},
            slots=self.slots * CAPACITY + WRITTEN - 1,
            ranges=[self.ranges(window) for window in distinct],
            ranges_of=[distinct.index(window) for window in self.windows],
        )

    def run(self) -> tuple[torch.Tensor, StepKeys]:
        stream, keys = self.stream.clone(), self.keys()
        decoder_step(stream, StackedLayers(self.list, self.shape), self.angles, keys)
        return stream, keys

    def layer_by_layer(self) -> tuple[torch.Tensor, StepKeys]:
        """As `models.fused` and `models.decode_cache` do it."""
        stream, keys = self.stream.clone(), self.keys()
        for i, layer in enumerate(self.list):
            query, key, value = decoder_layer_in(
                *(stream, layer.first, EPSILON, layer.projections),
                heads=HEADS,
                key_heads=KEY_HEADS,
                head_norms=layer.head_norms,
                angles=self.angles if layer.rotates else None,
            )
            keys.new_keys[i].index_copy_(0, keys.slots, key)
            keys.new_values[i].index_copy_(0, keys.slots, value)
            attended, _ = decode_attention(
                query,
                [keys.keys[i], keys.new_keys[i]],
                [keys.values[i], keys.new_values[i]],
                keys.ranges[keys.ranges_of[i]],
                scale=self.shape.scale,
                softcap=self.shape.softcap,
            )
            rows = attended.to(query.dtype).flatten(1)
            rest = {"norm": layer.second, "epsilon": EPSILON, "inner": layer.inner, "activation": "silu"}
            decoder_layer_out(stream, rows, layer.out, down=layer.down, **rest)
        return stream, keys


def assert_same_bits(got, want) -> None:
    (stream, keys), (other, others) = got, want
    assert torch.equal(stream, other)
    assert all(map(torch.equal, keys.new_keys, others.new_keys))
    assert all(map(torch.equal, keys.new_values, others.new_values))


@pytest.mark.parametrize("precision", list(ALLOWED))
@pytest.mark.parametrize("rows", [1, 2, 7, 33, 600])
@pytest.mark.parametrize("options", VARIANTS)
def test_the_bits_of_the_ops_it_is_made_of(isa, rows, precision, options):
    step = Step(rows, precision, **options)
    assert_same_bits(step.run(), step.layer_by_layer())


@pytest.mark.parametrize("precision", list(ALLOWED))
@pytest.mark.parametrize("options", VARIANTS)
def test_against_the_reference(isa, precision, options):
    step = Step(5, precision, **options)
    plain = []
    for case, rotates in zip(step.cases, step.rotates, strict=True):
        weights = {name: (weight, case.biases[name]) for name, weight in case.plain.items()}
        norms = case.head_norms and (case.head_norms.query, case.head_norms.key, case.head_norms.epsilon)
        rest = weights["out"], weights["inner"], weights["down"]
        plain.append(PlainLayer(case.norm, case.second, weights["projections"], norms, *rest, rotates=rotates))
    kept = step.keys()
    want = decoder_step_reference(step.stream, plain, step.shape, step.angles, kept)
    got, keys = step.run()
    assert (got.double() - want).abs().max() <= LAYERS * ALLOWED[precision] * want.abs().max()
    for ours, theirs in zip(keys.new_keys + keys.new_values, kept.new_keys + kept.new_values, strict=True):
        difference = (ours.double() - theirs.double()).abs().max()
        assert difference <= LAYERS * ALLOWED[precision] * theirs.double().abs().max()


@pytest.mark.parametrize("rows", [1, 40])
def test_threads_do_not_matter(rows):
    step = Step(rows, "bf16")
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results += [step.run() for _ in range(20)]
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert_same_bits(results[0], other)


def test_a_row_does_not_depend_on_its_neighbours(isa):
    step = Step(40, "bf16", windows=[None, WINDOW, None])
    stream, _ = step.run()
    few = slice(13, 16)
    step.rows, step.stream, step.slots = 3, step.stream[few], step.slots[few]
    step.angles = tuple(x[few] for x in step.angles)
    whole = step.ranges
    step.ranges = lambda window: shifted(whole, step, window, 13)
    assert torch.equal(step.run()[0], stream[few])


def shifted(ranges, step, window, first) -> Ranges:
    """The ranges of rows first, first + 1, ...: a row's branch depends on its number."""
    kept = ranges(window)
    if window is None:
        branch = np.arange(len(step.slots)) + first
        kept.start[1::3], kept.stop[1::3] = 20 + branch % 30, 50 + branch % 40
    return kept


def test_no_rows():
    step = Step(0, "bf16")
    assert step.run()[0].shape == (0, HIDDEN)


def arguments(step: Step) -> tuple:
    layers, keys = StackedLayers(step.list, step.shape), step.keys()
    ranges = [t for r in keys.ranges for t in r.tensors(step.rows, [PROMPT, len(keys.new_keys[0])])]
    return (
        *(step.stream.clone(), *layers.before, *step.angles, *layers.after),
        *(keys.keys, keys.values, keys.new_keys, keys.new_values, keys.slots, ranges, keys.ranges_of),
        *(*layers.scores, *layers.layout),
    )


@pytest.mark.parametrize("options", VARIANTS)
def test_opcheck(options):
    torch.library.opcheck(torch.ops.fastreader.decoder_step_, arguments(Step(5, "bf16", **options)))


SLOTS, NEW_KEYS, RANGES_OF = -8, -10, -6


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (SLOTS, lambda slots: slots + 1000, "slot 10"),
        (SLOTS, lambda slots: slots.int(), "slots must be contiguous int64"),
        (SLOTS, lambda slots: slots[:-1], "slots must be contiguous int64"),
        (RANGES_OF, lambda of: [0, 7, 0], "no ranges 7"),
        (NEW_KEYS, lambda keys: [k.float() for k in keys], "new keys and values must be contiguous"),
        (NEW_KEYS, lambda keys: [k[:, :, :8] for k in keys], "new keys and values must be contiguous"),
        (NEW_KEYS, lambda keys: keys[:2], "expected 3 new keys, got 2"),
        (3, lambda packed: packed[:-1], "expected 12 packed weights, got 11"),
    ],
)
def test_the_kernel_itself_rejects_what_would_write_elsewhere(place, change, message):
    given = list(arguments(Step(5, "bf16")))
    given[place] = change(given[place])
    with pytest.raises(RuntimeError, match=message):
        torch.ops.fastreader.decoder_step_(*given)


def test_layers_that_do_not_go_together_are_rejected():
    plain, normed, other = (Step(5, p, norms=n) for p, n in (("bf16", "none"), ("bf16", "head"), ("bf16x3", "none")))
    for layers in ([plain.list[0], normed.list[1]], [plain.list[0], other.list[1]]):
        with pytest.raises(InputError, match="expected layers alike"):
            StackedLayers(layers, plain.shape)
    with pytest.raises(InputError, match="at least one layer"):
        StackedLayers([], plain.shape)
    with pytest.raises(InputError, match=r"out must be \[40, 72\], got \[40, 96\]"):
        first = plain.list[0]
        StackedLayers(
            [Layer(*(first.first, first.second, first.projections, None, first.down, first.inner, first.down))],
            plain.shape,
        )
    layers, keys = StackedLayers(plain.list[:2], plain.shape), plain.keys()
    with pytest.raises(InputError, match="ranges of 2 layers"):
        decoder_step(plain.stream, layers, plain.angles, keys)
    with pytest.raises(InputError, match="and B slots"):
        decoder_step(plain.stream[:2], StackedLayers(plain.list, plain.shape), plain.angles, keys)
