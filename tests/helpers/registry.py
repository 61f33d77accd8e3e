"""Tiny random models of every causal LM that transformers registers, in several layer patterns."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

VOCABULARY = 261  # of `byte_tokenizer`

# Values that replace a configuration's own where it has an attribute of that name; unlisted families get these only.
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size": 64,
    "d_model": 64,
    "n_embd": 64,
    "embedding_size": 64,
    "word_embed_proj_dim": 32,
    "hidden_size_per_layer_input": 16,
    "num_hidden_layers": 3,
    "num_layers": 3,
    "n_layer": 3,
    "n_layers": 3,
    "decoder_layers": 3,
    "encoder_layers": 1,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 20,
    "intermediate_size": 96,
    "intermediate_size_mlp": 96,
    "shared_expert_intermediate_size": 48,
    "shared_intermediate_size": 48,
    "moe_intermediate_size": 48,
    "ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "encoder_ffn_dim": 96,
    "d_ff": 96,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "sliding_window": 7,
    "attention_chunk_size": 7,
    "linear_num_heads": 4,
    "linear_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "mamba_d_ssm": 128,
    "mamba_d_state": 16,
    "mamba_dt_rank": 8,
    "ssm_state_size": 16,
    "state_size": 16,
    "time_step_rank": 8,
    "lru_width": 64,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "max_position_embeddings": 512,
    "n_positions": 512,
    "max_seq_len": 512,
    "max_length": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "decoder_start_token_id": 0,
}
_EVEN_IF_NONE = {
    "head_dim",
    "num_key_value_heads",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "num_experts_per_tok",
    "sliding_window",
}

ALTERNATING = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
FULL = {"layer_types": ["full_attention"] * 3}
SPARSE_DENSE = {"mlp_layer_types": ["sparse", "dense", "sparse"]}
ROPE = {"rope_type": "default", "rope_theta": 1e4}
YARN = {"rope_parameters": {**ROPE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}}
LINEAR = {"rope_parameters": {**ROPE, "rope_type": "linear", "factor": 3.0}}
DYNAMIC = {"rope_parameters": {**ROPE, "rope_type": "dynamic", "factor": 2.0}}
LLAMA3 = {
    "rope_parameters": {
        **ROPE,
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 24,
    }
}
LONGROPE = {
    "original_max_position_embeddings": 24,
    "rope_parameters": {
        **ROPE,
        "rope_type": "longrope",
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 24,
        "factor": 4.0,
    },
}
SHARING = {
    "num_hidden_layers": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "num_kv_shared_layers": 2,
}
GEMMA4: list[dict[str, Any]] = [
    {"global_head_dim": 32, **SHARING, "use_double_wide_mlp": True},
    {
        "global_head_dim": 32,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 48,
        "final_logit_softcapping": 5.0,
    },
    {},  # head size 512
]
GEMMA4_UNIFIED = [{"global_head_dim": 32, "layer_types": SHARING["layer_types"], "num_hidden_layers": 5}, {}]
GRANITE = {"logits_scaling": 4.0, "residual_multiplier": 0.5, "embedding_multiplier": 3.0}
LATENT_SLIDING = {
    "num_key_value_heads": 4,
    "use_dsa": False,
    "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 2,
    "swa_q_lora_rank": 16,
    "swa_kv_lora_rank": 24,
    "swa_head_dim": 24,
    "swa_qk_nope_head_dim": 16,
    "swa_v_head_dim": 20,
    **ALTERNATING,
}

# Mixers of hybrid readers in several orders.
_LINEAR, _FULL = "linear_attention", "full_attention"
MIXED = {"layer_types": [_LINEAR, _FULL, _LINEAR]}
TWO_LINEAR = {"layer_types": [_LINEAR, _LINEAR, _FULL]}
CONVOLVED = {"layer_types": ["conv", _FULL, "conv"]}
_GROUPED = {"mamba_n_groups": 2, "mamba_proj_bias": True}
_ZAMBA = {
    "attention_head_dim": 32,
    "num_key_value_heads": 4,
    "layers_block_type": ["hybrid", _LINEAR, "hybrid"],
    "rms_norm_eps": 1e-3,
}
ZAMBA2 = {**_ZAMBA, "n_mamba_heads": 8, "mamba_headdim": 16, "mamba_ngroups": 2}
# A norm of what is read from a state of one token divides by as little as the product of two random directions.
QWEN_HYBRID: list[dict[str, Any]] = [
    {**MIXED, "rms_norm_eps": 1e-3},
    {**TWO_LINEAR, "rms_norm_eps": 1e-3, "linear_num_key_heads": 4, "linear_conv_kernel_dim": 3},
]

_MROPE = {**ROPE, "mrope_section": [3, 3, 2]}
_BLT = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}

# Layer patterns of a family, as changes to its small configuration. Families that are not listed have one pattern, and
# a second if their configuration says which layers slide or are sparse.
PATTERNS: dict[str, list[dict[str, Any]]] = {
    "bailing_hybrid": [MIXED, {**TWO_LINEAR, "kda_safe_gate": False}],
    "bamba": [{"attn_layer_indices": [1]}, {"attn_layer_indices": [0, 2], **_GROUPED}],
    "blt": [
        {
            "encoder_hash_byte_group_vocab": 100,
            "patcher_config": {**_BLT, "num_hidden_layers": 1},
            "encoder_config": {**_BLT, "hidden_size_global": 128, "num_hidden_layers": 1},
            "decoder_config": {**_BLT, "hidden_size_global": 128, "num_hidden_layers": 1},
            "global_config": {**_BLT, "hidden_size": 128, "num_hidden_layers": 1},
        }
    ],
    "codegen": [{"rotary_dim": 8}],
    "cohere_compass_text": [
        {"rope_parameters": {"full_attention": _MROPE, "sliding_attention": _MROPE}, **ALTERNATING}
    ],
    "cohere2": [{}, FULL],
    "dbrx": [
        {
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 4.0, "rope_theta": 1e4},
            "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 96, "moe_top_k": 2},
        }
    ],
    "deepseek_v4": [{}],
    "dots1": [{"n_shared_experts": 1, "n_routed_experts": 4}],
    "dots3_note": [LATENT_SLIDING],
    "dots3_note_text": [LATENT_SLIDING, {"num_key_value_heads": 4}],
    "falcon_h1": [
        {},
        {
            **_GROUPED,
            "mamba_rms_norm": True,
            "ssm_multipliers": [0.7, 1.2, 0.8, 1.1, 0.9],
            "key_multiplier": 0.8,
            "embedding_multiplier": 2.0,
            "lm_head_multiplier": 0.6,
            "mamba_d_conv": 3,
        },
    ],
    "falcon": [{}, {"new_decoder_architecture": True, "num_kv_heads": 2}, {"multi_query": False}, {"alibi": True}],
    "gemma3": [
        {},
        {**ALTERNATING, "rope_parameters": {"full_attention": LINEAR["rope_parameters"], "sliding_attention": ROPE}},
    ],
    "gemma3n_text": [SHARING, {"num_hidden_layers": 5, "num_kv_shared_layers": 0}],
    "gemma4": GEMMA4,
    "gemma4_text": GEMMA4,
    "gemma4_unified": GEMMA4_UNIFIED,
    "gemma4_unified_text": GEMMA4_UNIFIED,
    "glm_moe_dsa": [{}, {"indexer_types": ["full", "shared", "shared"]}],
    "got_ocr2": [{}],
    "gpt_neo": [{"attention_types": [[["global", "local"], 1], [["global"], 1]], "window_size": 7}],
    "gptj": [{"rotary_dim": 8}],
    "granite": [GRANITE],
    "granitemoe": [GRANITE],
    "granitemoe_swa": [GRANITE, {**GRANITE, **ALTERNATING}],
    "granitemoeshared": [GRANITE],
    "granitemoehybrid": [
        {**MIXED, **GRANITE},
        {**TWO_LINEAR, **GRANITE, **_GROUPED, "position_embedding_type": "rope"},
    ],
    "granite_swa": [GRANITE, {**GRANITE, **ALTERNATING}],
    "lfm2": [CONVOLVED, {**CONVOLVED, "conv_bias": True, "conv_L_cache": 4}, FULL],
    "lfm2_moe": [{**CONVOLVED, "num_dense_layers": 1}, FULL],
    "lfm3": [{"layer_types": ["conv", "sliding_attention", "full_attention"]}, CONVOLVED],
    "jamba": [
        {"attn_layer_period": 3, "attn_layer_offset": 1},
        {"attn_layer_period": 2, "attn_layer_offset": 0, "num_experts": 1, "mamba_d_conv": 3},
    ],
    "kimi_linear": [{**MIXED, **SPARSE_DENSE}, TWO_LINEAR],
    "llama": [{}, YARN, LINEAR, DYNAMIC, LLAMA3, {"attention_bias": True, "mlp_bias": True}],
    "llama4_text": [
        {"layer_types": ["chunked_attention", "full_attention", "chunked_attention"], "no_rope_layers": [1, 0, 1]},
        FULL,
    ],
    "minicpm3": [{"scale_emb": 1, "scale_depth": 1.4, "dim_model_base": 16}],
    "minimax_m3_vl_text": [{}, {"layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"]}],
    "mamba2": [
        {"num_heads": 8, "head_dim": 16, "n_groups": 2},
        {"num_heads": 4, "head_dim": 32, "n_groups": 1, "time_step_limit": (0.1, 0.6)},
    ],
    "minimax": [{**MIXED, "sliding_window": None}, {**TWO_LINEAR, "sliding_window": None, "block_size": 5}],
    "mistral": [{}, {"sliding_window": None}],
    "mllama": [{"cross_attention_layers": [1]}],
    "moss_transcribe_diarize": [{}],
    "mpt": [{}, {"attn_config": {"clip_qkv": 2.0}}],
    "nemotron_h": [
        {"layers_block_type": [_LINEAR, "moe", _FULL, "mlp"], "num_hidden_layers": 4, "n_groups": 2},
        {"layers_block_type": [_LINEAR, "mlp", _LINEAR, _FULL, "moe"], "num_hidden_layers": 5, "conv_kernel": 3},
    ],
    "olmo_hybrid": [MIXED, {**TWO_LINEAR, "linear_allow_neg_eigval": False}],
    "phi3": [{}, LONGROPE],
    "phi4_multimodal": [
        {
            **LONGROPE,
            "vision_config": {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1},
            "audio_config": {"hidden_size": 64, "intermediate_size": 64, "num_blocks": 1, "ext_pw_out_channel": 64},
        }
    ],
    "phimoe": [{"sliding_window": None}, {"sliding_window": 512}, {"sliding_window": 7}],
    "moshi": [{"sliding_window": 512}, {"sliding_window": 7}],
    "qwen2": [{}, {"use_sliding_window": True, "max_window_layers": 1}],
    "qwen2_moe": [{}, {"use_sliding_window": True, "max_window_layers": 1}],
    "qwen3_5": QWEN_HYBRID,
    "qwen3_5_moe": QWEN_HYBRID,
    "qwen3_5_moe_text": QWEN_HYBRID,
    "qwen3_5_text": QWEN_HYBRID,
    "qwen3_next": [{**QWEN_HYBRID[0], "mlp_only_layers": [1]}, QWEN_HYBRID[1]],
    "qwen4_exp": [{}, {"ple_layer_ids": [1, 2, 3], "ngram_vocab_size_base": 100, "ple_embed_dim": 64}],
    "qwen4_exp_text": [
        {
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
            "indexer_budget": 64,
            "indexer_compress_ratio": 4,
            **TWO_LINEAR,
        }
    ],
    "recurrent_gemma": [
        {"block_types": ["recurrent", "attention"]},
        {"block_types": ["recurrent", "recurrent", "attention"], "conv1d_width": 3, "logits_soft_cap": 3.0},
    ],
    "qwen3": [{}, {"use_sliding_window": True, "max_window_layers": 1}, YARN],
    "smollm3": [
        {"no_rope_layers": [1, 0, 1]},
        {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "max_window_layers": 1},
    ],
    "starcoder2": [{}, {"sliding_window": None}],
    "xlstm": [{}],
    "zaya": [{"num_experts_per_tok": 1}],
    "zamba": [
        {**_ZAMBA, "n_mamba_heads": 2},
        {**_ZAMBA, "n_mamba_heads": 1, "mamba_d_conv": 3},
    ],
    "zamba2": [ZAMBA2, {**ZAMBA2, "num_mem_blocks": 2, "use_shared_attention_adapter": True, "use_mem_rope": True}],
}

# Families with a recurrence. transformers' own rounding in float32 can exceed the tolerance of the sweep there, so they
# are compared with transformers in float64, and some have smaller weights.
RECURRENT = {
    *("bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear", "mamba"),
    *("mamba2", "minimax", "nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text"),
    *("qwen3_next", "qwen4_exp", "qwen4_exp_text", "recurrent_gemma", "zamba", "zamba2"),
}
SPREAD = {"falcon_h1": 0.7, "qwen3_5_moe": 0.7, "qwen3_5_moe_text": 0.7, "qwen4_exp": 0.8, "zamba": 0.3, "zamba2": 0.4}

_ENCODER = "an encoder with an LM head"
_SEQ2SEQ = "the decoder of an encoder-decoder, which counts positions itself"
# Families that this sweep does not count, and why.
ASIDE: dict[str, str] = {
    **dict.fromkeys(
        (
            *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert"),
            *("rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm", "xlm-roberta"),
            *("xlm-roberta-xl", "xmod"),
        ),
        _ENCODER,
    ),
    **dict.fromkeys(
        (
            *("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "musicgen"),
            *("musicgen_melody", "mvp", "pegasus", "plbart", "prophetnet", "trocr", "whisper"),
        ),
        _SEQ2SEQ,
    ),
    "reformer": "attention to hashed buckets, in reversible layers",
    "xlnet": "permutations of a text and a memory of earlier ones",
    "git": "captions of images, read in both directions",
    "gemma3n": "its text model is `gemma3n_text`; its encoder needs timm",
    "gemma4_assistant": "drafts for another model, whose keys and states it reads",
    "gemma4_unified_assistant": "drafts for another model, whose keys and states it reads",
}


def families() -> list[str]:
    """Return the names of all model types registered as causal LMs."""
    return list(NAMES)


def patterns(family: str) -> list[dict[str, Any]]:
    """Return the layer patterns of a family."""
    if family in PATTERNS:
        return PATTERNS[family]
    own = vars(CONFIG_MAPPING[family]().get_text_config(decoder=True))
    mixed = {}
    if "layer_types" in own and "sliding_window" in own:
        mixed |= ALTERNATING
    if "mlp_layer_types" in own:
        mixed |= SPARSE_DENSE
    return [{}, mixed] if mixed else [{}]


def model_class(family: str) -> Any:
    """Return the class that runs a family."""
    return getattr(transformers, NAMES[family])


def tiny_config(family: str, changes: dict[str, Any]) -> Any:
    """Return a small configuration of the kind that the family's class takes."""
    kind = CONFIG_MAPPING[family]
    default = kind()
    wanted = model_class(family).config_class
    text = default.get_text_config(decoder=True)
    if text is default or (wanted is not kind and wanted is type(text)):
        return type(text)(**_small(text, changes))
    parts = {
        name: _small(part, changes if part is text else {})
        for name, part in vars(default).items()
        if isinstance(part, PreTrainedConfig)
    }
    own = {} if any(part is text for part in vars(default).values()) else _small(default, changes)
    return kind(**{**own, **parts, **changes.get("whole", {})})


def _small(config: Any, changes: dict[str, Any]) -> dict[str, Any]:
    own = vars(config)
    values = {}
    for name, value in SMALL.items():
        name = config.attribute_map.get(name, name)
        if name in own and (own[name] is not None or name in _EVEN_IF_NONE):
            values[name] = value
    if "kv_lora_rank" in values:  # latent attention has a key a head, and rotates these values alone
        values |= {"num_key_value_heads": 4, "head_dim": values["qk_rope_head_dim"]}
    return {**values, **{name: value for name, value in changes.items() if name != "whole"}}


def tiny_model(family: str, changes: dict[str, Any], seed: int = 0) -> Any:
    """Return a random float32 model with eager attention, and weights so large that attention matters."""
    config = tiny_config(family, changes)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = model_class(family)(config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            drawn = torch.randn(parameter.shape, generator=generator)
            if id(parameter) in tables:
                parameter.copy_(0.3 * drawn)
            elif parameter.dim() > 1:
                parameter.copy_(1.2 * SPREAD.get(family, 1.0) * drawn / parameter.shape[-1] ** 0.5)
            else:  # norms, biases, sinks: none may stay at one or zero
                parameter.add_(0.1 * drawn)
    return model
