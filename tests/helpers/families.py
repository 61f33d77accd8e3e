"""Tiny random models of families with unlike parts. `registry` has all families."""

import torch
import transformers

COMMON = {
    "vocab_size": 261,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "initializer_range": 0.2,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
SLIDING = {"sliding_window": 7, "head_dim": 16}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}

FAMILIES = {
    "Llama": {},
    "Llama, biases": {"attention_bias": True, "mlp_bias": True},
    "Qwen2": {},
    "Qwen3": {"head_dim": 32},
    "Mistral, window": SLIDING,
    "Gemma2, window, caps": {**SLIDING, **ALTERNATING, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    "Gemma3, window": {**SLIDING, **ALTERNATING},
    "Phi3, window": {"sliding_window": 7},
    "GPT2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512},
    "GPTNeoX": {},
    "Granite": {"logits_scaling": 4.0, "residual_multiplier": 0.5, "embedding_multiplier": 3.0},
    "Olmo2": {},
    "Mixtral": {"num_local_experts": 4, "head_dim": 16},
    "Qwen3Moe": {**MOE, "head_dim": 16},
    "Cohere2, window": {"sliding_window": 7, **ALTERNATING, "logit_scale": 0.25},
    "OPT": {"ffn_dim": 96, "word_embed_proj_dim": 32},
    "SmolLM3": {"no_rope_layers": [1, 0, 1]},
    "Olmo, clip": {"clip_qkv": 6.0},  # usual values are within, so that few texts see it
    "Ministral3, scaled queries": {
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "llama_4_scaling_beta": 1.0,
            "original_max_position_embeddings": 12,
        },
    },
}
TEXT_ONLY = {"Gemma3": "Gemma3TextConfig"}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 24,
    "factor": 4.0,
}


def tiny(family: str, seed: int = 0, **overrides):
    name = family.split(",")[0]
    config_class = getattr(transformers, TEXT_ONLY.get(name, f"{name}Config"))
    values = dict(COMMON) if name != "GPT2" else {k: COMMON[k] for k in ("vocab_size", "bos_token_id", "eos_token_id")}
    config = config_class(**{**values, **FAMILIES.get(family, {}), **overrides})
    torch.manual_seed(seed)
    model_class = getattr(transformers, f"{name}ForCausalLM", None) or getattr(transformers, f"{name}LMHeadModel")
    return model_class(config).eval()


def deep(family, seed=0, layers=7):
    """Return a tiny model of more layers, whose kinds follow one another as in the tiny one."""
    own = tiny(family).config.to_dict()
    kinds = {key: own[key] for key in ("layer_types", "no_rope_layers") if own.get(key) is not None}
    longer = {key: (values * layers)[:layers] for key, values in kinds.items()}
    return tiny(family, seed, num_hidden_layers=layers, **longer)
