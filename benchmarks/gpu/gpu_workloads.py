"""Prefix trees with the shape of real requests over random tokens, and the shapes of models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastreader.core.tree import PrefixTree


@dataclass(frozen=True)
class Shape:
    """Attention heads, head size, hidden size, width of the feed-forward, vocabulary and layers of a model."""

    heads: int
    key_heads: int
    size: int
    width: int
    inner: int
    vocabulary: int
    layers: int
    kind: str = "llama"

    def config(self) -> Any:
        """Return a config of transformers with this shape."""
        from transformers import AutoConfig

        return AutoConfig.for_model(
            self.kind,
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_heads,
            head_dim=self.size,
            max_position_embeddings=2**17,
            tie_word_embeddings=self.width < 4096,
        )


SHAPES = {
    "smollm2-135m": Shape(9, 3, 64, 576, 1536, 49_152, 30),
    "llama-3.2-1b": Shape(32, 8, 64, 2048, 8192, 128_256, 16),
    "llama-3.1-8b": Shape(32, 8, 128, 4096, 14_336, 128_256, 32),
    "qwen3-4b": Shape(32, 8, 128, 2560, 9728, 151_936, 36, "qwen3"),
    "gemma-2-2b": Shape(8, 4, 256, 2304, 9216, 256_000, 26, "gemma2"),
}
Sequences = list[tuple[list[int], list[int]]]


def _orderings(rng: np.random.Generator, passages: int, length: int, candidates: int, orderings: int) -> Sequences:
    """Return (context, continuation) pairs of one question: header, passages in cyclic order, question, candidates."""

    def text(count: int) -> list[int]:
        return rng.integers(0, 49_152, count).tolist()

    header, question = text(11), text(24)
    bodies = [text(length + int(rng.integers(-length // 8, length // 8 + 1))) for _ in range(passages)]
    answers = [text(int(rng.integers(5, 8))) for _ in range(candidates)]
    pairs = []
    for shift in range(orderings):
        body = [token for i in range(passages) for token in bodies[(i + shift) % passages]]
        context = header + body + question
        pairs += [(context, answer) for answer in answers]
    return pairs


def _w1() -> Sequences:
    """Return W1: one question, 10 passages, 10 cyclic orderings, 4 candidates, about 12,700 tokens."""
    return _orderings(np.random.default_rng(1), 10, 121, 4, 10)


def _w2() -> Sequences:
    """Return W2: one body of 1,000 tokens with 512 continuations of 2 to 12 tokens."""
    rng = np.random.default_rng(2)
    body = rng.integers(0, 49_152, 1000).tolist()
    return [(body, rng.integers(0, 49_152, rng.integers(2, 13)).tolist()) for _ in range(512)]


def _w3() -> Sequences:
    """Return W3: 64 questions with 5 passages, 5 orderings and 2 candidates each, in one pass."""
    rng = np.random.default_rng(3)
    return [pair for _ in range(64) for pair in _orderings(rng, 5, 121, 2, 5)]


def _w4() -> Sequences:
    """Return W4: one question, 20 passages of 400 tokens, 20 cyclic orderings, 2 candidates."""
    return _orderings(np.random.default_rng(4), 20, 400, 2, 20)


SEQUENCES = {"W1": _w1, "W2": _w2, "W3": _w3, "W4": _w4}


def _packed(sequences: Callable[[], Sequences]) -> Callable[[], PrefixTree]:
    return lambda: PrefixTree.build(sequences())


WORKLOADS = {name: _packed(sequences) for name, sequences in SEQUENCES.items()}
