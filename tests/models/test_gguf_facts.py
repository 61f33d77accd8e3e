"""Whatever a GGUF file states is applied: made files against transformers' model of what each states, in float64."""

from functools import reduce
from operator import or_

import numpy as np
import pytest
import torch
from helpers.gguf_files import keys_of, llama3_divisors, tensors_of, tiny, write

from fastreader import Reader
from fastreader.errors import ModelFileError, UnsupportedModelError
from fastreader.study.dry_reader import DryReader

TEXTS = [list(range(20, 56)), [40, 8, 33, 90, 17, 60, 5]]
BOUND = 1e-5  # nats a token
MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "granite": "granite",
    "smollm3": "smollm3",
    "gpt-oss": "gpt_oss",
    "command-r": "cohere",
    "olmo2": "olmo2",
    "mixtral": "mixtral",
}
SCALED = [name for name in MODEL_TYPES if name not in ("gemma3", "phi3")]  # any scheme for all layers
BIASED = [name for name in MODEL_TYPES if name not in ("qwen2", "phi3", "mixtral")]
MLP_BIASED = ("llama", "granite", "smollm3")
DEFAULTS = {  # llama.cpp's, where transformers has others
    "granite": {"attention_multiplier": 8**-0.5},
    "command-r": {"logit_scale": 1.0},
    "gemma2": {"query_pre_attn_scalar": 8, "sliding_window": 12},
    "gemma3": {"query_pre_attn_scalar": 8, "sliding_window": 12},
    "gpt-oss": {"sliding_window": 12, "num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": False},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
    },
}
STATED = {
    "gemma2": {"attention.key_length": 8, "attention.value_length": 8, "attention.sliding_window": 12},
    "gemma3": {"attention.key_length": 8, "attention.value_length": 8, "attention.sliding_window": 12},
    "gpt-oss": {"attention.sliding_window": 12, "expert_count": 4, "expert_used_count": 2},
    "mixtral": {"expert_count": 4, "expert_used_count": 2},
    "qwen3moe": {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 16},
}


def rope(architecture, **fields):
    fields = {"rope_type": "default", "rope_theta": 10000.0, **fields}
    if architecture == "gemma3":
        return {"full_attention": fields, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    return fields


def yarn(architecture, **fields):
    fields = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, **fields}
    if architecture == "gpt-oss":
        fields["truncate"] = False
    return rope(architecture, **fields)


YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
CASES = {}
ALONE = set()  # cases that another one has among its facts, or another architecture has: `make fuzz` runs them


def case(name, architecture, fields=None, keys=None, change=None, alone=False):
    """Add a case: fields of transformers' config, and keys and tensors by which a file states the same."""
    CASES[f"{architecture}, {name}"] = (architecture, fields or {}, keys or {}, change)
    if alone:
        ALONE.add(f"{architecture}, {name}")


def add(**values):
    return lambda tensors, model: tensors.update({n.replace("__", "."): v for n, v in values.items()})


for a in MODEL_TYPES:
    case("plain", a)
    facts = {
        "tied": ({"tie_word_embeddings": True}, {}),
        "base": ({"rope_parameters": rope(a, rope_theta=500.0)}, {"rope.freq_base": 500.0}),
        "whole heads rotate": ({}, {"rope.dimension_count": 8}),
        "epsilon": ({"layer_norm_eps" if a == "command-r" else "rms_norm_eps": 0.25}, {}),
        "context": ({"max_position_embeddings": 300}, {}),
        "one head of keys": ({"num_key_value_heads": 1}, {}),
        "no scaling": ({}, {"rope.scaling.type": "none"}),
    }
    for name, (fields, keys) in facts.items():
        case(name, a, fields, keys, alone=True)
    case("all these", a, *(reduce(or_, parts) for parts in zip(*facts.values(), strict=True)))
