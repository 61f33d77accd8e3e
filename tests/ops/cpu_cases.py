"""Inputs, eager low-precision computations and tolerances shared by the tests of the C++ kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastreader.core.tree import PrefixTree
from fastreader.ops import extension, tree_attention
from fastreader.ops.tree_attention.reference import visible

MODES = ("float32", "bfloat16", "bf16x3")
PRECISION = {"float32": None, "bfloat16": None, "bf16x3": "bf16x3"}  # input_precision of each mode

# At the worst element, the error of a kernel is at most this many times that of the eager computation with the same
# operands, plus the rounding of an output near 1 in its own type.
TIMES_EAGER = 2.0
FLOOR = {"float32": 2e-6, "bfloat16": 4e-3, "bf16x3": 2e-5}
# exp2 of the bf16 kernels is a polynomial with a relative error of 2.6e-6, an absolute error of lse.
LSE_FLOOR = {"float32": 3e-6, "bfloat16": 1e-5, "bf16x3": 3e-5}


def available(*, products: bool = False) -> list[str]:
    """Return the instruction sets of this machine, with those that have kernels for integer products alone or not."""
    if extension.why_missing() is not None:
        return []
    return [name for name in extension.instruction_sets() if products or not name.endswith("vnni")]


def forest(rng: np.random.Generator, sequences: int, longest: int, alphabet: int = 2) -> PrefixTree:
    """Build a tree of random sequences over a small alphabet: deep sharing, several roots."""
    return PrefixTree.build(
        [
            (
                rng.integers(0, alphabet, int(rng.integers(1, longest + 1))).tolist(),
                rng.integers(0, alphabet, int(rng.integers(0, 6))).tolist(),
            )
            for _ in range(sequences)
        ]
    )


def quantised(mode: str, *tensors: Tensor) -> list[Tensor]:
    """Round inputs to the type that the kernel takes."""
    return [t.to(torch.bfloat16) if mode == "bfloat16" else t.to(torch.float32) for t in tensors]


def operand(mode: str, tensor: Tensor) -> Tensor:
    """Return in float64 the values that the operands of one product represent."""
    if mode == "float32":
        return tensor.double()
    high = tensor.bfloat16()
    if mode == "bfloat16":
        return high.double()
    return high.double() + (tensor.float() - high.float()).bfloat16().double()


def product(mode: str, equation: str, left: Tensor, right: Tensor) -> Tensor:
    """Multiply rounded operands in float32. Bf16x3 omits low times low, as the op defines it."""
    whole = torch.einsum(equation, operand(mode, left).float(), operand(mode, right).float())
    if mode != "bf16x3":
        return whole
    lows = [(t.float() - t.bfloat16().float()).bfloat16().float() for t in (left, right)]
    return whole - torch.einsum(equation, *lows)


def eager_attention(
    mode: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    subtree_end: Tensor,
    query_node: Tensor,
    *,
    scale: float,
    window: int | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute attention with operands rounded for `mode`, and sums and softmax in float32."""
    groups = query.shape[1] // key.shape[1]
    k, v = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    score = product(mode, "qhd,khd->hqk", query, k) * scale
    if softcap is not None:
        score = softcap * torch.tanh(score / softcap)
    mask = visible(subtree_end, query_node, query_positions, key_positions, window)
    if chunk is not None or slopes is not None:
        assert query_positions is not None and key_positions is not None
        if chunk is not None:
            mask &= query_positions[:, None] // chunk == key_positions[None, :] // chunk
        if slopes is not None:
            score = score + slopes[:, None, None] * (key_positions[None, :] - query_positions[:, None])
    score = score.masked_fill(~mask, float("-inf"))
    lse = torch.logsumexp(score, -1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks[:, None])
    weight = torch.exp(score - lse.masked_fill(lse.isneginf(), 0.0)[..., None])
    out = product(mode, "hqk,khd->qhd", weight, v)
    return (out.bfloat16() if mode == "bfloat16" else out), lse.T


