"""CUDA graphs on the device: the scores and the texts of launches one by one."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from helpers.families import tiny
from helpers.support import byte_tokenizer

from fastreader import Reader
from fastreader.models.passes.cuda_graphs import VARIABLE

pytestmark = pytest.mark.gpu


def reader(precision: str) -> Reader:
    return Reader.load((copy.deepcopy(tiny("Llama")).cuda(), byte_tokenizer()), precision=precision)


def sequences_of(seed: int) -> list[tuple[list[int], list[int]]]:
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(5, 250, 60 + int(rng.integers(0, 4))).tolist() for _ in range(4)]
    return [(prompt, rng.integers(5, 250, 3).tolist()) for prompt in prompts for _ in range(3)]


@pytest.mark.parametrize("precision", ["fast", "high", "exact"])
def test_replayed_passes(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    eager = reader(precision)
    monkeypatch.delenv(VARIABLE)
    recorded = reader(precision)
    graphs = recorded.local_model.model.graphs
    assert graphs is not None
    for seed in range(6):
        sequences = sequences_of(seed)
        got, want = (each.score(sequences) for each in (recorded, eager))
        np.testing.assert_allclose(got.logprob, want.logprob, atol=0.05 if precision == "fast" else 1e-3)
        assert np.array_equal(recorded.score(sequences).logprob, got.logprob) or seed < 2
    assert graphs._graphs


def test_replayed_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [context for context, _ in sequences_of(1)[::3]]
    options = {"max_new_tokens": 60, "n": 3, "temperature": 1.0, "top_p": 0.95}
    monkeypatch.setenv(VARIABLE, "0")
    want = reader("exact").generate(prompts, **options)
    monkeypatch.delenv(VARIABLE)
    got = reader("exact").generate(prompts, **options)
    assert [[text.token_ids for text in group] for group in got] == [[t.token_ids for t in group] for group in want]
