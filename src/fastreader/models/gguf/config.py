"""The transformers config of a GGUF file, every key of which counts or makes the load fail."""

from __future__ import annotations

from typing import Any

import torch

from fastreader.core.checks import shown
from fastreader.errors import ModelFileError, UnsupportedModelError
from fastreader.models.gguf.architectures import ARCHITECTURES, MIXTRAL, Architecture
from fastreader.models.gguf.file import GgufFile
from fastreader.models.gguf.rotary import rope_parameters
from fastreader.models.gguf.tokenizer import check_keys, ends_of

_MOST = 1 << 24  # of any size; the largest vocabularies have a quarter of a million tokens
_NO_TOKEN = (1 << 32) - 1  # llama.cpp's -1
_GEMMA_27B = {"gemma2": 46, "gemma3": 62}  # layers; llama.cpp scales queries by the width of these
_LOCAL_BASE = 10_000.0  # of rotary embeddings inside a window
_ROUTED = ("mixtral", "qwen3_moe", "gpt_oss")
_WIDE = ("F16", "F32", "F64")
_SOFTMAX = 1  # of llama.cpp's numbers for the function of a mixture's gates
# What converters write for a model without the part, or with the only function that its modules have.
_NEUTRAL: dict[str, tuple[int, ...]] = {
    "expert_shared_feed_forward_length": (0,),
    "expert_shared_count": (0,),
    "expert_weights_scale": (0, 1),
    "expert_gating_func": (_SOFTMAX,),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
}


def architecture_of(file: GgufFile) -> Architecture:
    """Return the architecture of a file.

    Raises:
        UnsupportedModelError: if it is not one of `ARCHITECTURES`.
    """
    if file.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedModelError(
            f"{file.path}: general.architecture is {file.architecture!r}; GGUF files load of {known}"
        )
    routed = file.architecture == "llama" and file.metadata.get("llama.expert_count")
    return MIXTRAL if routed else ARCHITECTURES[file.architecture]


def config_of(file: GgufFile, *, of_its_class: bool = True) -> Any:
    """Return the config of a file's model, whose `eos_token_id` has all ends that the file names.

    Args:
        file: the header.
        of_its_class: whether it can build the model. The class of a model imports most of transformers, in seconds; a
            plain config has the same fields, as far as the file states them.

    Raises:
        ModelFileError: if a key is missing, impossible, or contradicts a tensor.
        UnsupportedModelError: if transformers' modules of the architecture do not do what the file states.
    """
    reader = _Reader(file)
    of = architecture_of(file)
    values = reader.shape(of) | reader.attention(of) | reader.particulars(of) | reader.special_tokens()
    values |= _biases(file, of)
    if "output.bias" in file.tensors:
        raise UnsupportedModelError(f"{file.path}: states output.bias, which transformers has no place for")
    reader.use_neutral()
    values["tie_word_embeddings"] = "output.weight" not in file.tensors
    values["dtype"] = stored_dtype(file)
    if not of_its_class:
        from transformers.configuration_utils import PreTrainedConfig

        return PreTrainedConfig(**values)
    import transformers

    return transformers.AutoConfig.for_model(of.model_type, **values)


def stored_dtype(file: GgufFile) -> torch.dtype:
    """Return the type that holds a file's weights by default: float32 if most are wider than bfloat16."""
    matrices = [tensor for tensor in file.tensors.values() if len(tensor.shape) > 1]
    wide = sum(tensor.size for tensor in matrices if tensor.type in _WIDE)
    return torch.float32 if 2 * wide > sum(tensor.size for tensor in matrices) else torch.bfloat16


def _biases(file: GgufFile, of: Architecture) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for flag, tensors in of.biases.items():
        ends = tuple(f".{name}.bias" for name in tensors)
        found[flag] = any(name.endswith(ends) for name in file.tensors)
    return found