def worst(got: Tensor, wanted: Tensor) -> float:
    """Return the largest absolute difference. Infinite if infinities differ or a value is NaN."""
    got, wanted = got.double(), wanted.double()
    if not torch.equal(got.isneginf(), wanted.isneginf()) or bool(got.isnan().any()):
        return float("inf")
    keep = ~wanted.isneginf()
    return float((got - wanted)[keep].abs().max()) if bool(keep.any()) else 0.0


def inputs(
    seed: int, queries: int, keys: int, heads: int = 2, key_heads: int = 1, size: int = 64, value_size: int = 64
) -> list[Tensor]:
    """Draw normal query, key and value."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (queries, heads, size), (keys, key_heads, size), (keys, key_heads, value_size)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@dataclass(frozen=True)
class Measured:
    """The results of a kernel, and its largest errors against float64 with their bounds."""

    out: Tensor
    lse: Tensor
    error: float
    eager: float  # error of the eager computation with the same operands
    allowed: float
    lse_error: float
    lse_allowed: float


def measure(
    mode: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    subtree_end: Tensor,
    query_node: Tensor | None = None,
    **options: Any,
) -> Measured:
    """Run the C++ kernel, and compare it with float64 and with the eager computation."""
    query, key, value = quantised(mode, query, key, value)
    options.setdefault("scale", query.shape[-1] ** -0.5)
    places = torch.arange(len(subtree_end)) if query_node is None else query_node
    wide = query.double(), key.double(), value.double()
    wanted, wanted_lse = tree_attention(
        *wide, subtree_end, query_node=query_node, impl="reference", return_lse=True, **options
    )
    eager, eager_lse = eager_attention(mode, query, key, value, subtree_end, places, **options)
    out, lse = tree_attention(
        query,
        key,
        value,
        subtree_end,
        query_node=query_node,
        impl="cpu",
        input_precision=PRECISION[mode],
        return_lse=True,
        **options,
    )
    by_eager, by_eager_lse = worst(eager, wanted), worst(eager_lse, wanted_lse)
    return Measured(
        out,
        lse,
        worst(out, wanted),
        by_eager,
        TIMES_EAGER * by_eager + FLOOR[mode],
        worst(lse, wanted_lse),
        TIMES_EAGER * by_eager_lse + LSE_FLOOR[mode],
    )


def random_case(seed: int) -> tuple[list[Tensor], Tensor, Tensor | None, dict[str, Any]]:
    """Draw a forest, heads, sizes, window, soft cap and nodes: (inputs, subtree_end, query_node, options)."""
    rng = np.random.default_rng(seed)
    longest = int(rng.choice([5, 40, 200], p=[0.45, 0.5, 0.05]))
    tree = forest(rng, int(rng.integers(1, 12)), longest, int(rng.integers(2, 4)))
    subtree_end, positions = torch.from_numpy(tree.subtree_end), torch.from_numpy(tree.positions)
    count = len(tree)
    query_node = None
    if rng.random() < 0.3:
        query_node = torch.from_numpy(rng.integers(0, count, int(rng.integers(0, 50))))
    queries = count if query_node is None else len(query_node)
    key_heads = int(rng.integers(1, 3))
    size, value_size = (int(rng.choice([8, 32, 64, 80])) for _ in range(2))
    drawn = inputs(
        int(rng.integers(2**31)), queries, count, key_heads * int(rng.integers(1, 5)), key_heads, size, value_size
    )
    options: dict[str, Any] = {}
    if rng.random() < 0.4:
        query_positions = positions if query_node is None else positions[query_node]
        options |= {"window": int(rng.integers(1, 60)), "query_positions": query_positions, "key_positions": positions}
    if rng.random() < 0.3:
        options["softcap"] = float(rng.choice([1.0, 30.0]))
    if rng.random() < 0.2:
        options["scale"] = float(rng.choice([-0.2, 0.0, 2.0]))
    return drawn, subtree_end, query_node, options
