"""Many families on the device, compared with the CPU: scores, greedy and drawn texts, sessions."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from helpers import families, registry
from helpers.support import byte_tokenizer, random_sequences

from fastreader import Reader

pytestmark = pytest.mark.gpu
SEQUENCES = random_sequences(np.random.default_rng(3), 250, 4, 30)
RNG = np.random.default_rng(5)
SHARED = RNG.integers(5, 250, 12).tolist()
PROMPTS = [SHARED, *([*SHARED, *RNG.integers(5, 250, n).tolist()] for n in (1, 4))]
# Families of the registry with layers that `families` lacks: recurrences, latent attention, experts, sinks, slopes,
# chunks, and unusual norms and rotary embeddings.
REGISTERED = [
    *("bamba", "bloom", "cohere", "dbrx", "deepseek_v3", "exaone4", "falcon", "falcon_h1", "gemma2", "gemma4_text"),
    *("glm4_moe", "gpt_oss", "gptj", "granitemoehybrid", "hunyuan_v1_dense", "jamba", "kimi_linear", "lfm2"),
    *("llama4_text", "longcat_flash", "mamba", "mamba2", "minicpm3", "minimax", "mpt", "nemotron_h", "olmoe", "phi"),
    *("qwen3_5_text", "qwen3_next", "smollm3", "stablelm", "starcoder2", "zamba2"),
]


def model_of(family: str) -> Any:
    if family in families.FAMILIES:
        return families.tiny(family)
    if family not in registry.families():
        pytest.skip(f"this version of transformers has no {family}")
    return registry.tiny_model(family, registry.patterns(family)[0])


def texts(reader: Any, prompts: list[list[int]] = PROMPTS, **options: Any) -> list[list[list[int]]]:
    groups = reader.generate(prompts, **options)
    return [[list(text.token_ids) for text in group] for group in groups]


@pytest.mark.parametrize("family", [*families.FAMILIES, *REGISTERED])
def test_as_on_the_cpu(family: str) -> None:
    model = model_of(family)
    here = Reader.load((copy.deepcopy(model), byte_tokenizer()), device="cpu", precision="exact")
    there = Reader.load((model.cuda(), byte_tokenizer()), precision="exact")
    got, want = (np.concatenate(reader.score(SEQUENCES).token_logprobs) for reader in (there, here))
    np.testing.assert_allclose(got, want, atol=5e-4)
    greedy = {"max_new_tokens": 6}
    assert texts(there, **greedy) == texts(here, **greedy)
    with there.session(SHARED) as kept:
        assert texts(kept, **greedy) == texts(here, **greedy)
    drawn = {"max_new_tokens": 4, "n": 2, "temperature": 1.0, "top_p": 0.9}
    assert texts(there, PROMPTS[:2], **drawn) == texts(here, PROMPTS[:2], **drawn)
