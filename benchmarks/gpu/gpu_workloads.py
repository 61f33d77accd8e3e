"""Prefix trees with the shape of real requests over random tokens, and the shapes of models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastreader.core.tree import PrefixTree


@dataclass(frozen=True)
class Shape:
    """Attention heads, head size, hidden size, width of the feed-forward and vocabulary of a model."""

    heads: int
    key_heads: int
    size: int
    width: int
    inner: int
    vocabulary: int


SHAPES = {
    "smollm2-135m": Shape(9, 3, 64, 576, 1536, 49_152),
    "llama-3.2-1b": Shape(32, 8, 64, 2048, 8192, 128_256),
    "llama-3.1-8b": Shape(32, 8, 128, 4096, 14_336, 128_256),
    "gemma-2-2b": Shape(8, 4, 256, 2304, 9216, 256_000),
}


def _orderings(
    rng: np.random.Generator, passages: int, length: int, candidates: int, orderings: int
) -> list[tuple[list[int], list[int]]]:
    """Return (context, continuation) pairs of one question: header, passages in cyclic order, question, candidates."""

    def text(count: int) -> list[int]:
        return rng.integers(0, 49_152, count).tolist()

    header, question = text(11), text(24)
    bodies = [text(length + int(rng.integers(-length // 8, length // 8 + 1))) for _ in range(passages)]
    answers = [text(int(rng.integers(5, 8))) for _ in range(candidates)]
    pairs = []
    for shift in range(orderings):
        body = [token for i in range(passages) for token in bodies[(i + shift) % passages]]
        pairs += [(header + body + question, answer) for answer in answers]
    return pairs


def w1() -> PrefixTree:
    """Return W1: one question, 10 passages, 10 cyclic orderings, 4 candidates, about 12,700 tokens."""
    return PrefixTree.build(_orderings(np.random.default_rng(1), 10, 121, 4, 10))


def w2() -> PrefixTree:
    """Return W2: one body of 1,000 tokens with 512 continuations of 2 to 12 tokens."""
    rng = np.random.default_rng(2)
    body = rng.integers(0, 49_152, 1000).tolist()
    return PrefixTree.build([(body, rng.integers(0, 49_152, rng.integers(2, 13)).tolist()) for _ in range(512)])


def w3() -> PrefixTree:
    """Return W3: 64 questions with 5 passages, 5 orderings and 2 candidates each, in one pass."""
    rng = np.random.default_rng(3)
    return PrefixTree.build([pair for _ in range(64) for pair in _orderings(rng, 5, 121, 2, 5)])


def w4() -> PrefixTree:
    """Return W4: one question, 20 passages of 400 tokens, 20 cyclic orderings, 2 candidates."""
    return PrefixTree.build(_orderings(np.random.default_rng(4), 20, 400, 2, 20))


WORKLOADS = {"W1": w1, "W2": w2, "W3": w3, "W4": w4}
