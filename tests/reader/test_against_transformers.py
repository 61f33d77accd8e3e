"""Greedy text of every family, many prompts at once, against transformers' generate one prompt at a time in float32."""

from functools import cache

import numpy as np
import pytest
import torch
from helpers.families import FAMILIES, tiny
from helpers.support import byte_tokenizer

from fastreader import Reader
from fastreader.models.passes import decode_keys
from fastreader.ops import extension

NEW = 12


def prompts(seed: int = 5) -> list[list[int]]:
    """A shared beginning, branches off it, a prompt that begins another, and a duplicate."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(5, 261, 20).tolist()
    branches = [shared + rng.integers(5, 261, n).tolist() for n in (1, 4, 9)]
    return [shared, *branches, branches[1], rng.integers(5, 261, 3).tolist()]


@cache
def expected(family: str, new: int) -> list[list[int]]:
    """The texts of `prompts`."""
    model = tiny(family)
    texts = {prompt: alone(model, list(prompt), new) for prompt in map(tuple, prompts())}
    return [texts[tuple(prompt)] for prompt in prompts()]


def alone(model, prompt, new=NEW, end=1) -> list[int]:
    """Transformers' greedy tokens after one prompt, without the one that ended them."""
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([prompt]), max_new_tokens=new, do_sample=False, pad_token_id=end, eos_token_id=end
        )
    tokens = out[0, len(prompt) :].tolist()
    return tokens[:-1] if tokens[-1] == end else tokens


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.long(keep=6)
def test_greedy_is_transformers_greedy(family):
    model = tiny(family)
    if family == "GPT2":
        torch.nn.init.normal_(model.transformer.wpe.weight, std=0.5)  # else positions hardly matter
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    got = reader.generate(prompts(), max_new_tokens=NEW)
    assert [g.token_ids for (g,) in got] == [alone(model, p) for p in prompts()]
    assert got.stats.computed_tokens < got.stats.total_tokens
    assert got.passes == 1


WAYS = {"by tiles": (0, False), "row by row": (10**9, False), "without the extension": (3, True)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["Llama", "Mistral, window", "Gemma2, window, caps", "Phi3, window"])
@pytest.mark.long(keep=6)
def test_every_way_to_read_the_prompt(family, way, monkeypatch):
    """How the prompts' keys are read is a matter of speed only. Texts are longer than the window."""
    shared, without = WAYS[way]
    monkeypatch.setattr(decode_keys, "_MIN_SHARED_ROWS", shared)
    if without:
        monkeypatch.setattr(decode_keys, "why_not_cpu", lambda tensor: "not here")
    elif extension.why_missing() is not None:
        pytest.skip(str(extension.why_missing()))
    got = Reader.load((tiny(family), byte_tokenizer()), precision="exact").generate(prompts(), max_new_tokens=15)
    assert [g.token_ids for (g,) in got] == expected(family, 15)


def test_texts_are_no_mere_repetition():
    """The comparisons above are no use if every text is one token over and over."""
    model = tiny("Llama")
    texts = [alone(model, p) for p in prompts()]
    assert all(len(set(text)) > NEW // 2 for text in texts)
    assert len({tuple(text) for text in texts}) == len(prompts()) - 1  # one prompt is there twice


def test_the_packaged_reader_on_questions(packaged_reader, packaged_model):
    asked = [
        packaged_reader.prompt(["Read this.\n", "Paris is the capital of France.\n", question])
        for question in ("What is the capital of France?", "Name a country.", "Write three words.")
    ]
    got = packaged_reader.generate(asked, max_new_tokens=20)
    end = sorted(packaged_reader.end_tokens)
    for prompt, (text,) in zip(asked, got, strict=True):
        with torch.inference_mode():
            out = packaged_model.generate(
                torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=end, pad_token_id=0
            )
        theirs = [t for t in out[0, len(prompt) :].tolist() if t not in end]
        assert text.token_ids == theirs
        assert text.text == packaged_reader.encoder.tokenizer.decode(theirs)
        assert text.finish_reason == ("eos" if len(theirs) < 20 else "length")
    assert "Paris" in got[0][0].text
