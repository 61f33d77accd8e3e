"""Attention with sinks, chunks, slopes and wide heads: random cases, and the definition, dense and in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from cpu_cases import forest, inputs
from torch import Tensor

VARIANTS = ("sinks", "chunk", "slopes", "wide")
WIDE = ((512, 512), (192, 128), (576, 512), (288, 264), (64, 576))  # head sizes of queries and keys, and of values


def definition(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    subtree_end: Tensor,
    query_node: Tensor | None = None,
    *,
    scale: float,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    window: int | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (out, lse) in float64, one query head of one query at a time, with a sink as a key of value 0."""
    heads, key_heads = query.shape[1], key.shape[1]
    out = torch.zeros(len(query), heads, value.shape[2], dtype=torch.float64)
    lse = torch.full((len(query), heads), float("-inf"), dtype=torch.float64)
    for i in range(len(query)):
        node = i if query_node is None else int(query_node[i])
        seen = [j for j in range(len(key)) if j <= node < int(subtree_end[j])]
        if query_positions is not None and key_positions is not None:
            at = int(query_positions[i])
            if window is not None:
                seen = [j for j in seen if at - int(key_positions[j]) < window]
            if chunk is not None:
                seen = [j for j in seen if int(key_positions[j]) // chunk == at // chunk]
        for h in range(heads):
            k, v = (t[seen, h * key_heads // heads].double() for t in (key, value))
            scores = k @ query[i, h].double() * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            if slopes is not None:
                assert query_positions is not None and key_positions is not None
                scores = scores + slopes[h].double() * (key_positions[seen] - query_positions[i])
            if sinks is not None and not bool(sinks[h].isneginf()):
                scores, v = torch.cat([scores, sinks[h, None].double()]), torch.cat([v, v.new_zeros(1, v.shape[1])])
            if len(scores):
                out[i, h], lse[i, h] = scores.softmax(0) @ v, scores.logsumexp(0)
    return out, lse


def random_variant(
    seed: int, variant: str, longest: int = 200
) -> tuple[list[Tensor], Tensor, Tensor | None, dict[str, Any]]:
    """Draw a forest and a call with one of `VARIANTS`: (inputs, subtree_end, query_node, options)."""
    rng = np.random.default_rng([seed, VARIANTS.index(variant)])
    length = int(rng.choice([5, 40, longest], p=[0.45, 0.5, 0.05]))
    tree = forest(rng, int(rng.integers(1, 12)), length, int(rng.integers(2, 4)))
    subtree_end, positions = torch.from_numpy(tree.subtree_end), torch.from_numpy(tree.positions)
    count = len(tree)
    query_node = None
    if rng.random() < 0.3:
        # Enough queries that the eager computation, whose largest error bounds the kernels', is not exact by luck.
        query_node = torch.from_numpy(rng.integers(0, count, int(rng.integers(16, 50))))
    key_heads = int(rng.integers(1, 3))
    heads = key_heads * int(rng.integers(1, 5))
    size, value_size = (int(rng.choice([8, 32, 64, 80])) for _ in range(2))
    if variant == "wide":
        size, value_size = WIDE[int(rng.integers(len(WIDE)))]
    queries = count if query_node is None else len(query_node)
    drawn = inputs(int(rng.integers(2**31)), queries, count, heads, key_heads, size, value_size)
    query_positions = positions if query_node is None else positions[query_node]
    options: dict[str, Any] = {"query_positions": query_positions, "key_positions": positions}
    if rng.random() < 0.3:
        options["softcap"] = float(rng.choice([1.0, 30.0]))
    if rng.random() < 0.2:
        options["scale"] = float(rng.choice([-0.2, 0.0, 2.0]))
    if variant == "chunk":
        options["chunk"] = int(rng.integers(1, 60))
    elif rng.random() < 0.4:
        options["window"] = int(rng.integers(1, 60))
    if variant == "slopes":  # a power of two for each head, as ALiBi has them
        options["slopes"] = torch.from_numpy(2.0 ** -rng.uniform(0, 8, heads)).float()
    if variant == "sinks" or rng.random() < 0.3:
        options["sinks"] = torch.from_numpy(rng.normal(0, 4, heads)).float()
        options["sinks"][rng.random(heads) < 0.1] = float("-inf")
    return drawn, subtree_end, query_node, options
