"""Generation and sessions on the device: the greedy text of the CPU, and equal numbers with cached keys."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from helpers.families import tiny
from helpers.support import byte_tokenizer

from fastreader import Reader

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng(5)
SHARED = RNG.integers(5, 261, 20).tolist()
PROMPTS = [SHARED, *([*SHARED, *RNG.integers(5, 261, n).tolist()] for n in (1, 4, 9))]


@pytest.mark.parametrize("family", ["Llama", "Gemma2, window, caps", "Qwen3Moe"])
def test_greedy_text_and_kept_keys(family):
    model = tiny(family)
    there = Reader.load((copy.deepcopy(model).cuda(), byte_tokenizer()), precision="exact")
    here = Reader.load((model, byte_tokenizer()), precision="exact")
    want = [g.token_ids for (g,) in here.generate(PROMPTS, max_new_tokens=20)]
    assert [g.token_ids for (g,) in there.generate(PROMPTS, max_new_tokens=20)] == want
    drawn = there.generate(PROMPTS, max_new_tokens=8, n=3, temperature=1.0, top_p=0.9)
    assert [[g.token_ids for g in group] for group in drawn] == [
        [g.token_ids for g in group]
        for group in here.generate(PROMPTS, max_new_tokens=8, n=3, temperature=1.0, top_p=0.9)
    ]
    with there.session(SHARED) as kept:
        assert [g.token_ids for (g,) in kept.generate(PROMPTS, max_new_tokens=20)] == want
        got = kept.loglikelihood([(p, [7, 8]) for p in PROMPTS])
    plain = there.loglikelihood([(p, [7, 8]) for p in PROMPTS])
    assert [r.logprob for r in got] == pytest.approx([r.logprob for r in plain], abs=1e-4)
