"""The delta rules and linear attention by the chunk kernels of fla-core (`impl="fla"`): one call a level of chains.

These kernels take sequences of any lengths, each with a state to start from, and return the states at their ends. The
chains of a level are the sequences of a call, so a tree takes as many calls as it has levels of chains.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fastreader.ops import triton_support
from fastreader.ops.operands import name_of
from fastreader.ops.recurrent.chains import chains
from fastreader.ops.recurrent.plan import ScanPlan
from fastreader.ops.recurrent.reference import unit
from fastreader.ops.upload import Upload, Uploaded

OPS = ("gated_delta_rule", "linear_attention")
_MOST_KEYS = 256  # values of a key, which the delta rules of fla-core assert
_STEP = 8  # divides the sizes: rows of 16 bytes


def why_not(operands: Mapping[str, Tensor]) -> str | None:
    """Return why fla-core cannot compute a call with these operands, or None if it can.

    Args:
        operands: query and key [T, Hk, D], value [T, Hv, Dv], gate [T, Hv] or [T, Hv, D], and for the delta rules beta.
    """
    query, value = operands["query"], operands["value"]
    if (why := _why_not_here(query)) is not None:
        return why
    types = [operands[name].dtype for name in ("query", "key", "value")]
    if len(set(types)) > 1:
        return f"it takes queries, keys and values of one type, got {', '.join(map(name_of, types))}"
    for name, operand in operands.items():
        if operand.dtype == torch.float64:
            return f"its sums are float32, got {name} in float64"
    sizes = query.shape[2], value.shape[2]
    if 0 in (*query.shape[1:], *value.shape[1:]):
        return f"it takes at least one head and value, got {list(query.shape)} and {list(value.shape)}"
    if sizes[0] > _MOST_KEYS or any(size % _STEP for size in sizes):
        return (
            f"it takes sizes that are multiples of {_STEP}, of keys up to {_MOST_KEYS}, got {sizes[0]} and {sizes[1]}"
        )
    return None


def _why_not_here(query: Tensor) -> str | None:
    """Return why the kernels take neither the device nor the type of a query, or None if they do."""
    if not triton_support.on_gpu(query.device):
        return f"it needs a CUDA device, got {query.device}"
    if importlib.util.find_spec("fla") is None:
        return "the package fla-core is not installed"
    if query.dtype not in (torch.float16, torch.bfloat16):
        return f"it takes float16 or bfloat16, because its products of float32 are TF32, got {name_of(query.dtype)}"
    return triton_support.why_not(query)


class LevelCall(NamedTuple):
    """Tables of the call for a level.

    Attributes:
        tokens: int64 [n] on the device, the tokens of the level's chains in order; a slice if they are one run.
        bounds: int64 [N + 1] on the device, the first of these tokens in each chain, and n.
        host_bounds: the same on the CPU, where fla-core would otherwise copy it to, and wait.
        before: int64 [N] on the device, for each chain the chain of the level before, or the initial state, that it
            starts from; None if all start from zeros.
        zeros: int64 on the device, the chains that start from zeros, if only some do; else None.
        kept: int64 [2, n] on the device, chains whose last states the caller keeps, and their rows in the result; None
            if it keeps no state of the level.
        needed: whether anything needs the states at the ends.
    """

    tokens: slice | Tensor
    bounds: Tensor
    host_bounds: Tensor
    before: Tensor | None
    zeros: Tensor | None
    kept: Tensor | None
    needed: bool

    def gather(self, rows: Tensor) -> Tensor:
        """Return the level's rows of [T, ...], [1, n, ...]."""
        found = rows[self.tokens] if isinstance(self.tokens, slice) else rows.index_select(0, self.tokens)
        return found.unsqueeze(0)

    def scatter(self, out: Tensor, rows: Tensor) -> None:
        """Write rows [1, n, ...] to the level's tokens in [T, ...]."""
        if isinstance(self.tokens, slice):
            out[self.tokens] = rows[0]
        else:
            out.index_copy_(0, self.tokens, rows[0])

    def first(self, states: Tensor | None) -> Tensor | None:
        """Return the states [N, H, D, Dv] that the chains start from, or None for zeros."""
        if self.before is None:
            return None
        assert states is not None  # `ScanPlan.initial` was checked
        found = states.index_select(0, self.before)
        return found if self.zeros is None else found.index_fill_(0, self.zeros, 0.0)


_CALLS: WeakKeyDictionary[ScanPlan, list[LevelCall]] = WeakKeyDictionary()