for a in (name for name in MODEL_TYPES if name != "phi3"):
    case(
        "long heads",
        a,
        {
            "head_dim": 16,
            **({"query_pre_attn_scalar": 16} if "gemma" in a else {}),
            **({"attention_multiplier": 0.25} if a == "granite" else {}),
        },
        {"attention.key_length": 16, "attention.value_length": 16},
    )
    linear = {"rope_parameters": rope(a, rope_type="linear", factor=4.0)}
    case("linear", a, linear, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})
    case("linear without a type", a, linear, {"rope.scaling.factor": 4.0}, alone=a not in ("llama", "gemma3"))
for a in SCALED:
    case("yarn", a, {"rope_parameters": yarn(a)}, YARN, alone=a not in ("llama", "gpt-oss", "command-r"))
    betas = {"rope.scaling.yarn_beta_fast": 8.0, "rope.scaling.yarn_beta_slow": 2.0}
    case("yarn, betas", a, {"rope_parameters": yarn(a, beta_fast=8.0, beta_slow=2.0)}, {**YARN, **betas})
for a in BIASED:
    case("biases of attention", a, {"attention_bias": True}, alone=a in MLP_BIASED)
for a in MLP_BIASED:
    case("biases of feed-forwards", a, {"mlp_bias": True}, alone=True)
    case("all biases", a, {"attention_bias": True, "mlp_bias": True})


def without_output_bias(tensors, model):
    for name in [name for name in tensors if name.endswith("attn_output.bias")]:
        del tensors[name]
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.bias.zero_()


for a in ("llama", "granite", "qwen3", "olmo2"):
    case("biases of queries, keys and values", a, {"attention_bias": True}, change=without_output_bias)
for factor, low, high, original in (
    (8.0, 1.0, 4.0, 8192),
    (32.0, 1.0, 4.0, 8192),
    (4.0, 1.0, 3.0, 20),
    (2.0, 2.0, 8.0, 64),
):
    scheme = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    for a in ("llama", "mixtral"):
        case(
            f"divisors of Llama 3, {factor}, {original}",
            a,
            {"rope_parameters": rope(a, rope_theta=5000.0, **scheme)},
            {"rope.freq_base": 5000.0},
            add(rope_freqs__weight=llama3_divisors(8, 5000.0, factor, low, high, original)),
            alone=a == "mixtral" and original != 64,
        )
SHORT, LONG = [1.0, 1.5, 2.0, 3.0], [2.0, 4.0, 6.0, 9.0]
for original, size in ((256, 1.0), (20, 1.0), (256, 1.25), (20, 1.25)):
    case(
        f"longrope, {original}, {size}",
        "phi3",
        {
            "rope_parameters": rope(
                "phi3",
                rope_type="longrope",
                short_factor=SHORT,
                long_factor=LONG,
                original_max_position_embeddings=original,
                attention_factor=size,
            ),
            "original_max_position_embeddings": original,
        },
        {"rope.scaling.original_context_length": original, "rope.scaling.attn_factor": size},
        add(rope_factors_short__weight=np.float32(SHORT), rope_factors_long__weight=np.float32(LONG)),
        alone=(original, size) in ((20, 1.0), (256, 1.25)),
    )
for window in (4, 12):
    case(f"window {window}", "phi3", {"sliding_window": window}, {"attention.sliding_window": window})
    for a in ("gemma2", "gemma3", "gpt-oss"):  # 12 is what plain ones state
        case(
            f"window {window}", a, {"sliding_window": window}, {"attention.sliding_window": window}, alone=window == 12
        )
for part in (2, 4, 6):
    case(
        f"{part} of 8 rotate",
        "phi3",
        {"rope_parameters": rope("phi3", partial_rotary_factor=part / 8)},
        {"rope.dimension_count": part},
    )
for cap in (2.0, 20.0):
    for a in ("gemma2", "gemma3"):
        for part, field in (("attention", "attn_logit_softcapping"), ("logits", "final_logit_softcapping")):
            case(f"cap of {part} {cap}", a, {field: cap}, {field: cap}, alone=cap == 20)
for a in ("gemma2", "gemma3"):
    case("query scale", a, {"query_pre_attn_scalar": 24}, {"attention.scale": 24**-0.5})
