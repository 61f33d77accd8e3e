"""Greedy text of every family, many prompts at once, against transformers' generate one prompt at a time in float32."""

import numpy as np
import pytest
import torch
from families import FAMILIES, tiny
from support import byte_tokenizer

from fastreader import Reader

NEW = 12


def prompts(seed: int = 5) -> list[list[int]]:
    """A shared beginning, branches off it, a prompt that begins another, and a duplicate."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(5, 261, 20).tolist()
    branches = [shared + rng.integers(5, 261, n).tolist() for n in (1, 4, 9)]
    return [shared, *branches, branches[1], rng.integers(5, 261, 3).tolist()]


def alone(model, prompt, new=NEW, end=1) -> list[int]:
    """Transformers' greedy tokens after one prompt, without the one that ended them."""
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([prompt]), max_new_tokens=new, do_sample=False, pad_token_id=end, eos_token_id=end
        )
    tokens = out[0, len(prompt) :].tolist()
    return tokens[:-1] if tokens[-1] == end else tokens


def own(model, prompt, new=NEW, end=1) -> list[int]:
    """The same by plain forwards without a cache."""
    tokens: list[int] = []
    while len(tokens) < new:
        with torch.inference_mode():
            token = int(model(torch.tensor([[*prompt, *tokens]]), use_cache=False).logits[0, -1].argmax())
        if token == end:
            break
        tokens.append(token)
    return tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_transformers_greedy(family):
    model = tiny(family)
    if family == "GPT2":
        torch.nn.init.normal_(model.transformer.wpe.weight, std=0.5)  # else positions hardly matter
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    got = reader.generate(prompts(), max_new_tokens=NEW)
    assert [g.token_ids for (g,) in got] == [alone(model, p) for p in prompts()]
    assert got.stats.computed < got.stats.given
    assert got.passes == 1
