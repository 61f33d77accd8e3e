"""GGUF files of mixtures of experts of real sizes, whose blocks are random: not the values, which would take an hour.

A file is written tensor by tensor. Its tokenizer is that of another GGUF file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from random_readers import BASE, CONTEXT, DEVIATION, EPSILON, RandomReader, write_tokenizer

BLOCKS = {"Q8_0": (32, 34), "Q4_K": (256, 144), "Q6_K": (256, 210), "MXFP4": (32, 17)}  # values and bytes
# Where the scales of a block are in its bytes, and what they are of the values' deviation.
SCALES = {"Q8_0": {0: 1 / 74}, "Q4_K": {0: 1 / 150, 2: 7.5 / 150}, "Q6_K": {208: 1 / 1150}, "MXFP4": {}}
_AT_ONCE = 2**17  # blocks


@dataclass(frozen=True)
class Mixture:
    """Width, layers, heads of queries and of keys, their size, width of an expert, and experts: all and chosen."""

    architecture: str
    hidden: int
    layers: int
    heads: int
    key_heads: int
    head: int
    inner: int
    experts: int
    chosen: int
    kind: str  # of the file

    def layer(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a layer's tensors by llama.cpp's names."""
        queries, keys = self.heads * self.head, self.key_heads * self.head
        found: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (self.hidden,),
            "attn_q.weight": (queries, self.hidden),
            "attn_k.weight": (keys, self.hidden),
            "attn_v.weight": (keys, self.hidden),
            "attn_output.weight": (self.hidden, queries),
            "ffn_gate_inp.weight": (self.experts, self.hidden),
            "ffn_gate_exps.weight": (self.experts, self.inner, self.hidden),
            "ffn_up_exps.weight": (self.experts, self.inner, self.hidden),
            "ffn_down_exps.weight": (self.experts, self.hidden, self.inner),
        }
        if self.architecture == "qwen3moe":
            names = {"ffn_norm": self.hidden, "attn_q_norm": self.head, "attn_k_norm": self.head}
            return {**found, **{f"{name}.weight": (size,) for name, size in names.items()}}
        biases = {f"{name.removesuffix('.weight')}.bias": shape for name, shape in found.items() if len(shape) > 1}
        return {
            **found,
            "post_attention_norm.weight": (self.hidden,),
            "attn_sinks.weight": (self.heads,),
            **{name: shape[:-1] for name, shape in biases.items()},
        }

    def tensors(self, vocabulary: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all tensors by llama.cpp's names."""
        rows = {"token_embd.weight": (vocabulary, self.hidden), "output.weight": (vocabulary, self.hidden)}
        layers = {f"blk.{i}.{name}": shape for i in range(self.layers) for name, shape in self.layer().items()}
        return {**rows, "output_norm.weight": (self.hidden,), **layers}

    def keys(self) -> dict[str, int | float | str]:
        """Return the architecture's own keys of a file."""
        scaling: dict[str, int | float | str] = {}
        if self.architecture == "gpt-oss":
            yarn = {"type": "yarn", "factor": 32.0, "original_context_length": 4096}
            scaling = {"attention.sliding_window": 128, **{f"rope.scaling.{key}": value for key, value in yarn.items()}}
        return {
            "block_count": self.layers,
            "context_length": CONTEXT,
            "embedding_length": self.hidden,
            "feed_forward_length": self.inner,
            "expert_feed_forward_length": self.inner,
            "expert_count": self.experts,
            "expert_used_count": self.chosen,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.key_heads,
            "attention.key_length": self.head,
            "attention.value_length": self.head,
            "attention.layer_norm_rms_epsilon": EPSILON,
            "rope.freq_base": BASE,
            **scaling,
        }


MIXTURES = {  # half of Qwen3 30B A3B's layers and experts, and GPT-OSS 20B, with the vocabulary of the tokenizer
    "8b-moe": Mixture("qwen3moe", 2048, 24, 32, 4, 128, 768, 64, 8, "Q4_K_M"),
    "20b-moe": Mixture("gpt-oss", 2880, 24, 64, 8, 64, 2880, 32, 4, "MXFP4"),
}


class RandomMixture(RandomReader):
    """The file of a mixture in a folder, made by `made`."""

    shape: Mixture  # type: ignore[assignment]

    def __init__(self, shape: Mixture, donor: Path, folder: Path) -> None:
        super().__init__(shape, donor, folder)  # type: ignore[arg-type]
        self.kinds = (shape.kind,)

    def bytes(self, kind: str) -> int:
        """Return the bytes of the tensors of the file."""
        return sum(self._bytes(name) for name in self.tensors)

    def type_of(self, name: str, kind: str) -> str:
        """Return the type of a tensor: about as llama.cpp's Q4_K_M and the published file of GPT-OSS have them."""
        if len(self.tensors[name]) == 1 or name.endswith(".bias") or "ffn_gate_inp" in name:
            return "F32"
        if kind == "MXFP4":
            return "MXFP4" if "_exps" in name else "Q8_0"
        finer = "blk" not in name or ("ffn_down_exps" in name and int(name.split(".")[1]) % 2 == 0)
        return "Q6_K" if finer else "Q4_K"

    def _bytes(self, name: str) -> int:
        size, kind = math.prod(self.tensors[name]), self.type_of(name, self.shape.kind)
        values, taken = BLOCKS.get(kind, (1, 4))
        return size // values * taken

    def _write_gguf(self, path: Path, kind: str) -> None:
        from gguf import GGMLQuantizationType, GGUFWriter

        architecture = self.shape.architecture
        writer = GGUFWriter(path, architecture)
        writer.add_name("random weights")
        for key, value in self.shape.keys().items():
            add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
            add(f"{architecture}.{key}", value)  # type: ignore[operator]
        write_tokenizer(writer, self.donor)
        for name, shape in self.tensors.items():
            of = self.type_of(name, kind)
            values, taken = BLOCKS.get(of, (1, 1))
            dtype = np.dtype(np.uint8 if of in BLOCKS else np.float32)
            stored = (*shape[:-1], shape[-1] // values * taken)
            writer.add_tensor_info(name, stored, dtype, self._bytes(name), raw_dtype=GGMLQuantizationType[of])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for index, name in enumerate(self.tensors):
            writer.write_tensor_data(self._random(name, np.random.default_rng(index)))
        writer.close()

    def _random(self, name: str, rng: np.random.Generator) -> npt.NDArray[Any]:
        shape, kind = self.tensors[name], self.type_of(name, self.shape.kind)
        if kind == "F32":
            values = np.ones(shape) if "norm" in name else DEVIATION * rng.standard_normal(shape)
            return values.astype(np.float32)
        values, _ = BLOCKS[kind]
        count = math.prod(shape) // values
        parts = [_blocks(kind, min(_AT_ONCE, count - first), rng) for first in range(0, count, _AT_ONCE)]
        return np.concatenate(parts).reshape(*shape[:-1], -1)


def _blocks(kind: str, count: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Return blocks of values around zero, uint8 [count, bytes of a block]."""
    raw = rng.integers(0, 256, (count, BLOCKS[kind][1]), dtype=np.uint8)
    if kind == "MXFP4":
        raw[:, 0] = rng.integers(119, 122, count)  # the exponent of about half of the deviation
    vary = rng.uniform(0.9, 1.1, count)
    for at, part in SCALES[kind].items():
        raw[:, at : at + 2] = (vary * part * DEVIATION).astype(np.float16)[:, None].view(np.uint8)
    return raw