case("27B", "gemma3", {"num_hidden_layers": 62, "num_attention_heads": 2, "query_pre_attn_scalar": 16})
case("27B", "gemma2", {"num_hidden_layers": 46, "num_attention_heads": 2, "query_pre_attn_scalar": 16})
case("seven layers", "gemma3", {"num_hidden_layers": 7})
case(
    "local base",
    "gemma3",
    {
        "num_hidden_layers": 7,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
    },
    {"rope.freq_base": 50000.0, "rope.freq_base_swa": 300.0, "rope.scaling.factor": 8.0, "rope.scaling.type": "linear"},
)
case(
    "local base by Ollama's key",
    "gemma3",
    {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 50000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        }
    },
    {"rope.freq_base": 50000.0, "rope.local.freq_base": 300.0, "attention.sliding_window_pattern": [True] * 3},
)
case("no window", "gemma3", {"layer_types": ["full_attention"] * 3}, {"attention.sliding_window": None})
for field, key, value in (
    ("attention_multiplier", "attention.scale", 0.125),
    ("embedding_multiplier", "embedding_scale", 3.0),
    ("residual_multiplier", "residual_scale", 0.25),
    ("logits_scaling", "logit_scale", 4.0),
):
    case(key, "granite", {field: value}, {key: value})
case("logit scale", "command-r", {"logit_scale": 0.25}, {"logit_scale": 0.25})
case("norms of queries and keys", "command-r", {"use_qk_norm": True})
case("four layers", "smollm3", {"num_hidden_layers": 4})
case("plain attention scale", "llama", {}, {"attention.scale": 8**-0.5})
case("experts' sums as they are", "qwen3moe", {"norm_topk_prob": False}, {"expert_weights_norm": False})
case("experts' sums by Ollama's key", "qwen3moe", {"norm_topk_prob": False}, {"norm_top_k_prob": False})
NOTHING = {"expert_shared_feed_forward_length": 0, "expert_weights_scale": 1.0, "expert_gating_func": 1}
case("parts that it lacks", "qwen3moe", {}, {**NOTHING, "leading_dense_block_count": 0, "expert_group_count": 1})
case("Ollama's names of the same", "llama", {}, {"attention.head_dim": 8, "max_position_embeddings": 256})
HYBRID = {"ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 1, "ssm.inner_size": 64}
HYBRID |= {"ssm.time_step_rank": 8, "expert_shared_feed_forward_length": 48, "rope.scaling.finetuned": True}
case("a dense one of the hybrids' converter", "granite", {}, HYBRID)


def one_text(model, ids):
    """Return the log-likelihood of all tokens but the first by transformers."""
    with torch.inference_mode():
        logits = model.double()(torch.tensor([ids])).logits[0, :-1]
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None]).sum().item()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def made(tmp_path, cache):
    """Return a function that makes the model and the file of a case."""

    def make(architecture, fields, keys, change, extra=None):
        model = tiny(
            MODEL_TYPES[architecture],
            **{"rope_parameters": rope(architecture), **DEFAULTS.get(architecture, {}), **fields},
        )
        name = "llama" if architecture == "mixtral" else architecture
        tensors = tensors_of(name, model)
        if change is not None:
            change(tensors, model)
        stated = {**keys_of(name, model.config), **STATED.get(architecture, {}), **keys, **(extra or {})}
        return model, write(tmp_path / "made.gguf", name, tensors, stated)

    return make


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.fuzz) if name in ALONE else name for name in CASES]
)
@pytest.mark.long(keep=20)
def test_what_a_file_states_is_applied(made, name):
    architecture, fields, keys, change = CASES[name]
    model, file = made(architecture, fields, keys, change)
    reader = Reader.load(file, "cpu", precision="exact", check="off")
    pairs = [(ids[:1], ids[1:]) for ids in TEXTS]
    ours = [score.logprob for score in reader.loglikelihood(pairs)]
    for ids, got in zip(TEXTS, ours, strict=True):
        assert abs(got - one_text(model, ids)) <= BOUND * len(ids)
    dry = DryReader.load(str(file), device="cpu", precision="exact")
    running = reader.local_model.model
    assert (dry.regimes, dry.max_length) == (running.regimes, running.max_length)
    of_run = reader.describe()
    assert {key: of_run[key] for key in ("name", "device", "dtype", "precision")}.items() <= dry.describe().items()


