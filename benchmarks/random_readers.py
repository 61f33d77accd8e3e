"""Llama-shaped readers of real sizes with random weights: a bfloat16 checkpoint, and GGUF files of the same weights.

Files are written tensor by tensor, so that making one takes the memory of its largest tensor. Values depend only on
a tensor's name and shape. The tokenizer is that of a GGUF file.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import k_quants
import numpy as np
import torch

from fastreader.data.files import building
from fastreader.models.gguf.file import GgufFile
from fastreader.models.gguf.tokenizer import tokenizer_of

CHECKPOINT, TOKENIZER = "checkpoint", "tokenizer"
CONTEXT, BASE, EPSILON = 8192, 500_000.0, 1e-5
DEVIATION = 0.02  # of the weights, as transformers draws them
BYTES = {"F32": 4.0, "BF16": 2.0, "Q4_0": 18 / 32, "Q4_K": 144 / 256, "Q6_K": 210 / 256}  # of a value
FILES = {"Q4_0": "Q4_0", "Q4_K_M": "Q4_K"}  # the type of most matrices, by kind of file
EMBEDDING, LAST_NORM = "model.embed_tokens.weight", "model.norm.weight"
NAMES = {
    EMBEDDING: "token_embd",
    LAST_NORM: "output_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


@dataclass(frozen=True)
class Shape:
    """Width, layers, heads of queries and of keys, their size, and width of the feed-forward."""

    hidden: int
    layers: int
    heads: int
    key_heads: int
    head: int
    inner: int

    def modules(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a layer's weights."""
        queries, keys = self.heads * self.head, self.key_heads * self.head
        return {
            "self_attn.q_proj": (queries, self.hidden),
            "self_attn.k_proj": (keys, self.hidden),
            "self_attn.v_proj": (keys, self.hidden),
            "self_attn.o_proj": (self.hidden, queries),
            "mlp.gate_proj": (self.inner, self.hidden),
            "mlp.up_proj": (self.inner, self.hidden),
            "mlp.down_proj": (self.hidden, self.inner),
            "input_layernorm": (self.hidden,),
            "post_attention_layernorm": (self.hidden,),
        }

    def tensors(self, vocabulary: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all weights by transformers' names. The LM head is the embedding."""
        layers = {
            f"model.layers.{i}.{name}.weight": shape
            for i in range(self.layers)
            for name, shape in self.modules().items()
        }
        return {EMBEDDING: (vocabulary, self.hidden), **layers, LAST_NORM: (self.hidden,)}


SHAPES = {  # Llama 3.2 1B, Qwen3 4B and Llama 3.1 8B, with the vocabulary of the tokenizer
    "1b": Shape(2048, 16, 32, 8, 64, 8192),
    "4b": Shape(2560, 36, 32, 8, 128, 9728),
    "8b": Shape(4096, 32, 32, 8, 128, 14336),
}


class RandomReader:
    """The files of a shape in a folder, made when they are asked for.

    Args:
        shape: of the model.
        donor: a GGUF file with the tokenizer.
        folder: of the files.
    """

    def __init__(self, shape: Shape, donor: Path, folder: Path) -> None:
        self.shape, self.donor, self.folder = shape, donor, folder
        self.metadata = GgufFile(donor).metadata
        self.vocabulary = len(self.metadata["tokenizer.ggml.tokens"])
        self.tensors = shape.tensors(self.vocabulary)
        self.kinds: tuple[str, ...] = (CHECKPOINT, *FILES)

    def path(self, kind: str) -> Path:
        """Return the place of the checkpoint, the tokenizer or a kind of GGUF file."""
        return self.folder / (kind if kind in (CHECKPOINT, TOKENIZER) else f"{kind}/model.gguf")

    def bytes(self, kind: str) -> int:
        """Return the bytes of the weights of the checkpoint or a kind of GGUF file."""
        types = {name: "BF16" if kind == CHECKPOINT else self.type_of(name, kind) for name in self.tensors}
        return round(sum(BYTES[types[name]] * math.prod(shape) for name, shape in self.tensors.items()))

    def made(self, kind: str) -> Path:
        """Return the path of what `path` names, which is written once, whole or not at all."""
        path = self.path(kind)
        with building(self.folder / kind) as making:
            if making is not None and kind == TOKENIZER:
                tokenizer_of(self.metadata, str(self.donor)).save_pretrained(making)
            elif making is not None and kind == CHECKPOINT:
                self._write_checkpoint(making)
            elif making is not None:
                self._write_gguf(making / path.name, kind)
        return path

    def type_of(self, name: str, kind: str) -> str:
        """Return the type of a tensor in a kind of GGUF file, by llama.cpp's rule for models with a tied embedding."""
        if "norm" in name:
            return "F32"
        if name == EMBEDDING:
            return "Q6_K"
        _, _, layer, rest = name.split(".", 3)
        part, eighth = int(layer), self.shape.layers // 8
        more = part < eighth or part >= 7 * self.shape.layers // 8 or (part - eighth) % 3 == 2
        finer = kind == "Q4_K_M" and more and rest.startswith(("self_attn.v_proj", "mlp.down_proj"))
        return "Q6_K" if finer else FILES[kind]

    def values(self, name: str) -> torch.Tensor:
        """Return the values of a weight in bfloat16."""
        shape = self.tensors[name]
        if "norm" in name:
            return torch.ones(shape, dtype=torch.bfloat16)
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        return torch.empty(shape).normal_(0, DEVIATION, generator=generator).bfloat16()

    def _write_checkpoint(self, folder: Path) -> None:
        """Write the checkpoint, a file a layer."""
        from safetensors.torch import save_file

        tokenizer_of(self.metadata, str(self.donor)).save_pretrained(folder)
        self._config().save_pretrained(folder)
        files: dict[str, list[str]] = {}
        for name in self.tensors:
            part = int(name.split(".")[2]) + 1 if name.startswith("model.layers.") else 0
            files.setdefault(f"model-{part:05}-of-{self.shape.layers + 1:05}.safetensors", []).append(name)
        for file, names in files.items():
            save_file({name: self.values(name) for name in names}, folder / file, {"format": "pt"})
        index = {
            "metadata": {"total_size": self.bytes(CHECKPOINT)},
            "weight_map": {name: file for file, names in files.items() for name in names},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    def _config(self) -> Any:
        from transformers import LlamaConfig

        return LlamaConfig(
            architectures=["LlamaForCausalLM"],
            dtype=torch.bfloat16,
            vocab_size=self.vocabulary,
            hidden_size=self.shape.hidden,
            num_hidden_layers=self.shape.layers,
            num_attention_heads=self.shape.heads,
            num_key_value_heads=self.shape.key_heads,
            head_dim=self.shape.head,
            intermediate_size=self.shape.inner,
            max_position_embeddings=CONTEXT,
            rope_theta=BASE,
            rms_norm_eps=EPSILON,
            tie_word_embeddings=True,
            bos_token_id=self.metadata.get("tokenizer.ggml.bos_token_id"),
            eos_token_id=self.metadata.get("tokenizer.ggml.eos_token_id"),
            pad_token_id=self.metadata.get("tokenizer.ggml.padding_token_id"),
        )

    def _write_gguf(self, path: Path, kind: str) -> None:
        from gguf import GGMLQuantizationType, GGUFWriter

        writer = GGUFWriter(path, "llama")
        self._write_keys(writer)
        types = {name: self.type_of(name, kind) for name in self.tensors}
        for name, shape in self.tensors.items():
            row = round(BYTES[types[name]] * shape[-1])
            as_stored, dtype = ((*shape[:-1], row), np.uint8) if len(shape) > 1 else (shape, np.float32)
            size = math.prod(as_stored) * np.dtype(dtype).itemsize
            raw = GGMLQuantizationType[types[name]]
            writer.add_tensor_info(_name(name), as_stored, np.dtype(dtype), size, raw_dtype=raw)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name in self.tensors:
            writer.write_tensor_data(_coded(self._in_pairs(name), types[name]))
        writer.close()

    def _write_keys(self, writer: Any) -> None:
        shape = self.shape
        writer.add_name("random weights")
        writer.add_block_count(shape.layers)
        writer.add_context_length(CONTEXT)
        writer.add_embedding_length(shape.hidden)
        writer.add_feed_forward_length(shape.inner)
        writer.add_head_count(shape.heads)
        writer.add_head_count_kv(shape.key_heads)
        writer.add_key_length(shape.head)
        writer.add_value_length(shape.head)
        writer.add_rope_dimension_count(shape.head)
        writer.add_rope_freq_base(BASE)
        writer.add_layer_norm_rms_eps(EPSILON)
        writer.add_vocab_size(self.vocabulary)
        write_tokenizer(writer, self.donor)

    def _in_pairs(self, name: str) -> torch.Tensor:
        """Return a weight with its rows of queries or keys in the order of llama.cpp's rotary embedding of pairs."""
        values = self.values(name)
        heads = {"self_attn.q_proj": self.shape.heads, "self_attn.k_proj": self.shape.key_heads}
        count = heads.get(_module(name))
        if count is None:
            return values
        return values.view(count, 2, -1, values.shape[1]).transpose(1, 2).reshape(values.shape)


def write_tokenizer(writer: Any, donor: Path) -> None:
    """Copy the keys of a GGUF file's tokenizer."""
    from gguf import GGUFReader, GGUFValueType

    for name, field in GGUFReader(donor).fields.items():
        if name.startswith("tokenizer."):
            several = field.types[0] == GGUFValueType.ARRAY
            kinds = {"sub_type": field.types[-1]} if several else {}
            writer.add_key_value(name, field.contents(), field.types[0], **kinds)


def _module(name: str) -> str:
    return ".".join(name.split(".")[3:-1])


def _name(name: str) -> str:
    """Return llama.cpp's name of a weight."""
    if name in NAMES:
        return f"{NAMES[name]}.weight"
    return f"blk.{name.split('.')[2]}.{NAMES[_module(name)]}.weight"


def _coded(values: torch.Tensor, kind: str) -> np.ndarray:
    """Return the values in a type of GGUF."""
    from gguf import GGMLQuantizationType, quants

    if kind in ("Q4_K", "Q6_K"):
        return k_quants.quantise(values, kind).numpy()
    if kind == "F32":
        return values.float().numpy()
    parts = [quants.quantize(part.float().numpy(), GGMLQuantizationType[kind]) for part in _parts(values)]
    return np.concatenate(parts)


def _parts(values: torch.Tensor) -> Iterator[torch.Tensor]:
    yield from values.split(max(1, 2**22 // values.shape[-1]))