def level_calls(plan: ScanPlan) -> list[LevelCall]:
    """Return the calls for the levels of a plan, in order, kept as long as the plan.

    fla-core caches what it derives from the bounds by their identity, so equal bounds in new tensors would cost again.
    """
    if plan not in _CALLS:
        _CALLS[plan] = _build(plan)
    return _CALLS[plan]


def _build(plan: ScanPlan) -> list[LevelCall]:
    found = chains(plan.parent, None, plan.keep)
    owner = np.searchsorted(found.starts, plan.keep, side="right") - 1
    order = np.argsort(found.levels, kind="stable")
    counts = np.bincount(found.levels)
    place = np.full(len(found), -1, dtype=np.int64)
    upload, waiting, last = Upload(plan.device), [], 0
    for level, count in enumerate(counts.tolist()):
        members = order[last : last + count]
        last += count
        place[members] = np.arange(count)
        starts, lengths = found.starts[members], found.lengths[members]
        bounds = np.append(0, np.cumsum(lengths))
        run = bool((starts - starts[0] == bounds[:-1]).all())
        tokens = np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], lengths)
        above = found.parents[members]
        before = np.where(above >= 0, place[np.maximum(above, 0)], -2 - above)  # initial states, and -1 for none
        ends = np.flatnonzero(found.levels[owner] == level)
        arrays = {
            "tokens": None if run else tokens,
            "bounds": bounds,
            "before": np.maximum(before, 0) if (before >= 0).any() else None,
            "zeros": np.flatnonzero(before < 0) if (before >= 0).any() and (before < 0).any() else None,
            "kept": np.stack([place[owner[ends]], ends]) if len(ends) else None,
        }
        parts = {name: None if array is None else upload.add(array) for name, array in arrays.items()}
        whole = slice(int(starts[0]), int(starts[0] + bounds[-1]))
        waiting.append((parts, whole, torch.from_numpy(bounds), bool(len(ends)) or level + 1 < len(counts)))
    return [_sent(*parts) for parts in waiting]


def _sent(parts: dict[str, Uploaded | None], run: slice, bounds: Tensor, needed: bool) -> LevelCall:
    there = {name: None if part is None else part.get() for name, part in parts.items()}
    tokens, on_device = there["tokens"], there["bounds"]
    assert on_device is not None
    return LevelCall(
        tokens=run if tokens is None else tokens,
        bounds=on_device,
        host_bounds=bounds,
        before=there["before"],
        zeros=there["zeros"],
        kept=there["kept"],
        needed=needed,
    )


def scan_fla(
    operands: Mapping[str, Tensor],
    plan: ScanPlan,
    *,
    initial: Tensor | None,
    scale: float = 1.0,
    norm_epsilon: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return outputs in value's type and kept states in float32 of a call that `why_not` allows.

    Args:
        operands, initial, scale, norm_epsilon: see `gated_delta_rule`; without a beta, of `linear_attention`.
        plan: the tree, and the tokens whose states are returned.
    """
    query, key, value = (operands[name] for name in ("query", "key", "value"))
    heads, dtype = value.shape[1], value.dtype
    if norm_epsilon is not None:
        query, key = (unit(x.float(), norm_epsilon).to(dtype) for x in (query, key))
    if "beta" not in operands and key.shape[1] != heads:  # these kernels take as many heads of keys as of values
        query, key = (x.repeat_interleave(heads // key.shape[1], dim=1) for x in (query, key))
    given = [query, key, value, *(operands[name].float() for name in ("gate", "beta") if name in operands)]
    rule = _rule(operands)
    out = torch.empty_like(value, memory_format=torch.contiguous_format)
    shape = (len(plan.keep), heads, key.shape[2], value.shape[2])
    kept = torch.empty(shape, dtype=torch.float32, device=value.device)
    states = None if initial is None else initial.float()
    for call in level_calls(plan):
        made, states = rule(
            *(call.gather(rows) for rows in given),
            scale=scale,
            initial_state=call.first(states),
            output_final_state=call.needed,
            cu_seqlens=call.bounds,
            cu_seqlens_cpu=call.host_bounds,
        )
        call.scatter(out, made)
        if call.kept is not None:
            places, rows = call.kept
            kept.index_copy_(0, rows, states.index_select(0, places))
    return out, kept


def _rule(operands: Mapping[str, Tensor]) -> Callable[..., Any]:
    """Return the function of fla-core for a call: all take gates as logarithms of the decay of one token."""
    if "beta" not in operands:
        module, name = "simple_gla", "chunk_simple_gla"
    elif operands["gate"].dim() == 2:
        module, name = "gated_delta_rule", "chunk_gated_delta_rule"
    else:
        module, name = "kda", "chunk_kda"
    rule: Callable[..., Any] = getattr(importlib.import_module(f"fla.ops.{module}"), name)
    return rule