def test_there_are_enough_cases():
    assert len(CASES) >= 120


REFUSED = {
    "llama": {
        "attention.sliding_window": 8,
        "attn_logit_softcapping": 10.0,
        "final_logit_softcapping": 10.0,
        "attention.scale": 0.5,
        "attention.value_length": 4,
        "attention.clamp_kqv": 1.0,
        "attention.max_alibi_bias": 8.0,
        "attention.causal": False,
        "rope.dimension_count": 4,
        "rope.scaling.type": "longrope",
        "rope.scaling.attn_factor": 1.5,
        "rope.scaling.yarn_log_multiplier": 0.1,
        "rope.dimension_sections": [2, 2],
        "logit_scale": 0.5,
        "residual_scale": 0.5,
        "embedding_scale": 2.0,
        "use_parallel_residual": True,
        "nextn_predict_layers": 1,
        "attention.something_new": 1,
        "feed_forward_length": [48, 48, 32],
        "attention.head_dim": 4,
        "max_position_embeddings": 128,
        "expert_shared_feed_forward_length": 48,
        "ssm.conv_kernel": 4,
    },
    "qwen2": {"attention.sliding_window": 8, "rope.dimension_count": 4, "expert_count": 4},
    "granite": {"rope.scaling.finetuned": False, "expert_shared_feed_forward_length": 40},
    "gemma2": {"attention.scale": 0.3},
    "gemma3": {"rope.scaling.type": "yarn", "attention.sliding_window_pattern": 4},
    "phi3": {"rope.scaling.factor": 2.0},
    "qwen3moe": {"expert_weights_scale": 2.0, "expert_gating_func": 2, "leading_dense_block_count": 1},
}


@pytest.mark.parametrize(("architecture", "key"), [(a, key) for a, keys in REFUSED.items() for key in keys])
def test_what_cannot_be_applied_is_refused_by_name(made, architecture, key):
    extra = {"rope.scaling.factor": 2.0} if key == "rope.scaling.type" and architecture == "gemma3" else {}
    _, file = made(architecture, {}, {}, None, {key: REFUSED[architecture][key], **extra})
    with pytest.raises(UnsupportedModelError, match=rf"made\.gguf.*{key.rpartition('.')[2]}"):
        Reader.load(file, "cpu")


@pytest.mark.parametrize("swa", [500.0, -1.0])
def test_two_bases_of_local_layers_that_differ_are_an_error(made, swa):
    _, file = made("gemma3", {}, {}, None, {"rope.local.freq_base": 300.0, "rope.freq_base_swa": swa})
    with pytest.raises(ModelFileError, match="freq_base"):
        Reader.load(file, "cpu")


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("llama", "blk.0.attn_q_norm.weight"),
        ("llama", "output.bias"),
        ("llama", "output_norm.bias"),
        ("llama", "blk.1.attn_norm.bias"),
        ("llama", "blk.0.attn_q.scale"),
        ("llama", "blk.0.attn_sub_norm.weight"),
        ("llama", "rope_factors_long.weight"),
        ("llama", "something"),
        ("qwen2", "rope_freqs.weight"),
        ("qwen2", "blk.0.attn_output.bias"),
        ("phi3", "blk.0.attn_qkv.bias"),
        ("gemma2", "rope_freqs.weight"),
    ],
)
def test_a_tensor_without_a_place_is_refused_by_name(made, architecture, name):
    _, file = made(architecture, {}, {}, lambda tensors, model: tensors.update({name: np.full(4, 2, np.float32)}))
    with pytest.raises(UnsupportedModelError, match=rf"made\.gguf.*{name.partition('.weight')[0]}"):
        Reader.load(file, "cpu")