class _Reader:
    """Reads the keys of an architecture."""

    def __init__(self, file: GgufFile) -> None:
        self.file, self.prefix = file, f"{file.architecture}."
        self.head = self.hidden = self.layers = self.vocabulary = 0

    def use_neutral(self) -> None:
        """Let keys count as used whose values change nothing, such as a width of 0 of experts that do not exist."""
        for key, values in _NEUTRAL.items():
            own = key == "expert_gating_func" and self.file.architecture == "gpt-oss"
            if not own and self.file.metadata.get(self.prefix + key) in values:
                self.file.use({self.prefix + key})
        for key, same in (("attention.head_dim", self.head), ("max_position_embeddings", self.count("context_length"))):
            if self.file.metadata.get(self.prefix + key) == same:  # Ollama's names of what other keys state, too
                self.file.use({self.prefix + key})
        if self.file.architecture == "granite":
            self.use_of_hybrids()

    def use_of_hybrids(self) -> None:
        """Let keys of Granite 4's hybrids count as used in the file of one whose layers are all dense."""
        if not any(".ssm_" in name for name in self.file.tensors):
            self.file.use({key for key in self.file.metadata if key.startswith(f"{self.prefix}ssm.")})
        inner, key = self.file.tensors.get("blk.0.ffn_gate.weight"), "expert_shared_feed_forward_length"
        if inner is not None and self.file.metadata.get(self.prefix + key) == inner.shape[0]:
            self.file.use({self.prefix + key})

    def bad(self, key: str, expected: str, got: Any) -> ModelFileError:
        return ModelFileError(f"{self.file.path}: {self.prefix}{key}: expected {expected}, got {shown(got)}")

    def count(self, key: str, default: int | None = None, least: int = 1) -> int:
        """Return a size, which some files state for each layer."""
        name = self.prefix + key
        listed = self.file.metadata.get(name)
        if isinstance(listed, list):
            self.file.use({name})
            if len(listed) != self.layers:
                raise self.bad(key, f"{self.layers} numbers", listed)
            if len(set(listed)) > 1:
                raise UnsupportedModelError(f"{self.file.path}: {name} differs between layers")
            value = listed[0]
        else:
            value = self.file.get(name, int, default)
        if type(value) is not int or not least <= value <= _MOST:
            raise self.bad(key, f"an integer from {least} to {_MOST}", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.file.get(self.prefix + key, float, default)
        if not value > 0:
            raise self.bad(key, "a positive number", value)
        return value

    def shape(self, of: Architecture) -> dict[str, Any]:
        self.layers = self.count("block_count")
        self.hidden = self.count("embedding_length")
        rows = self.file.tensors.get("token_embd.weight")
        if rows is None:
            raise ModelFileError(f"{self.file.path}: lacks the tensor token_embd.weight")
        if len(rows.shape) != 2 or rows.shape[1] != self.hidden:
            raise self.bad("embedding_length", f"the width of token_embd.weight, {list(rows.shape)}", self.hidden)
        self.vocabulary = rows.shape[0]
        if (stated := self.count("vocab_size", self.vocabulary)) != self.vocabulary:
            raise self.bad("vocab_size", f"the rows of token_embd.weight, {self.vocabulary}", stated)
        self.check_layers()
        experts = self.count("expert_count", 0, 0)
        width = self.count("feed_forward_length", 0, 0) if experts else self.count("feed_forward_length")
        found = {
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "intermediate_size": width,
            "max_position_embeddings": self.count("context_length"),
        }
        key = "attention.layer_norm_epsilon" if of.epsilon == "layer_norm_eps" else "attention.layer_norm_rms_epsilon"
        return found | {of.epsilon: self.number(key)} | self.experts(of, experts, width)

    def check_layers(self) -> None:
        """Raise ModelFileError unless the file has tensors of exactly the layers that it counts."""
        parts = (name.split(".", 2) for name in self.file.tensors)
        held = {int(part[1]) for part in parts if part[0] == "blk" and len(part) == 3 and part[1].isdecimal()}
        if missing := self.layers - len(held & set(range(min(self.layers, len(self.file.tensors) + 1)))):
            raise self.bad("block_count", f"the layers of the file, which lacks {missing} of them", self.layers)
        if more := len(held) - self.layers:
            raise self.bad("block_count", f"the layers of the file, which holds {more} more", self.layers)

    def experts(self, of: Architecture, count: int, inner: int) -> dict[str, Any]:
        if bool(count) != (of.model_type in _ROUTED):
            raise UnsupportedModelError(
                f"{self.file.path}: {self.prefix}expert_count is {count}, which the architecture does not have"
            )
        used = self.count("expert_used_count", 0, 0)
        if not 0 < used <= count and (count or used):
            raise self.bad("expert_used_count", f"an integer from 1 to {count}", used)
        if not count:
            return {}
        width = self.count("expert_feed_forward_length", inner or None)
        found: dict[str, Any] = {"num_experts_per_tok": used, "num_local_experts": count, "intermediate_size": width}
        if of.model_type == "qwen3_moe":
            found = {"num_experts_per_tok": used, "num_experts": count, "moe_intermediate_size": width}
            norms = self.file.get(self.prefix + "norm_top_k_prob", bool, True)  # Ollama's name of the other
            found |= {"norm_topk_prob": self.file.get(self.prefix + "expert_weights_norm", bool, norms)}
            found |= {"mlp_only_layers": [], "decoder_sparse_step": 1}
        return found

    def attention(self, of: Architecture) -> dict[str, Any]:
        heads = self.count("attention.head_count")
        groups = self.count("attention.head_count_kv", heads)
        if heads % groups:
            raise self.bad("attention.head_count_kv", f"a divisor of the {heads} heads", groups)
        if not self.file.has("attention.key_length") and self.hidden % heads:
            raise self.bad("attention.head_count", f"a divisor of the width {self.hidden}", heads)
        self.head = self.count("attention.key_length", self.hidden // heads)
        if (values := self.count("attention.value_length", self.head)) != self.head:
            raise UnsupportedModelError(
                f"{self.file.path}: {self.prefix}attention.value_length {values} is not the key_length {self.head}"
            )
        for name, rows in (("attn_q", heads), ("attn_k", groups), ("attn_v", groups), ("attn_qkv", heads + 2 * groups)):
            tensor = self.file.tensors.get(f"blk.0.{name}.weight")
            if tensor is not None and tensor.shape != (rows * self.head, self.hidden):
                expected = f"as blk.0.{name}.weight, {list(tensor.shape)}, has them"
                raise self.bad("attention", f"heads {expected}", f"{rows} of {self.head}, width {self.hidden}")
        rope = rope_parameters(self.file, of, self.head, self.count("context_length"))
        if self.file.architecture == "gemma3":
            other = "rope.local.freq_base"  # Ollama's name
            local = self.number("rope.freq_base_swa", self.number(other, _LOCAL_BASE))
            if self.file.has(other) and (stated := self.number(other)) != local:
                raise self.bad(other, f"rope.freq_base_swa, {local}", stated)
            rope = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": local}}
        return {
            "num_attention_heads": heads,
            "num_key_value_heads": groups,
            "head_dim": self.head,
            "rope_parameters": rope,
        }

    def particulars(self, of: Architecture) -> dict[str, Any]:
        """Return fields that only some architectures have."""
        name = self.file.architecture
        found: dict[str, Any] = {
            theirs: self.number(ours) for ours, theirs in of.optional.items() if self.file.has(ours)
        }
        if name == "granite":
            found.setdefault("attention_multiplier", self.head**-0.5)
        elif name == "phi3":
            found["sliding_window"] = self.count("attention.sliding_window", 0, 0) or None
            found["original_max_position_embeddings"] = self.count(
                "rope.scaling.original_context_length", self.count("context_length")
            )
        elif name == "gpt-oss":
            found |= self.window(2, "attention.sliding_window", None)
        elif name == "command-r":
            found.setdefault("logit_scale", 1.0)
            found["use_qk_norm"] = "blk.0.attn_q_norm.weight" in self.file.tensors
        elif name.startswith("gemma"):
            found |= self.gemma()
        if name not in ("granite", "gemma2", "gemma3") and self.file.has("attention.scale"):
            self.plain_scale()
        if not self.file.get(self.prefix + "attention.causal", bool, True):
            raise UnsupportedModelError(f"{self.file.path}: {self.prefix}attention.causal is false")
        return found

    def plain_scale(self) -> None:
        scale = self.number("attention.scale")
        if abs(scale * self.head**0.5 - 1) > 1e-6:
            raise UnsupportedModelError(
                f"{self.file.path}: {self.prefix}attention.scale is {scale}, which transformers' modules of this "
                "architecture do not apply"
            )

    def window(self, every: int, key: str, default: int | None) -> dict[str, Any]:
        """Return a window of all layers but each `every`-th."""
        window = self.count(key, default)
        self.pattern(every)
        kinds = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(self.layers)]
        return {"sliding_window": window, "layer_types": kinds}

    def pattern(self, every: int) -> None:
        key = f"{self.prefix}attention.sliding_window_pattern"
        stated = self.file.metadata.get(key, every)
        self.file.use({key})
        kinds = [bool((i + 1) % every) for i in range(self.layers)]
        if stated not in (every, kinds) or isinstance(stated, bool):
            raise UnsupportedModelError(f"{self.file.path}: {key}: expected {every}, got {shown(stated)}")

    def gemma(self) -> dict[str, Any]:
        second = self.file.architecture == "gemma2"
        found: dict[str, Any] = {}
        for ours, theirs, default in (
            ("attn_logit_softcapping", "attn_logit_softcapping", 50.0),
            ("final_logit_softcapping", "final_logit_softcapping", 30.0),
        ):
            stated = second or self.file.has(ours)
            found[theirs] = self.number(ours, default) if stated else None
        heads = self.count("attention.head_count")
        width = self.hidden // heads if self.layers == _GEMMA_27B[self.file.architecture] else self.head
        if self.file.has("attention.scale"):
            inverse = self.number("attention.scale") ** -2
            width = round(inverse)
            if abs(inverse / width - 1) > 1e-5:
                raise UnsupportedModelError(
                    f"{self.file.path}: {self.prefix}attention.scale: transformers needs 1 / sqrt of an integer"
                )
        found["query_pre_attn_scalar"] = width
        if second:
            return found | self.window(2, "attention.sliding_window", 4096)
        stated = self.file.has("attention.sliding_window")
        found |= self.window(6, "attention.sliding_window", None) if stated else self.no_window()
        return found

    def no_window(self) -> dict[str, Any]:
        return {"layer_types": ["full_attention"] * self.layers}

    def special_tokens(self) -> dict[str, Any]:
        """Return ids of special tokens, of all that end a text or a turn among them."""
        source, metadata = str(self.file.path), self.file.metadata
        check_keys(metadata, source)
        self.file.use({key for key in metadata if key.startswith("tokenizer.")})
        ends = ends_of(metadata, source)
        return {
            "bos_token_id": self.token("bos_token_id"),
            "eos_token_id": ends if len(ends) > 1 else next(iter(ends), None),
            "pad_token_id": self.token("padding_token_id"),
        }

    def token(self, name: str) -> int | None:
        """Return the id of a token of the vocabulary, or None."""
        value = self.file.get(f"tokenizer.ggml.{name}", int, _NO_TOKEN)
        return value if 0 <= value < self.vocabulary else None
