"""ReaderPool on devices that are all the CPU: order, equality with one reader, errors of one worker."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from helpers.support import byte_tokenizer, tiny_llama

import fastreader as fr
from fastreader.errors import InputError, NumericsError
from fastreader.reader import pool as pool_module

RNG = np.random.default_rng(4)
SHARED = RNG.integers(5, 250, 20).tolist()
SEQUENCES = [
    ([*SHARED[: int(RNG.integers(1, 20))], *RNG.integers(5, 250, int(RNG.integers(3, 40))).tolist()], [7, 9, i])
    for i in range(24)
]


def one() -> fr.Reader:
    return fr.Reader.load((tiny_llama(), byte_tokenizer()), precision="exact", check="off")


@pytest.fixture(scope="module")
def readers() -> list[fr.Reader]:
    return [one() for _ in range(3)]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Note the engine of each pass. The first passes wait for each other, so that each has another reader."""
    engines, score, barrier = [], pool_module.score, threading.Barrier(3, timeout=60)

    def note(engine, *args, **named):
        engines.append(engine)
        if len(engines) <= 3:
            barrier.wait()
        return score(engine, *args, **named)

    monkeypatch.setattr(pool_module, "score", note)
    return engines


def test_scores_are_those_of_one_reader_in_order(readers, counted):
    pool = fr.ReaderPool(readers)
    got, want = pool.score(SEQUENCES), readers[0].score(SEQUENCES)
    assert len(set(map(id, counted))) == 3 <= got.passes
    np.testing.assert_allclose(got.logprob, want.logprob, atol=1e-4)
    assert np.array_equal(got.num_tokens, want.num_tokens) and np.array_equal(got.is_greedy, want.is_greedy)
    for mine, its in zip(got.token_logprobs, want.token_logprobs, strict=True):
        np.testing.assert_allclose(mine, its, atol=1e-4)
    assert got.stats.sequences == len(SEQUENCES) and got.stats.total_tokens == want.stats.total_tokens


def test_it_takes_the_place_of_a_reader(readers):
    texts = [fr.Passage("One is here."), fr.Passage("Two is far.")]
    examples = [fr.Example(f"Where is {i}?", texts, candidates=["here", "far"]) for i in ("one", "two", "three")]
    pool = fr.ReaderPool(readers)
    results = (fr.score_permutations(each, examples) for each in (pool, readers[0]))
    for got, want in zip(*results, strict=True):
        assert got.question == want.question
        np.testing.assert_allclose(got.logprobs, want.logprobs, atol=1e-4)
    (got,), (want,) = (each.loglikelihood([("a question", " an answer")]) for each in (pool, readers[0]))
    assert got.logprob == pytest.approx(want.logprob, abs=1e-4)


def test_texts_and_samples_are_those_of_one_reader(readers):
    prompts = [*(context for context, _ in SEQUENCES[:6]), SEQUENCES[0][0], SEQUENCES[3][0]]
    options = {"max_new_tokens": 4, "temperature": 1.0, "n": 2, "progress": False}
    got, want = (each.generate(prompts, **options) for each in (fr.ReaderPool(readers), readers[0]))
    assert [[text.token_ids for text in group] for group in got] == [[t.token_ids for t in group] for group in want]


def test_an_error_of_one_pass_is_raised_after_the_others_ended(readers, monkeypatch):
    pool = fr.ReaderPool(readers)
    (bad, *_), score, running = pool.plan(SEQUENCES), pool_module.score, []

    def broken(engine, sequences, *, trees, **named):
        running.append(1)
        try:
            if np.array_equal(trees[0].token_ids, bad.token_ids):
                raise NumericsError("sequence 3: not finite")
            return score(engine, sequences, trees=trees, **named)
        finally:
            running.pop()

    monkeypatch.setattr(pool_module, "score", broken)
    with pytest.raises(NumericsError, match="sequence 3"):
        pool.score(SEQUENCES)
    assert not running
    monkeypatch.setattr(pool_module, "score", score)
    assert np.isfinite(pool.score(SEQUENCES).logprob).all()


def test_more_readers_than_passes(readers):
    got = fr.ReaderPool(readers).score(SEQUENCES[:1])
    np.testing.assert_allclose(got.logprob, readers[0].score(SEQUENCES[:1]).logprob, atol=1e-4)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_shares_hold_every_prompt_once_and_equal_ones_together(count):
    encoded = [tuple(RNG.integers(0, 3, int(RNG.integers(1, 6))).tolist()) for _ in range(60)]
    shares = pool_module._shares(encoded, count)
    assert sorted(i for share in shares for i in share) == list(range(60)) and len(shares) <= count
    for tokens in set(encoded):
        assert sum(any(encoded[i] == tokens for i in share) for share in shares) == 1
    sizes = [sum(len(encoded[i]) for i in share) for share in shares]
    assert max(sizes) <= sum(sizes) / count + 30


def test_what_it_does_not_take(readers):
    with pytest.raises(InputError, match="readers: expected at least one"):
        fr.ReaderPool([])
    other = fr.Reader.load((tiny_llama().bfloat16(), byte_tokenizer()), precision="fast", check="off")
    with pytest.raises(InputError, match=r"readers\[1\]: expected a reader like readers\[0\]"):
        fr.ReaderPool([readers[0], other])
    with pytest.raises(InputError, match="devices: expected at least one"):
        fr.ReaderPool.load("smollm2-135m", [])
