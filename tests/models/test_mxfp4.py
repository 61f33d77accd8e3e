"""GPT-OSS checkpoints in MXFP4, which transformers converts to bfloat16 on a CPU."""

import json

import numpy as np
import pytest
import torch
from helpers.support import byte_tokenizer, one_by_one, random_sequences
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM

from fastreader import Reader

SEQUENCES = random_sequences(np.random.default_rng(1), 261)
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])  # E2M1, by code
GROUP = 32  # values that share a scale, a power of two


def packed(weight):
    """Return codes, two a byte, and exponents of a weight [experts, in, out], and the weight that they represent."""
    groups = weight.float().mT.unflatten(2, (-1, GROUP))
    exponent = groups.abs().amax(-1).log2().floor() - 2
    codes = (groups / exponent.exp2()[..., None])[..., None].sub(FP4).abs().argmin(-1)
    bytes_ = (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)
    values = FP4[codes] * exponent.exp2()[..., None]
    return bytes_, (exponent + 127).to(torch.uint8), values.flatten(2).mT.to(weight.dtype).contiguous()


@pytest.fixture
def checkpoints(tmp_path):
    """The folders of an MXFP4 checkpoint and of the bfloat16 weights that it represents."""
    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=261,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
        initializer_range=0.2,
    )
    model = GptOssForCausalLM(config).to(torch.bfloat16)
    narrow, plain = tmp_path / "mxfp4", tmp_path / "plain"
    for folder in (narrow, plain):
        model.save_pretrained(folder)
        byte_tokenizer().save_pretrained(folder)
    weights = load_file(plain / "model.safetensors")
    stored, meant = dict(weights), dict(weights)
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        stored[f"{name}_blocks"], stored[f"{name}_scales"], meant[name] = packed(stored.pop(name))
    save_file(stored, narrow / "model.safetensors", metadata={"format": "pt"})
    save_file(meant, plain / "model.safetensors", metadata={"format": "pt"})
    described = json.loads((narrow / "config.json").read_text())
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    described["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    (narrow / "config.json").write_text(json.dumps(described))
    assert max(float((meant[name] - weights[name]).abs().max()) for name in weights) > 0.1  # rounded
    return narrow, plain


@pytest.mark.parametrize(("precision", "allowed"), [("exact", 1e-4), ("high", 5e-3)])
def test_scores_are_those_of_the_weights_it_represents(checkpoints, precision, allowed):
    narrow, plain = checkpoints
    want = np.concatenate(one_by_one(AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32), SEQUENCES))
    reader = Reader.load(narrow, device="cpu", precision=precision)
    np.testing.assert_allclose(np.concatenate(reader.score(SEQUENCES).token_logprobs), want, atol=allowed)
    assert "mixture of experts" in reader.describe()["forward"]
