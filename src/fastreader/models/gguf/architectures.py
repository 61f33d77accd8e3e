"""What the architectures of GGUF files are in transformers, and how their tensors are named there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Modules of a decoder layer in transformers, and the tensors that llama.cpp makes of them.
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_AROUND = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_EXPERTS = {"mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp"}
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


@dataclass(frozen=True)
class Architecture:
    """One architecture.

    Attributes:
        model_type: of transformers' config.
        layer: tensors of modules that are named otherwise than in most architectures.
        epsilon: name of the norms' epsilon in transformers' config.
        permuted: whether the file has rows of queries and keys in pairs, where transformers has halves.
        norm_offset: what the file adds to the weights of norms.
        biases: fields of the config that add biases, and a tensor of a layer that each needs.
        optional: keys that set a field of the config, and the field.
        scalings: the rotary schemes that its modules in transformers compute.
        partial_rotary: whether they rotate a part of a head.
        interleaved_experts: whether transformers alternates rows of gates and values, transposed.
    """

    model_type: str
    layer: Mapping[str, str] = field(default_factory=dict)
    epsilon: str = "rms_norm_eps"
    permuted: bool = False
    norm_offset: float = 0.0
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    optional: Mapping[str, str] = field(default_factory=dict)
    scalings: tuple[str, ...] = ("linear", "yarn")
    partial_rotary: bool = False
    interleaved_experts: bool = False

    def tensor_of(self, parameter: str) -> str:
        """Return the tensor of a parameter that transformers names, or "" if a name alone does not give it."""
        module, _, kind = parameter.rpartition(".")
        if kind not in ("weight", "bias"):
            return ""
        if module in _WHOLE:
            return f"{_WHOLE[module]}.{kind}"
        layer, inner = layer_of(module)
        name = {**_LAYER, **_EXPERTS, **self.layer}.get(inner)
        return "" if name is None or layer is None else f"blk.{layer}.{name}.{kind}"


def layer_of(name: str) -> tuple[int | None, str]:
    """Return the number of a decoder layer and a name within it, from one such as "model.layers.3.mlp"."""
    start = "model.layers."
    number, _, inner = name.removeprefix(start).partition(".")
    return (int(number), inner) if name.startswith(start) and number.isdecimal() else (None, name)


_ATTENTION = {"attention_bias": ("attn_q", "attn_k", "attn_v", "attn_output")}
_BOTH = {**_ATTENTION, "mlp_bias": ("ffn_gate", "ffn_up", "ffn_down")}
ARCHITECTURES = {
    "llama": Architecture("llama", permuted=True, biases=_BOTH, scalings=("linear", "yarn", "divisors")),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3", biases=_ATTENTION),
    "qwen3moe": Architecture("qwen3_moe", biases=_ATTENTION),
    "gemma2": Architecture("gemma2", _AROUND, norm_offset=1.0, biases=_ATTENTION),
    "gemma3": Architecture("gemma3_text", _AROUND, norm_offset=1.0, biases=_ATTENTION, scalings=("linear",)),
    "phi3": Architecture(
        "phi3",
        {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
        scalings=("longrope",),
        partial_rotary=True,
    ),
    "granite": Architecture(
        "granite",
        permuted=True,
        biases=_BOTH,
        optional={
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
    ),
    "smollm3": Architecture("smollm3", permuted=True, biases=_BOTH),
    "gpt-oss": Architecture(
        "gpt_oss", {"post_attention_layernorm": "post_attention_norm"}, biases=_ATTENTION, interleaved_experts=True
    ),
    "command-r": Architecture(
        "cohere", epsilon="layer_norm_eps", biases=_ATTENTION, optional={"logit_scale": "logit_scale"}
    ),
    "olmo2": Architecture("olmo2", _AROUND, biases=_ATTENTION),
}
MIXTRAL = Architecture("mixtral", permuted=True, scalings=("linear", "yarn", "divisors"))
