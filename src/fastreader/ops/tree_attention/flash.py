"""tree_attention by calls of FlashAttention over the chains of a tree (`cascade`), merged by their log-sum-exps.

Partial results come in the inputs' type, so that a result is rounded once a level.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fastreader.ops import triton_support
from fastreader.ops.merge_state import merge_state
from fastreader.ops.operands import name_of
from fastreader.ops.tree_attention.plan import AttentionContext, AttentionPlan
from fastreader.ops.upload import Upload

MAX_LEVELS = 4  # each level reads and writes all states again
_MAX_SIZE = 256
# Names and modules: the first one that is installed is used; the wheel fa3-fwd has another module.
_PACKAGES = (
    ("FlashAttention-3", "flash_attn_interface"),
    ("FlashAttention-3, bfloat16 only", "fa3_fwd_interface"),
    ("flash-attn", "flash_attn.flash_attn_interface"),  # flash-attn-4 has a package flash_attn without it
)
_ONLY_BFLOAT16 = _PACKAGES[1][0]
# Attention of ranges: query [N, Hq, D], key and value [M, Hk, D], the tables of the ranges and the scale
# -> output [N, Hq, D], log-sum-exps [Hq, N].
Engine = Callable[[Tensor, Tensor, Tensor, "Tables", float], tuple[Tensor, Tensor]]


class Tables(NamedTuple):
    """A call's tables on a device, in which None means all rows or keys in order.

    Attributes:
        rows, keys: int64, the queries and the keys.
        bounds: int32 [n + 1] each, bounds of the ranges of queries and of keys.
        longest: longest range of queries, and of keys.
        causal: whether a query sees keys up to its own place only.
    """

    rows: Tensor | None
    keys: Tensor | None
    bounds: tuple[Tensor, Tensor]
    longest: tuple[int, int]
    causal: bool


def _torch(q: Tensor, k: Tensor, v: Tensor, tables: Tables, scale: float) -> tuple[Tensor, Tensor]:
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, *tables.bounds, *tables.longest, 0.0, tables.causal, False, scale=scale
    )
    return out, lse


def _package(module: str) -> Engine:
    def run(q: Tensor, k: Tensor, v: Tensor, tables: Tables, scale: float) -> tuple[Tensor, Tensor]:
        function = importlib.import_module(module).flash_attn_varlen_func
        options = {"softmax_scale": scale, "causal": tables.causal, "return_attn_probs": True}
        out, lse, *_ = function(q, k, v, *tables.bounds, *tables.longest, **options)
        return out, lse

    return run


@cache
def engine() -> tuple[str, Engine]:
    """Return the name of the engine that serves on CUDA, and the engine: FlashAttention-3, flash-attn or PyTorch's."""
    for name, module in _PACKAGES:
        if _is_there(module):
            return name, _package(module)
    return "PyTorch's FlashAttention-2", _torch


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def why_not(query: Tensor, value: Tensor, plan: AttentionPlan | None = None, **asked: Any) -> str | None:
    """Return why FlashAttention cannot compute a call, or None if it can.

    Args:
        query, value: [Tq, Hq, D] and [Tk, Hk, Dv].
        plan: of the tree; None leaves the number of levels to `tree_attention_flash`.
        asked: the call's window, chunk, softcap, sinks and slopes.
    """
    for name, given in asked.items():
        if given is not None:
            return f"FlashAttention's log-sum-exps over parts of the keys take no {name}"
    if (why := _why_not_here(query)) is not None:
        return why
    if value.shape[2] != query.shape[2] or query.shape[2] > _MAX_SIZE or query.shape[2] % 8:
        sizes = f"{query.shape[2]} and {value.shape[2]}"
        return f"it takes keys and values of one size, a multiple of 8 up to {_MAX_SIZE}, got {sizes}"
    if plan is not None and len(plan.cascade) > MAX_LEVELS + 1:
        return f"its cost grows with each level of chains; it takes {MAX_LEVELS}, got {len(plan.cascade) - 1}"
    return None


def _why_not_here(query: Tensor) -> str | None:
    """Return why no engine takes the device or type of a query, or None if one does."""
    if not triton_support.on_gpu(query.device):
        return f"it needs a CUDA device, got {query.device}"
    if query.dtype not in (torch.float16, torch.bfloat16):
        return f"it takes float16 or bfloat16, got {name_of(query.dtype)}"
    if query.dtype == torch.float16 and engine()[0] == _ONLY_BFLOAT16:
        return f"this wheel of {_ONLY_BFLOAT16.split(',')[0]} takes bfloat16 only, got float16"
    return None


_ON_DEVICE: WeakKeyDictionary[AttentionPlan, dict[torch.device, list[Tables]]] = WeakKeyDictionary()


def _tables(plan: AttentionPlan, device: torch.device) -> list[Tables]:
    """Return the tables of a plan's calls on a device, kept as long as the plan."""
    by_device = _ON_DEVICE.setdefault(plan, {})
    if device not in by_device:
        upload, waiting = Upload(device), []
        for index, call in enumerate(plan.cascade):
            places = None if index == 0 else call.rows, None if call.causal else call.keys
            parts = [None if at is None else upload.add(at) for at in places]
            waiting.append((call, parts, [upload.add(at) for at in call.bounds]))
        by_device[device] = []
        for call, parts, bounds in waiting:
            rows, keys = (None if part is None else part.get() for part in parts)
            lengths = (call.entries[:, 1::2] - call.entries[:, ::2]).max(axis=0)
            longest = int(lengths[0]), int(lengths[1])
            tables = Tables(rows, keys, (bounds[0].get(), bounds[1].get()), longest, call.causal)
            by_device[device].append(tables)
    return by_device[device]


def tree_attention_flash(context: AttentionContext) -> tuple[Tensor, Tensor]:
    """Return (out, lse) of a call that `why_not` allows, lse float32."""
    query, key, value, device = context.query, context.key, context.value, context.query.device
    attend = engine()[1]
    out = torch.zeros((*query.shape[:2], value.shape[2]), dtype=torch.float32, device=device)
    lse = torch.full(query.shape[:2], float("-inf"), dtype=torch.float32, device=device)
    for call in _tables(context.plan, device):
        pairs = ((query, call.rows), (key, call.keys), (value, call.keys))
        q, k, v = (tensor if at is None else tensor[at] for tensor, at in pairs)
        more, more_lse = attend(q, k, v, call, context.scale)
        more, more_lse = more.float(), more_lse.T.contiguous()
        if call.rows is None:
            out, lse = more, more_lse
        else:
            out[call.rows], lse[call.rows] = merge_state(out[call.rows], lse[call.rows], more, more_lse)
    return out, lse
