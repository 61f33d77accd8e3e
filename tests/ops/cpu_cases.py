"""Inputs, eager low-precision computations and tolerances shared by the tests of the C++ kernels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fastreader.ops import extension
from fastreader.ops.tree_attention.reference import visible
from fastreader.tree import PrefixTree

INSTRUCTION_SETS = ("portable", "avx2", "avx512", "avx512_bf16", "amx")

# A kernel may be off by this many times what the eager computation with the same operands is off by, at the worst
# element, plus what rounding an output near 1 costs in its own type.
TIMES_EAGER = 2.0
FLOOR = {"float32": 2e-6, "bfloat16": 4e-3, "split": 2e-5}
# exp2 of the bf16 kernels is a polynomial with a relative error of 2.6e-6, which an lse sees as an absolute one.
LSE_FLOOR = {"float32": 3e-6, "bfloat16": 1e-5, "split": 3e-5}


def available() -> list[str]:
    if extension.why_missing() is not None:
        return []
    best = extension.best_instruction_set()
    return list(INSTRUCTION_SETS[: INSTRUCTION_SETS.index(best) + 1])


def forest(rng: np.random.Generator, sequences: int, longest: int, alphabet: int = 2) -> PrefixTree:
    """Random sequences over a small alphabet: deep sharing, several roots."""
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
    """Inputs as the kernel gets them."""
    return [t.to(torch.bfloat16) if mode == "bfloat16" else t.to(torch.float32) for t in tensors]


def operand(mode: str, tensor: Tensor) -> Tensor:
    """What the operands of one product represent, in float64."""
    if mode == "float32":
        return tensor.double()
    high = tensor.bfloat16()
    if mode == "bfloat16":
        return high.double()
    return high.double() + (tensor.float() - high.float()).bfloat16().double()


def eager_attention(
    mode: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    until: Tensor,
    anchor: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention with operands rounded as `mode` says, products summed and softmax taken in float32."""
    groups = query.shape[1] // key.shape[1]
    q = operand(mode, query).float()
    k = operand(mode, key).float().repeat_interleave(groups, 1)
    v = operand(mode, value).float().repeat_interleave(groups, 1)
    score = torch.einsum("qhd,khd->hqk", q, k) * scale
    if softcap is not None:
        score = softcap * torch.tanh(score / softcap)
    score = score.masked_fill(~visible(until, anchor, query_positions, key_positions, window), float("-inf"))
    lse = torch.logsumexp(score, -1)
    weight = torch.exp(score - lse.masked_fill(lse.isneginf(), 0.0)[..., None])
    out = torch.einsum("hqk,khd->qhd", operand(mode, weight).float(), v)
    return (out.bfloat16() if mode == "bfloat16" else out), lse.T


def worst(got: Tensor, wanted: Tensor) -> float:
    """Largest absolute difference; infinite where one is infinite, NaN or both are not alike."""
    got, wanted = got.double(), wanted.double()
    if not torch.equal(got.isneginf(), wanted.isneginf()) or bool(got.isnan().any()):
        return float("inf")
    keep = ~wanted.isneginf()
    return float((got - wanted)[keep].abs().max()) if bool(keep.any()) else 0.0
