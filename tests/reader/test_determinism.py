"""What docs/determinism.md promises, bit for bit, on the CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from helpers.families import FAMILIES, tiny
from helpers.support import LONG_FORMS, byte_tokenizer

from fastreader import Reader
from fastreader.errors import InputError, UnsupportedImplementationError, UnsupportedModelError
from fastreader.models.machine.arithmetic import ways
from fastreader.ops import extension
from fastreader.ops.linear import linear

pytestmark = pytest.mark.skipif(extension.why_missing() is not None, reason=str(extension.why_missing()))
PRODUCTS = [
    pytest.param(precision, way, marks=pytest.mark.skipif(way not in ways(), reason=f"this CPU has no {way} products"))
    for precision, way in (("fast", "bf16"), ("fast", "int16"), ("high", "bf16x3"), ("exact", "float32"))
]
OWN = {"GPT2": "transformers' own modules", "Mixtral": "the router", "Qwen3Moe": "the router"}  # and why
SOME = ["Llama", "Gemma2, window, caps"]
FEW = [*SOME, "Gemma3, window", "GPTNeoX"]
TESTED = [name for name in FAMILIES if name not in OWN] if LONG_FORMS else FEW

RNG = np.random.default_rng(7)
SHARED = RNG.integers(5, 261, 90).tolist()
CONTEXTS = [
    SHARED[: int(RNG.integers(1, 90))] + RNG.integers(5, 261, n).tolist() for n in (5, 30, 70, 64, 31, 33, 1, 2, 9)
]
SEQUENCES = [(context, RNG.integers(5, 261, int(RNG.integers(1, 8))).tolist()) for context in CONTEXTS]
OTHERS = [(RNG.integers(5, 261, int(RNG.integers(1, 120))).tolist(), [6, 7]) for _ in range(30)]


@cache
def reader_of(family: str, precision: str, products: str, deterministic: bool) -> Reader:
    pair = tiny(family).to(torch.bfloat16), byte_tokenizer()
    return Reader.load(pair, device="cpu", precision=precision, products=products, deterministic=deterministic)


def scored(reader, sequences=SEQUENCES, **options) -> list[list[float]]:
    return [values.tolist() for values in reader.score(sequences, **options).token_logprobs]


def written(reader, prompts=CONTEXTS, **options) -> list[tuple[list[int], list[float]]]:
    got = reader.generate(prompts, max_new_tokens=5, token_logprobs=True, **options)
    return [(text.token_ids, text.token_logprobs) for (text,) in got]


def in_threads(count: int, call: Callable):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return call()
    finally:
        torch.set_num_threads(before)


@cache
def expected(family: str, precision: str, products: str, deterministic: bool):
    """Scores and texts in one thread."""
    reader = reader_of(family, precision, products, deterministic)
    return in_threads(1, lambda: (scored(reader), written(reader)))


def in_a_session(reader, call: Callable):
    with reader.session(SHARED[:40], CONTEXTS[2][:50], cache_scored=True) as kept:
        call(kept)
        return call(kept)


WAYS_TO_SCORE = {
    "again": scored,
    "another order": lambda r: scored(r, SEQUENCES[::-1])[::-1],
    "one by one": lambda r: [scored(r, [s])[0] for s in SEQUENCES],
    "passes of one path": lambda r: scored(r, max_batch_tokens=1),
    "passes of 120 tokens": lambda r: scored(r, max_batch_tokens=120),
    "among others": lambda r: scored(r, [*OTHERS, *SEQUENCES])[len(OTHERS) :],
    "two threads": lambda r: in_threads(2, lambda: scored(r)),
    "two threads, among others": lambda r: in_threads(2, lambda: scored(r, [*SEQUENCES, *OTHERS])[: len(SEQUENCES)]),
    "a session": lambda r: in_a_session(r, scored),
}
WAYS_TO_WRITE = {
    "again": written,
    "another order": lambda r: written(r, CONTEXTS[::-1])[::-1],
    "one by one": lambda r: [written(r, [p])[0] for p in CONTEXTS],
    "passes of 120 tokens": lambda r: written(r, max_batch_tokens=120),
    "two threads": lambda r: in_threads(2, lambda: written(r)),
    "a session": lambda r: in_a_session(r, written),
}
# Prompts that many texts share are read in another way, faster and with other roundings.
WAYS_OF_COPIES = {"many copies": lambda r: written(r, [*CONTEXTS, *[CONTEXTS[2]] * 200])[: len(CONTEXTS)]}


@pytest.mark.parametrize("way", WAYS_TO_SCORE)
@pytest.mark.parametrize(("precision", "products"), PRODUCTS)
@pytest.mark.parametrize("family", SOME)
def test_scores_have_the_same_bits(family, precision, products, way):
    reader = reader_of(family, precision, products, False)
    assert WAYS_TO_SCORE[way](reader) == expected(family, precision, products, False)[0]


@pytest.mark.parametrize("way", WAYS_TO_WRITE)
@pytest.mark.parametrize(("precision", "products"), PRODUCTS)
@pytest.mark.parametrize("family", SOME)
def test_texts_have_the_same_bits(family, precision, products, way):
    """Unless twelve or more of them share their prompt."""
    reader = reader_of(family, precision, products, False)
    assert WAYS_TO_WRITE[way](reader) == expected(family, precision, products, False)[1]


@pytest.mark.parametrize(
    ("family", "precision", "products"),
    [  # each family in two of the ways to multiply, and each way in two families; `make fuzz` runs all
        pytest.param(family, *way.values, marks=[*way.marks, *[pytest.mark.fuzz] * ((row + column) % 2)])
        for row, family in enumerate(TESTED)
        for column, way in enumerate(PRODUCTS)
    ],
)
@pytest.mark.long(keep=4)
def test_deterministic_readers_in_every_way(family, precision, products):
    reader = reader_of(family, precision, products, True)
    scores, texts = expected(family, precision, products, True)
    assert len({tuple(tokens) for tokens, _ in texts}) > 1
    for way, call in WAYS_TO_SCORE.items():
        assert call(reader) == scores, way
    for way, call in (WAYS_TO_WRITE | WAYS_OF_COPIES).items():
        assert call(reader) == texts, way


def test_copies_need_it():
    """The switch does something: without it these change some bits, by rounding only."""
    plain = reader_of("Llama", "exact", "float32", False)
    few, many = written(plain), WAYS_OF_COPIES["many copies"](plain)
    assert few != many


@pytest.mark.parametrize("family", ["Llama", "Gemma3, window"])
def test_deterministic_exact_is_as_exact(family):
    model = tiny(family)
    fixed, plain = (
        Reader.load((model, byte_tokenizer()), device="cpu", precision="exact", deterministic=d) for d in (True, False)
    )
    for got, want in zip(scored(fixed), scored(plain), strict=True):
        assert got == pytest.approx(want, abs=1e-4)


def digest() -> str:
    """Return a hash of the bits of scores and texts in each precision."""
    readers = [
        reader_of("Gemma2, window, caps", precision, products, False)
        for precision, products in (("fast", "int16"), ("fast", "float32"), ("high", "auto"), ("exact", "auto"))
    ]
    return hashlib.sha256(repr([(scored(reader), written(reader)) for reader in readers]).encode()).hexdigest()


@pytest.mark.parametrize("family", OWN)
def test_models_that_cannot_promise_it(family):
    with pytest.raises(UnsupportedModelError, match=f"deterministic=True is not possible: {OWN[family]}"):
        Reader.load((tiny(family), byte_tokenizer()), device="cpu", deterministic=True)


@pytest.mark.usefixtures("nothing_served")
def test_bad_arguments(monkeypatch):
    pair = tiny("Llama"), byte_tokenizer()
    with pytest.raises(InputError, match="deterministic: expected True or False, got 1"):
        Reader.load(pair, deterministic=1)
    with pytest.raises(UnsupportedModelError, match="not possible: PyTorch's products sum"):
        Reader.load(pair, precision="exact", products="torch", deterministic=True)
    with pytest.raises(UnsupportedModelError, match="not possible: the C\\+\\+ kernels take float32"):
        Reader.load((tiny("Llama").double(), byte_tokenizer()), deterministic=True)
    with pytest.raises(UnsupportedImplementationError, match="'float32' cannot run here"):
        linear(torch.ones(1, 8), torch.ones(2, 8), precision="float32", impl="torch")
    monkeypatch.setattr(extension, "why_missing", lambda: "the C++ extension is missing")
    with pytest.raises(UnsupportedModelError, match=r"not possible: the C\+\+ extension is missing"):
        Reader.load(pair, deterministic=True)
