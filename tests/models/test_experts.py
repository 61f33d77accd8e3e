"""Mixtures of experts through our linear layers, against transformers' own modules one sequence at a time."""

import copy

import numpy as np
import pytest
import torch
from helpers.families import MOE, tiny
from helpers.registry import patterns, tiny_model
from helpers.support import LONG_FORMS, byte_tokenizer, one_by_one, random_sequences

from fastreader import Reader
from fastreader.errors import UnsupportedModelError
from fastreader.models.rewriting.experts import ParallelExperts, SortedExperts, _Kernels, kind_of
from fastreader.models.rewriting.fused import UpcastLinear
from fastreader.ops import extension
from fastreader.ops.experts import PackedExperts
from fastreader.ops.linear import PackedWeight

SEQUENCES = random_sequences(np.random.default_rng(1), 261)
LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
}
GROUPED = {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
KINDS = {
    "Mixtral": {},
    "Qwen2Moe": {**MOE, "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1},
    "Qwen3Moe": {},
    "Olmoe": MOE,
    "GraniteMoe": LOCAL,
    "GraniteMoeShared": {**LOCAL, "shared_intermediate_size": 32},
    "DeepseekV2": {**MOE, **GROUPED, **LATENT},
    "DeepseekV3": {**MOE, **GROUPED, **LATENT},
    "Glm4Moe": {**MOE, **GROUPED, "head_dim": 16},
    "Ernie4_5_Moe": {**MOE, "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1, "moe_layer_start_index": 0},
    "Phimoe": {**LOCAL, "sliding_window": None},  # its router is a linear layer with another forward
    "HunYuanMoEV1": {"num_experts": 4, "moe_topk": 2, "head_dim": 16},  # its router looks at a weight's type
    "MiniMaxM2": {**LOCAL, "head_dim": 16},
    "FlexOlmo": MOE,
}

ROUTED = ["Mixtral", "Qwen2Moe", "GraniteMoe", "DeepseekV3", "Phimoe", "MiniMaxM2"]  # by routers of different kinds
EVERY = {"moe_topk": 4, "moe_k": 4, "topk_group": 2}


def model_of(kind, seed=0, **overrides):
    model = tiny(kind, seed, **{**KINDS[kind], **overrides})
    for name, parameter in model.named_parameters():
        if "experts" in name or "gate" in name or "router" in name:  # some families begin with zeros
            torch.nn.init.normal_(parameter, std=0.2)
    return model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.long(keep=5)
def test_experts_equal_one_sequence_at_a_time(kind):
    model = model_of(kind)
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    assert "mixture of experts" in reader.describe()["forward"]
    for got, want in zip(reader.score(SEQUENCES).token_logprobs, one_by_one(model, SEQUENCES), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5 * max(1, len(want)), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS if LONG_FORMS else ROUTED)
@pytest.mark.long(keep=2)
def test_precisions_keep_their_promise(kind):
    def truth_of(stored):
        return np.concatenate(one_by_one(copy.deepcopy(stored).float(), SEQUENCES))

    def errors(precision, stored, truth):
        reader = Reader.load((stored, byte_tokenizer()), precision=precision)
        assert reader.describe()["precision"] == precision or reader.arithmetic.products == "torch"
        return np.abs(np.concatenate(reader.score(SEQUENCES).token_logprobs) - truth)

    sparse = model_of(kind).bfloat16()
    truth = truth_of(sparse)
    assert errors("exact", sparse, truth).max() < 1e-4
    assert errors("high", sparse, truth).max() < 5e-3
    # Where bfloat16 turns the choice of an expert, in ours or in theirs, chance decides which error is larger. So every
    # expert is chosen here.
    every = {name: count for name, count in EVERY.items() if name in KINDS[kind]}
    dense = model_of(kind, **every, num_experts_per_tok=4).bfloat16()
    truth = truth_of(dense)
    theirs = np.abs(np.concatenate(one_by_one(dense, SEQUENCES)) - truth)
    assert errors("fast", dense, truth).mean() < theirs.mean()


@pytest.mark.parametrize("kind", ["Mixtral", "DeepseekV3"])
def test_generation_is_that_of_transformers(kind):
    model = model_of(kind)
    prompt = list(range(5, 25))
    reader = Reader.load((model, byte_tokenizer()), precision="exact")
    (text,) = reader.generate([prompt], max_new_tokens=12)[0]
    with torch.no_grad():
        want = model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=1, pad_token_id=1
        )
    want = [token for token in want[0, len(prompt) :].tolist() if token != 1]
    assert list(text.token_ids) == want and len(want) > 2


@pytest.mark.parametrize(("products", "precision"), [("auto", "exact"), ("auto", "high"), ("torch", "exact")])
def test_no_float32_copy_of_the_experts(products, precision):
    stored = model_of("Mixtral").bfloat16()
    reader = Reader.load((stored, byte_tokenizer()), precision=precision, products=products)
    layers = [layer for part in reader.model.modules() if isinstance(part, SortedExperts) for layer in part.modules()]
    weights = [layer.laid_out for layer in layers if isinstance(layer, UpcastLinear)]
    assert len(weights) == 3 * 4 * 2
    for weight in weights:
        held = weight.data if isinstance(weight, PackedWeight) else weight
        values = weight.width * weight.depth if isinstance(weight, PackedWeight) else weight.numel()
        assert held.nbytes <= 2 * values * 1.5  # blocks of 32 rows are padded


@pytest.mark.skipif(extension.why_missing() is not None, reason="needs the C++ extension")
@pytest.mark.parametrize("precision", ["fast", "high", "exact"])
@pytest.mark.parametrize("kind", ["Mixtral", "Qwen3Moe", "DeepseekV2", "gpt_oss"])
def test_one_call_runs_the_experts_of_a_layer(kind, precision, monkeypatch):
    wide = {"intermediate_size": 64, "moe_intermediate_size": 64}
    model = model_of(kind, **wide) if kind in KINDS else tiny_model(kind, patterns(kind)[0])
    rows, own = [], PackedExperts.__call__
    monkeypatch.setattr(PackedExperts, "__call__", lambda self, *given: rows.append(len(given[0])) or own(self, *given))
    reader = Reader.load((model, byte_tokenizer()), device="cpu", precision=precision)
    rows.clear()
    together = np.concatenate(reader.score(SEQUENCES).token_logprobs)
    (text,) = reader.generate([list(range(5, 25))], max_new_tokens=4)[0]
    assert len(rows) >= 4 and min(rows) == 1 and max(rows) > 1
    monkeypatch.setattr(_Kernels, "of", lambda *_: None)
    apart = np.concatenate(reader.score(SEQUENCES).token_logprobs)
    np.testing.assert_allclose(together, apart, atol={"fast": 2e-3, "high": 1e-4, "exact": 1e-5}[precision])
    (want,) = reader.generate([list(range(5, 25))], max_new_tokens=4)[0]
    assert list(text.token_ids) == list(want.token_ids)


def gpt_oss():
    """Experts with biases, weights stored the other way round, gates next to inputs, and another function."""
    from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    config = GptOssConfig(hidden_size=32, intermediate_size=24, num_local_experts=5)
    config._experts_implementation = "eager"
    return GptOssExperts(config)


def aria():
    from transformers.models.aria.configuration_aria import AriaTextConfig
    from transformers.models.aria.modeling_aria import AriaExperts

    config = AriaTextConfig(hidden_size=32, intermediate_size=24, moe_num_experts=5)
    config._experts_implementation = "eager"
    return AriaExperts(config)


def nemotron():
    """Experts without a gate."""
    from transformers.models.nemotron_h.configuration_nemotron_h import NemotronHConfig
    from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts

    config = NemotronHConfig(hidden_size=32, moe_intermediate_size=24, n_routed_experts=5, moe_latent_size=None)
    config._experts_implementation = "eager"
    return NemotronHExperts(config)


LAYOUTS = {"GPT-OSS": gpt_oss, "Aria": aria, "Nemotron": nemotron}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tokens", [1, 7, 700])
def test_every_layout_of_experts(layout, tokens):
    torch.manual_seed(0)
    module = LAYOUTS[layout]()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    assert kind_of(module) is SortedExperts
    sorted_experts = SortedExperts(module)
    rows = torch.randn(tokens, 32)
    chosen = torch.stack([torch.randperm(4)[:2] for _ in range(tokens)])  # nobody chooses the last
    factors = torch.rand(tokens, 2)
    with torch.no_grad():
        want, got = module(rows, chosen, factors), sorted_experts(rows, chosen, factors)
    torch.testing.assert_close(got, want, atol=1e-5 * float(want.abs().max()), rtol=0)


def test_a_token_gets_the_same_bits_in_any_company():
    torch.manual_seed(0)
    module = gpt_oss()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    experts = SortedExperts(module).double()  # whose products are exact enough to compare bits of the order of sums
    rows, chosen = torch.randn(9, 32).double(), torch.stack([torch.randperm(5)[:3] for _ in range(9)])
    factors = torch.rand(9, 3).double()
    with torch.no_grad():
        whole = experts(rows, chosen, factors)
        for token in range(9):
            one = experts(rows[token : token + 1], chosen[token : token + 1], factors[token : token + 1])
            torch.testing.assert_close(one[0], whole[token], atol=1e-12, rtol=0)


def test_experts_are_views():
    module = gpt_oss()
    experts = SortedExperts(module)
    inner = experts.experts[2].inner
    assert inner.weight.untyped_storage().data_ptr() == module.gate_up_proj.untyped_storage().data_ptr()
    (own,) = experts.own
    assert not list(own.parameters())


def swap(experts):
    order = list(experts.experts)
    experts.experts = torch.nn.ModuleList([order[1], order[0], *order[2:]])


def no_factors(experts):
    inner = experts.forward
    experts.forward = lambda rows, chosen, factors: inner(rows, chosen, torch.ones_like(factors))


def first_only(experts):
    inner = experts.forward
    experts.forward = lambda rows, chosen, factors: inner(rows, chosen[:, :1], factors[:, :1])


def another_activation(experts):
    (own,) = experts.own
    own.act_fn = torch.nn.GELU()


def a_row_late(experts):
    inner = experts.forward
    experts.forward = lambda rows, chosen, factors: inner(rows.roll(1, 0), chosen, factors)


@pytest.mark.parametrize("precision", ["fast", "high", "exact"])
@pytest.mark.parametrize("mutant", [swap, no_factors, first_only, another_activation, a_row_late])
def test_a_wrong_mixture_is_rejected(mutant, precision, monkeypatch):
    made = SortedExperts.__init__

    def make(self, module):
        made(self, module)
        mutant(self)

    monkeypatch.setattr(SortedExperts, "__init__", make)
    with pytest.raises(UnsupportedModelError, match="differ"):
        Reader.load((model_of("Mixtral").bfloat16(), byte_tokenizer()), precision=precision)


@pytest.mark.parametrize("family", ["llama4_text", "longcat_flash", "dbrx", "jetmoe"])
def test_layouts_that_transformers_does_not_describe(family):
    """In float32, and in bfloat16 without a float32 copy: "high" is as near to the float32 model of its weights."""
    changes = patterns(family)[0]
    stored = tiny_model(family, changes).to(torch.bfloat16)
    for module in stored.modules():
        if hasattr(module, "inv_freq"):
            module.inv_freq = module.inv_freq.float()
    wide = copy.deepcopy(stored).float()
    truth = one_by_one(wide, SEQUENCES)
    for model, precision in ((wide, "exact"), (stored, "high")):
        reader = Reader.load((model, byte_tokenizer()), device="cpu", precision=precision)
        assert "mixture of experts" in reader.describe()["forward"]
        mixtures = [
            m for m in reader.local_model.model.model.modules() if isinstance(m, (SortedExperts, ParallelExperts))
        ]
        layers = [m for mixture in mixtures for m in mixture.modules() if isinstance(m, UpcastLinear)]
        assert layers and all(layer.stored[0].weight.dtype == model.dtype for layer in layers)
        for got, want in zip(reader.score(SEQUENCES).token_logprobs, truth, strict=True):
            np.testing.assert_allclose(got, want, atol=2e-5)
