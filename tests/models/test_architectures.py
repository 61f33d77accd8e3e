"""Families with unlike parts, in every precision, against one sequence at a time in float32."""

import copy

import numpy as np
import pytest
import torch
import transformers
from helpers.families import COMMON, FAMILIES, LONGROPE, tiny
from helpers.support import byte_tokenizer, one_by_one, random_sequences

from fastreader import Reader
from fastreader.errors import ContextOverflowError, UnsupportedModelError


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.long(keep=9)
def test_equals_one_sequence_at_a_time(family):
    model = tiny(family)
    if family == "GPT2":
        torch.nn.init.normal_(model.transformer.wpe.weight, std=0.5)  # otherwise positions hardly matter
    sequences = random_sequences(np.random.default_rng(1), 261)
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    scores = reader.score(sequences)
    assert scores.stats.computed_tokens < scores.stats.total_tokens
    for got, want in zip(scores.token_logprobs, one_by_one(model, sequences), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5 * max(1, len(want)), rtol=1e-5)


def test_a_soft_cap_is_compared_with_attention_that_has_one():
    """PyTorch's attention has none, and transformers before 5.21 ignored the cap there, with wrong numbers."""
    model = tiny("Gemma2, window, caps")
    sequences = random_sequences(np.random.default_rng(1), 261)
    want = one_by_one(model, sequences)
    model.config._attn_implementation = "sdpa"
    scores = Reader.load((model, byte_tokenizer()), precision="exact").score(sequences)
    np.testing.assert_allclose(np.concatenate(scores.token_logprobs), np.concatenate(want), atol=1e-4)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "GPT2"])
@pytest.mark.long(keep=4)
def test_precisions(family):
    """On bfloat16 weights "high" is near float32 results, "fast" nearer than the model's own bfloat16."""
    stored = tiny(family).bfloat16()
    truth_model = copy.deepcopy(stored).float()
    sequences = random_sequences(np.random.default_rng(1), 261)
    truth = np.concatenate(one_by_one(truth_model, sequences))

    def error(precision):
        reader = Reader.load((stored, byte_tokenizer()), precision=precision)
        upcast = reader.local_model.model.why_not_upcast is None
        got = np.concatenate(reader.score(sequences).token_logprobs)
        return np.abs(got - truth), upcast

    exact, _ = error("exact")
    assert exact.max() < 2e-4
    high, upcast = error("high")
    assert high.max() < (5e-3 if upcast else 2e-4)
    if upcast:
        own = np.abs(np.concatenate(one_by_one(stored, sequences)) - truth)
        assert error("fast")[0].mean() < own.mean()


@pytest.mark.parametrize("size", [8, 24, 64, 96, 128, 256])
def test_head_sizes(size):
    model = tiny("Qwen3", head_dim=size, num_hidden_layers=1)
    sequences = random_sequences(np.random.default_rng(2), 261)
    scores = Reader.load((model, byte_tokenizer()), precision="exact").score(sequences)
    want = [w.sum() for w in one_by_one(model, sequences)]
    np.testing.assert_allclose(scores.logprob, want, atol=1e-4)


def test_windows_change_these_texts():
    """The sliding-window cases above test nothing if the window never hides a token."""
    wide, narrow = tiny("Mistral, window", sliding_window=500), tiny("Mistral, window")
    sequences = random_sequences(np.random.default_rng(1), 261)
    a, b = one_by_one(wide, sequences), one_by_one(narrow, sequences)
    assert max(np.abs(x - y).max() for x, y in zip(a, b, strict=True)) > 0.01


UNSUPPORTED = {
    "Phimoe": ({"num_local_experts": 4, "sliding_window": 7}, "window of 7 tokens"),
    "Rwkv": ({}, "takes no position_ids"),
    "Zaya": ({"num_experts_per_tok": 1, "head_dim": 16}, "layer 0 is 'hybrid'"),
    "Falcon": ({"alibi": True, "num_kv_heads": 2}, "rounded to bfloat16"),
    "Doge": ({}, "its own attention mask"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_architectures_raise(name):
    overrides, message = UNSUPPORTED[name]
    config = getattr(transformers, f"{name}Config")(**{**COMMON, **overrides})
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with pytest.raises(UnsupportedModelError, match=message):
        Reader.load((model, byte_tokenizer()), precision="exact")


def test_encoder_decoders_raise():
    config = transformers.T5Config(vocab_size=261, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        Reader.load((transformers.T5ForConditionalGeneration(config), byte_tokenizer()))


def test_the_probe_detects_what_no_rule_covers():
    """An LM head scales its logits by a factor that is not in the config."""

    class Scaled(transformers.LlamaForCausalLM):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            out.logits = out.logits * 1.5
            return out

    torch.manual_seed(0)
    model = Scaled(transformers.LlamaConfig(**COMMON)).eval()
    with pytest.raises(UnsupportedModelError, match="differ by"):
        Reader.load((model, byte_tokenizer()), precision="exact")


def test_longrope_neighbours_change_nothing():
    model = tiny("Phi3", rope_parameters=LONGROPE, original_max_position_embeddings=24)
    rng = np.random.default_rng(3)
    shared = rng.integers(0, 261, 10).tolist()
    sequences = [(shared + rng.integers(0, 261, n).tolist(), rng.integers(0, 261, 3).tolist()) for n in (2, 5, 30, 40)]
    together = Reader.load((model, byte_tokenizer()), precision="exact").score(sequences)
    assert together.passes == 2
    for got, want in zip(together.token_logprobs, one_by_one(model, [(c, k) for c, k in sequences]), strict=True):
        assert got == pytest.approx(want, abs=1e-4)


def test_dynamic_rotary_over_its_threshold_raises():
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = tiny("Llama", rope_parameters=scaling, max_position_embeddings=32)
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    short = ([5] * 20, [6])
    assert reader.score([short]).logprob == pytest.approx([one_by_one(model, [short])[0].sum()], abs=1e-5)
    with pytest.raises(ContextOverflowError):
        reader.score([([5] * 40, [6])])
