"""Random trees and operands of the recurrences.

FASTREADER_TREES is the number of random trees by which a kernel is compared; 500 take minutes.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from fastreader.ops.recurrent import gated_delta_rule, linear_attention, linear_recurrence, selective_scan

TREES = int(os.environ.get("FASTREADER_TREES", "4"))
HEADS = {"gated_delta_rule", "kimi_delta_rule", "linear_attention"}
OPS = {
    "gated_delta_rule": gated_delta_rule,
    "kimi_delta_rule": gated_delta_rule,
    "linear_attention": linear_attention,
    "selective_scan": selective_scan,
    "linear_recurrence": linear_recurrence,
}
STATES = {**dict.fromkeys(HEADS, (4, 8, 6)), "selective_scan": (5, 3), "linear_recurrence": (5,)}


def random_tree(rng: np.random.Generator, size: int, branching: float, outside: int = 0) -> np.ndarray:
    """Return parents of tokens in depth-first order. Roots are -1, or one of `outside` texts before the tree."""
    path: list[int] = []
    parent = []
    for i in range(size):
        if path and rng.random() < branching:
            path = path[: rng.integers(0, len(path) + 1)]
        parent.append(path[-1] if path else -1 - int(rng.integers(0, outside + 1)))
        path.append(i)
    return np.array(parent, dtype=np.int64)


def operands(op: str, size: int, seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Draw the operands of an op. Gates decay by little, so that states reach far."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if op in HEADS:
        query, key, value = draw(size, 2, 8), draw(size, 2, 8), draw(size, 4, 6)
        key = key / key.norm(dim=-1, keepdim=True)
        gate = -0.1 * (draw(size, 4, 8) if op == "kimi_delta_rule" else draw(size, 4)).exp()
        beta = [] if op == "linear_attention" else [draw(size, 4).sigmoid()]
        drawn = [query, key, value, gate, *beta]
    elif op == "selective_scan":
        drawn = [draw(size, 5), 0.2 * draw(size, 5).exp(), -draw(5, 3).exp(), draw(size, 3), draw(size, 3)]
    else:
        drawn = [draw(size, 5), (2 + draw(size, 5)).sigmoid()]
    return [x.to(dtype) for x in drawn]


def initial(op: str, count: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor | None:
    """Draw states of texts before a tree. None for no texts."""
    if count == 0:
        return None
    drawn = torch.randn(count, *STATES[op], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(dtype)


def relative_error(got: Tensor, want: Tensor) -> float:
    """Return the largest difference from a float64 result, relative to its largest value."""
    assert got.shape == want.shape
    return float((got.double() - want).abs().max() / want.abs().max()) if want.numel() else 0.0
