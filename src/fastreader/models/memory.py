"""How many tokens one pass may hold."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from fastreader.models.chunking import WIDEST, rows_of_block

_MOST = 65_536  # beyond this a larger pass multiplies no faster
_SHARE = 0.6  # of the free memory, for the default budget
_HARD_SHARE = 0.95  # of the free memory, for any one pass
_ALLOCATED = 1.15  # memory taken by a tensor's size: gaps between tensors, empty slots of keys, what is not counted
_BLOCK = 256  # tokens a thread works on
_LOGITS = 2_000_000  # values of a block of logits
Forward = Literal["own", "widened", "fused"]


def free_bytes(device: torch.device) -> int:
    """Memory free on `device`, in bytes; on the CPU the smaller of the machine's and the container's."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + reusable)
    return min(_machine_free(), _container_free())


def bytes_per_token(config: Any, dtype: torch.dtype, forward: Forward, operands: torch.dtype | None = None) -> int:
    """Peak activation memory of a pass, in bytes a packed token.

    The residual stream and its sums, and attention: queries, keys and values as projected, rotated, and in the type
    of the products. A model's own forward also has the feed-forward over all tokens at once (gate, up, activation,
    product; for a mixture of experts, those a token visits). A widened one runs that over blocks, and a fused one
    everything but attention: of all tokens it holds the stream, the angles, queries, keys and values, the kernels'
    copy of keys and values, and attention's output.

    Args:
        config: the text model's config.
        dtype: how weights are stored.
        forward: "own", "widened" (activations in float32, `models.wide`), or "fused" (`models.fused`, every layer).
        operands: type of queries, keys and values in a fused forward; float32 when None.
    """
    stored = torch.empty((), dtype=dtype).element_size()
    size = stored if forward == "own" else max(stored, 4)
    hidden = int(config.hidden_size)
    heads = int(config.num_attention_heads)
    head_size = int(getattr(config, "head_dim", None) or hidden // heads)
    key_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    projected = head_size * (heads + 2 * key_heads)
    if forward == "fused":
        operand = torch.empty((), dtype=operands or torch.float32).element_size()
        copies = head_size * 2 * key_heads
        exact = hidden * size + 2 * head_size * size + (projected + copies + head_size * heads) * operand
        return int(_ALLOCATED * exact)
    attention = projected * (2 * size + min(stored, 4)) + head_size * heads * 2 * size
    if forward == "widened":
        return 3 * hidden * size + attention
    inner = int(getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * hidden)
    experts = getattr(config, "num_experts_per_tok", None)
    if experts:
        inner = int(getattr(config, "moe_intermediate_size", None) or inner) * int(experts)
    return 3 * hidden * size + 2 * hidden * max(size, 4) + max(attention, 4 * inner * size)


@dataclass(frozen=True)
class Beside:
    """Memory of a pass beside what each of its tokens takes.

    Attributes:
        fixed: bytes, however few tokens there are.
        rows, row_bytes: tokens worked on at a time, and bytes each takes then.
    """

    fixed: int = 0
    rows: int = 0
    row_bytes: int = 0

    def bytes(self, tokens: int) -> int:
        """Of a pass of `tokens`."""
        return self.fixed + min(tokens, self.rows) * self.row_bytes

    def tokens(self, space: float, bytes_a_token: int) -> int:
        """The most that fit in `space` bytes; 1 at least."""
        many = int((space - self.bytes(self.rows)) / bytes_a_token)
        few = int((space - self.fixed) / (bytes_a_token + self.row_bytes))
        return max(1, many if many >= self.rows else min(few, self.rows))


NOTHING = Beside()


def beside_tokens(config: Any, dtype: torch.dtype, device: torch.device, forward: Forward, precision: str) -> Beside:
    """What a pass takes beside its tokens: what is worked on at a time, a block of logits, a weight in another type.

    On the CPU a thread works on a block; elsewhere all do, on one that is larger.

    Args:
        config: the text model's config.
        dtype: how weights are stored.
        device: where the model is.
        forward: as for `bytes_per_token`; "own" takes nothing here, its tokens all of it.
        precision: of the products.
    """
    if forward == "own":
        return NOTHING
    hidden = int(config.hidden_size)
    inner = int(getattr(config, "intermediate_size", None) or 4 * hidden)
    stored = torch.empty((), dtype=dtype).element_size()
    wide = max(stored, 4)
    if device.type == "cpu":
        return Beside(torch.get_num_threads() * _BLOCK * (hidden + 2 * inner) * wide + _LOGITS * wide)
    kept = torch.bfloat16 if precision == "fast" else torch.float64 if dtype == torch.float64 else torch.float32
    converted = 0 if dtype == kept else hidden * inner * torch.empty((), dtype=kept).element_size()
    # the norm's result, and of the projections with their rotated copies, or gate and input with their product
    row_bytes = (hidden + max(3 * inner, 6 * hidden)) * wide
    rows = rows_of_block(device, WIDEST * hidden if forward == "widened" else 2 * inner)
    return Beside(_LOGITS * wide + converted, rows, row_bytes)


def key_value_bytes(config: Any, dtype: torch.dtype) -> int:
    """Keys and values of one token in all layers, in bytes.

    Args:
        config: the text model's config.
        dtype: what they are kept in.
    """
    heads = int(config.num_attention_heads)
    head_size = int(getattr(config, "head_dim", None) or int(config.hidden_size) // heads)
    key_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    return int(config.num_hidden_layers) * 2 * key_heads * head_size * torch.empty((), dtype=dtype).element_size()


def while_writing(activation_bytes: int, key_value_bytes: int, new_tokens: int) -> tuple[int, int]:
    """What a prompt token and a text to be written after it take.

    Args:
        activation_bytes: of a packed token, see `bytes_per_token`.
        key_value_bytes: of a token, see `key_value_bytes`.
        new_tokens: how many are written; the last is never read, so that for one no keys are kept.

    Returns:
        (bytes a prompt token, prompt tokens that take as much memory as one text)
    """
    if new_tokens < 2:
        return activation_bytes, new_tokens
    size = activation_bytes + key_value_bytes
    return size, -(-(activation_bytes + new_tokens * key_value_bytes) // size)


def default_budget(bytes_a_token: int, device: torch.device, beside: Beside = NOTHING) -> int:
    """Tokens a pass may hold by default: what fits in a share of the free memory, within reason."""
    return min(_MOST, beside.tokens(_SHARE * free_bytes(device), bytes_a_token))


def hard_limit(bytes_a_token: int, device: torch.device, beside: Beside = NOTHING) -> int:
    """Tokens above which a pass would not fit in the free memory at all."""
    return beside.tokens(_HARD_SHARE * free_bytes(device), bytes_a_token)


def _machine_free() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES")) // 2


# Limit, use and statistics of a control group, version 2 and 1.
_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)


def _container_free(groups: tuple[tuple[str, str, str], ...] = _GROUPS) -> int:
    """What the container's memory limit leaves, file cache that can be given back not counted as used."""
    for limit, used, statistics in groups:
        paths = [Path(p) for p in (limit, used, statistics)]
        if not all(p.exists() for p in paths):
            continue
        text = paths[0].read_text().strip()
        if text == "max":
            continue
        cached = 0
        for line in paths[2].read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                cached = int(value)
        return max(0, int(text) - max(0, int(paths[1].read_text()) - cached))
    return 2**62
