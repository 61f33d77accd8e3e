"""A cache of passages and a repetition penalty on the device, compared with the CPU without them."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from helpers.families import tiny
from helpers.registry import patterns, tiny_model
from helpers.support import byte_tokenizer

import fastreader as fr

pytestmark = pytest.mark.gpu
TEXTS = ["The Nile is in Cairo.", "The Seine is in Paris.", "Cats sleep a lot, and so do dogs."]
QUESTIONS = ["Which river is in Cairo?", "What sleeps?"]


def readers(family: str) -> tuple[fr.Reader, fr.Reader]:
    """Return a reader on the device, and the same on the CPU."""
    model = tiny("Llama") if family == "llama" else tiny_model(family, patterns(family)[0])
    here = fr.Reader.load((copy.deepcopy(model), byte_tokenizer()), device="cpu", precision="exact")
    return fr.Reader.load((model.cuda(), byte_tokenizer()), precision="exact"), here


def values(ranked: fr.Reranked) -> list[float]:
    return [found.value or 0.0 for found in sorted(ranked, key=lambda found: found.index)]


@pytest.mark.parametrize("family", ["llama", "jamba"])
@pytest.mark.parametrize("stored", ["memory", "files", "int8"])
def test_known_passages(family: str, stored: str, tmp_path: Path) -> None:
    there, here = readers(family)
    for turn, question in enumerate((*QUESTIONS, QUESTIONS[0])):
        if turn == 0 or stored == "files":
            folder = tmp_path / "kept" if stored == "files" else None
            cache = fr.PassageCache(1 if turn == 2 else 1 << 30, folder, stored="int8" if stored == "int8" else "exact")
        found = fr.rerank(there, question, TEXTS, cache=cache)
        limit = 0.05 if stored == "int8" and turn else 5e-4
        assert values(found) == pytest.approx(values(fr.rerank(here, question, TEXTS)), abs=limit)
        assert (found.stats.cached_tokens > 0) == (turn > 0)
        assert cache.info().damaged == 0


def test_a_weight_that_changed_past_its_version_is_seen() -> None:
    there, _ = readers("llama")
    cached = there.with_cache(fr.PassageCache())
    pairs, ends = [([5, 6, 7, *range(20, 40), 8], [9, 10])], [(3, 23)]
    cached.score(pairs, ends=ends)
    assert cached.score(pairs, ends=ends).stats.cached_tokens == 23
    next(there.model.parameters()).data.mul_(1.5)
    assert cached.score(pairs, ends=ends).stats.cached_tokens == 0


def test_a_repetition_penalty() -> None:
    there, here = readers("llama")
    prompts = [[5, 6, 7, 8, 9], [5, 6, 20, 21]]
    for options in ({}, {"n": 2, "temperature": 1.0, "top_p": 0.9}):
        got, want = (
            [
                [list(text.token_ids) for text in group]
                for group in reader.generate(prompts, max_new_tokens=8, repetition_penalty=1.4, **options)
            ]
            for reader in (there, here)
        )
        assert got == want
