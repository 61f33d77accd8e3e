"""Workloads of the op benchmarks: trees, random tensors, and their seed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastreader.core.tree import PrefixTree
from fastreader.ops.tree_attention import AttentionPlan

SEED = 0
HEADS, KEY_HEADS, SIZE = 9, 3, 64  # SmolLM2-135M's attention
ROWS, WIDTH, VOCABULARY = 12_701, 576, 49_152  # its LM head at every position of W1
LAYERS = [(576, 576), (576, 192), (576, 1536), (1536, 576)]  # its linear layers, inputs and outputs


@dataclass(frozen=True)
class AttentionCase:
    """One layer of attention over a packed tree."""

    name: str
    tree: PrefixTree
    query: Tensor
    key: Tensor
    value: Tensor
    subtree_end: Tensor
    plan: AttentionPlan
    flops: float  # useful multiply-adds, two operations each


def w1_tree(path: Path | None) -> PrefixTree:
    """Return W1 from its token file, or random tokens of its shape: 10 orderings x 4 candidates under one header."""
    if path is not None:
        data = json.loads(path.read_text())
        header, bodies, continuations = data["header"], data["bodies"], data["continuations"]
    else:
        rng = np.random.default_rng(SEED)
        header = rng.integers(0, VOCABULARY, 11).tolist()
        bodies = rng.integers(0, VOCABULARY, (10, 1245)).tolist()
        continuations = [rng.integers(0, VOCABULARY, n).tolist() for n in (6, 5, 5, 7)]
    return PrefixTree.build([(header + body, tail) for body in bodies for tail in continuations])


def w2_tree() -> PrefixTree:
    """Return W2: one body of 1,000 tokens with 512 continuations of 2 to 12 tokens."""
    rng = np.random.default_rng(SEED)
    body = rng.integers(0, VOCABULARY, 1000).tolist()
    tails = [rng.integers(0, VOCABULARY, int(rng.integers(2, 13))).tolist() for _ in range(512)]
    return PrefixTree.build([(body, tail) for tail in tails])


def attention_case(name: str, dtype: torch.dtype, w1_path: Path | None = None) -> AttentionCase:
    tree = w1_tree(w1_path) if name == "w1" else w2_tree()
    generator = torch.Generator().manual_seed(SEED)
    count = len(tree)
    query, key, value = (
        torch.randn(count, heads, SIZE, generator=generator).to(dtype) for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    )
    plan = AttentionPlan(tree.subtree_end)
    useful = int((tree.positions + 1).sum())  # a query sees its path
    return AttentionCase(
        name, tree, query, key, value, torch.from_numpy(tree.subtree_end), plan, 4.0 * useful * HEADS * SIZE
    )


def head_case(dtype: torch.dtype, rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return hidden states, LM head, targets, and the operations of the product."""
    generator = torch.Generator().manual_seed(SEED)
    hidden = torch.randn(rows, WIDTH, generator=generator).to(dtype)
    weight = (torch.randn(VOCABULARY, WIDTH, generator=generator) * 0.05).to(dtype)
    target = torch.randint(0, VOCABULARY, (rows,), generator=generator)
    return hidden, weight, target, 2.0 * rows * WIDTH * VOCABULARY


def linear_case(rows: int, shape: tuple[int, int]) -> tuple[Tensor, Tensor, float]:
    """Return inputs [rows, in] in float32, a weight [out, in] in bfloat16, and the operations of the product."""
    size, width = shape
    generator = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(rows, size, generator=generator)
    weight = (torch.randn(width, size, generator=generator) * 0.05).bfloat16()
    return inputs, weight, 2.0 * rows * size * width
