"""GGUF files of tiny transformers models, written as llama.cpp's converter does, with any keys and tensors."""

from __future__ import annotations

import math

import numpy as np
import torch

from helpers.support import byte_tokenizer

LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "post_attention_layernorm": "ffn_norm",
}
AROUND = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
OTHER_NAMES = {
    "gemma2": AROUND,
    "gemma3": AROUND,
    "olmo2": AROUND,
    "gpt-oss": {"post_attention_layernorm": "post_attention_norm"},
}
IN_PAIRS = ("llama", "granite", "smollm3")
VOCABULARY = 261


def paired(values, heads):
    """Return rows of queries or keys in the order that llama.cpp's rotary embedding of pairs takes."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def tensors_of(architecture, model):
    """Return a model's weights by llama.cpp's names."""
    config, found = model.config, {}
    for name, parameter in model.named_parameters():
        values = parameter.detach().float().numpy()
        if name.startswith(("model.embed_tokens", "lm_head", "model.norm")):
            whole = {"model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm"}
            new = f"{whole[name.removesuffix('.weight')]}.weight"
        else:
            _, _, layer, rest = name.split(".", 3)
            if rest.startswith("mlp.experts."):
                kind, bias, _ = rest.removeprefix("mlp.experts.").partition("_bias")
                suffix = "bias" if bias else "weight"
                if architecture == "gpt-oss" and not bias:
                    values = values.swapaxes(1, 2)
                if kind == "down_proj":
                    found[f"blk.{layer}.ffn_down_exps.{suffix}"] = values
                    continue
                half = values.shape[1] // 2
                gate, up = (values[:, :half], values[:, half:])
                if architecture == "gpt-oss":
                    gate, up = values[:, ::2], values[:, 1::2]
                found[f"blk.{layer}.ffn_gate_exps.{suffix}"] = gate
                found[f"blk.{layer}.ffn_up_exps.{suffix}"] = up
                continue
            if rest == "self_attn.sinks":
                found[f"blk.{layer}.attn_sinks.weight"] = values
                continue
            module, _, kind = rest.rpartition(".")
            new = f"blk.{layer}.{ {**LAYER, **OTHER_NAMES.get(architecture, {})}[module] }.{kind}"
            if architecture in IN_PAIRS and module == "self_attn.q_proj":
                values = paired(values, config.num_attention_heads)
            if architecture in IN_PAIRS and module == "self_attn.k_proj":
                values = paired(values, config.num_key_value_heads)
        if architecture.startswith("gemma") and "norm" in name:
            values = values + np.float32(1)
        found[new] = values
    return found


def keys_of(architecture, config):
    """Return the keys that every file has."""
    epsilon = "layer_norm_epsilon" if architecture == "command-r" else "layer_norm_rms_epsilon"
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        f"attention.{epsilon}": float(getattr(config, "rms_norm_eps", None) or config.layer_norm_eps),
    }


def write(file, architecture, tensors, keys, quantise=None, whole=None, vocabulary=True, **options):
    """Write a GGUF file.

    Args:
        tensors: numpy arrays by name.
        keys: of the architecture, without its name before them; None leaves a key out.
        quantise: the type of matrices, a function of a tensor's name, or None for float32.
        whole: keys with their full names.
    """
    from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants

    writer = GGUFWriter(file, architecture, **options)
    for key, value in {**{f"{architecture}.{k}": v for k, v in keys.items()}, **(whole or {})}.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    if vocabulary:
        tokens = [*byte_tokenizer().convert_ids_to_tokens(range(VOCABULARY - 1)), "ab"]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types([TokenType.CONTROL if t.startswith("<|") else TokenType.NORMAL for t in tokens])
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
    for name, values in tensors.items():
        if quantise is not None and values.ndim > 1:
            kind = GGMLQuantizationType[quantise if isinstance(quantise, str) else quantise(name)]
            writer.add_tensor(name, quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def tiny(model_type, **fields):
    """Return a random model with weights so large that a wrong fact of its config shows."""
    import transformers

    size = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "pad_token_id": None,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
    }
    config = transformers.AutoConfig.for_model(model_type, **{**size, **fields})
    generator = torch.Generator().manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.3 if parameter.dim() > 1 else 0.5
            values = scale * torch.randn(parameter.shape, generator=generator)
            plain_norm = "norm" in name and not model_type.startswith("gemma")
            parameter.copy_(values * 0.3 + 1 if plain_norm else values)
    return model


def llama3_divisors(head, base, factor, low, high, original):
    """Return what llama.cpp's converter writes for Llama 3's scheme."""
    found = []
    for i in range(0, head, 2):
        wavelength = 2 * math.pi * base ** (i / head)
        if wavelength < original / high:
            found.append(1.0)
        elif wavelength > original / low:
            found.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, dtype=np.float32)
