"""Random forests in depth-first order, and attention inputs over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fastreader.ops.tree_attention.plan import AttentionContext, AttentionPlan
from fastreader.ops.tree_attention.reference import tree_attention_reference, visible


def forest(climbs: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return (subtree_end, positions), int32, of a forest: token i climbs climbs[i] levels from token i - 1.

    0 continues a path, 1 makes a sibling, and climbing past the root starts another tree.
    """
    path: list[int] = []
    subtree_end = np.zeros(len(climbs), dtype=np.int32)
    positions = np.zeros(len(climbs), dtype=np.int32)
    for i, climb in enumerate(climbs):
        keep = max(len(path) - climb, 0)
        for gone in path[keep:]:
            subtree_end[gone] = i
        path = [*path[:keep], i]
        positions[i] = keep
    subtree_end[path] = len(climbs)
    return subtree_end, positions


def random_forest(seed: int, size: int, branching: float = 0.08) -> tuple[np.ndarray, np.ndarray]:
    """Draw a forest of long paths that branch now and then, sometimes at a root."""
    rng = np.random.default_rng(seed)
    climbs = np.where(rng.random(size) < branching, rng.integers(1, max(size // 2, 2), size), 0)
    return forest(climbs.tolist())


@dataclass(frozen=True)
class Inputs:
    """Arguments of tree_attention."""

    query: Tensor
    key: Tensor
    value: Tensor
    subtree_end: Tensor
    query_node: Tensor
    query_positions: Tensor
    key_positions: Tensor
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    slopes: Tensor | None = None

    def context(self, *, return_lse: bool = True) -> AttentionContext:
        return AttentionContext(**vars(self), plan=self.plan(), return_lse=return_lse)

    def to(self, device: str) -> Inputs:
        moved = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)

    def plan(self) -> AttentionPlan:
        return AttentionPlan(
            *(t.cpu().numpy() for t in (self.subtree_end, self.query_node, self.query_positions, self.key_positions))
        )

    def golden(self) -> tuple[Tensor, Tensor]:
        """Return (output, lse) in float64 from the quantised inputs."""
        wide = replace(self, query=self.query.double(), key=self.key.double(), value=self.value.double())
        wide = replace(
            wide, **{name: t.double() for name in ("sinks", "slopes") if (t := getattr(self, name)) is not None}
        )
        return tree_attention_reference(wide.context())

    def eager(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return (output, lse) with every step in one dtype."""
        groups = self.query.shape[1] // self.key.shape[1]
        key = self.key.to(dtype).repeat_interleave(groups, dim=1)
        value = self.value.to(dtype).repeat_interleave(groups, dim=1)
        score = torch.einsum("qhd,khd->hqk", self.query.to(dtype), key) * self.scale
        if self.softcap is not None:
            score = self.softcap * torch.tanh(score / self.softcap)
        if self.slopes is not None:
            distance = self.key_positions[None, :] - self.query_positions[:, None]
            score = score + self.slopes[:, None, None].to(dtype) * distance
        mask = visible(self.subtree_end, self.query_node, self.query_positions, self.key_positions, self.window)
        score = score.masked_fill(~mask, float("-inf"))
        if self.sinks is not None:  # a key whose value is 0
            score = torch.cat([score, self.sinks[:, None, None].to(dtype).expand(-1, len(self.query), 1)], dim=-1)
        weight = torch.softmax(score, dim=-1).nan_to_num(0.0)[..., : len(key)]
        return torch.einsum("hqk,khd->qhd", weight, value), torch.logsumexp(score, dim=-1).T


def attention_inputs(
    subtree_end: np.ndarray,
    positions: np.ndarray,
    *,
    dtype: torch.dtype,
    heads: tuple[int, int] = (6, 2),
    size: int = 64,
    value_size: int | None = None,
    query_node: np.ndarray | None = None,
    query_positions: np.ndarray | None = None,
    window: int | None = None,
    softcap: float | None = None,
    seed: int = 0,
) -> Inputs:
    """Draw normal query, key and value over a forest. Query i sees what key query_node[i] sees (i when None)."""
    generator = torch.Generator().manual_seed(seed)
    place = np.arange(len(subtree_end)) if query_node is None else query_node
    if query_positions is None:
        query_positions = positions if query_node is None else positions[place] + 1
    sizes = (
        (len(place), heads[0], size),
        (len(subtree_end), heads[1], size),
        (len(subtree_end), heads[1], value_size or size),
    )
    query, key, value = (torch.randn(s, generator=generator).to(dtype) for s in sizes)
    return Inputs(
        query,
        key,
        value,
        torch.from_numpy(subtree_end),
        torch.from_numpy(place.astype(np.int64)),
        torch.from_numpy(query_positions.astype(np.int32)),
        torch.from_numpy(positions),
        size**-0.5,
        window,
        softcap,
    )


@contextmanager
def poisoned() -> Iterator[None]:
    """Make `torch.empty` return NaN (the lowest value for int32 and int64), to expose reads of unset memory."""
    empty = torch.empty
    with torch.device("meta"):
        empty(0)  # PyTorch remembers which functions obey a device, once in a process: the real one, not `filled`

    def filled(*args: Any, **kwargs: Any) -> Tensor:
        tensor = empty(*args, **kwargs)
        if tensor.is_floating_point():
            return tensor.fill_(float("nan"))
        return tensor.fill_(torch.iinfo(tensor.dtype).min) if tensor.dtype in (torch.int32, torch.int64) else tensor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", filled)
        yield
