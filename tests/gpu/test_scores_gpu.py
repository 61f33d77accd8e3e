"""The fused pass on the device in each precision, compared with float32 on the CPU."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from helpers.families import tiny
from helpers.support import byte_tokenizer, one_by_one, random_sequences

from fastreader import Reader
from fastreader.errors import UnsupportedModelError
from fastreader.models.passes.cuda_graphs import VARIABLE

pytestmark = pytest.mark.gpu
SEQUENCES = random_sequences(np.random.default_rng(1), 261)


@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Gemma3, window"])
def test_precisions(family: str) -> None:
    """As on the CPU, "exact" and "high" are near float32, and "fast" nearer than the model's own bfloat16."""
    stored = tiny(family).bfloat16()
    truth = np.concatenate(one_by_one(copy.deepcopy(stored).float(), SEQUENCES))
    there = stored.cuda()
    errors = {}
    for precision in ("fast", "high", "exact"):
        reader = Reader.load((there, byte_tokenizer()), precision=precision)
        assert reader.local_model.model.why_not_upcast is None
        errors[precision] = np.abs(np.concatenate(reader.score(SEQUENCES).token_logprobs) - truth)
    assert errors["exact"].max() < 2e-4
    assert errors["high"].max() < 5e-3
    assert errors["fast"].mean() < np.abs(np.concatenate(one_by_one(there, SEQUENCES)) - truth).mean()


@pytest.mark.parametrize("precision", ["fast", "high", "exact"])
def test_a_repeated_call_has_the_same_bits(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without graphs, since a replayed pass computes a tree that was filled up."""
    monkeypatch.setenv(VARIABLE, "0")
    pair = tiny("Llama").bfloat16().cuda(), byte_tokenizer()
    reader = Reader.load(pair, precision=precision)
    first, again = (np.concatenate(reader.score(SEQUENCES).token_logprobs) for _ in range(2))
    assert np.array_equal(first, again)
    with pytest.raises(UnsupportedModelError, match="deterministic=True is not possible"):
        Reader.load(pair, precision=precision, deterministic=True)
