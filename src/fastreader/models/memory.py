"""How many tokens one pass may hold."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

_MOST = 65_536  # beyond this a larger pass multiplies no faster
_SHARE = 0.6  # of the free memory, for the default budget
_HARD_SHARE = 0.95  # of the free memory, for one sequence that cannot be split


def free_bytes(device: torch.device) -> int:
    """Memory free on `device`, in bytes; on the CPU the smaller of the machine's and the container's."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + reusable)
    return min(_machine_free(), _container_free())


def bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Peak activation memory of a pass through transformers' modules, in bytes a packed token.

    The residual stream with its float32 norm, and the larger of attention (projections, rotary copies,
    output) and the gated MLP (gate, up, activation, product; for a mixture of experts, those a token visits).
    """
    size = torch.empty((), dtype=dtype).element_size()
    wide = max(size, 4)
    hidden = int(config.hidden_size)
    heads = int(config.num_attention_heads)
    head_size = int(getattr(config, "head_dim", None) or hidden // heads)
    key_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    inner = int(getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * hidden)
    experts = getattr(config, "num_experts_per_tok", None)
    if experts:
        inner = int(getattr(config, "moe_intermediate_size", None) or inner) * int(experts)
    attention = head_size * (5 * heads + 6 * key_heads) * size
    feed_forward = 4 * inner * size
    return 3 * hidden * size + 2 * hidden * wide + max(attention, feed_forward)


def default_budget(config: Any, dtype: torch.dtype, device: torch.device) -> int:
    """Tokens a pass may hold by default: what fits in a share of the free memory, within reason."""
    return max(1, min(_MOST, int(_SHARE * free_bytes(device) / bytes_per_token(config, dtype))))


def hard_limit(config: Any, dtype: torch.dtype, device: torch.device) -> int:
    """Tokens above which a pass would not fit in the free memory at all."""
    return max(1, int(_HARD_SHARE * free_bytes(device) / bytes_per_token(config, dtype)))


def _machine_free() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES")) // 2


def _container_free() -> int:
    """What the control group (version 2) leaves; without one, no bound."""
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if not (limit.exists() and used.exists()):
        return 2**62
    text = limit.read_text().strip()
    return 2**62 if text == "max" else max(0, int(text) - int(used.read_text()))
