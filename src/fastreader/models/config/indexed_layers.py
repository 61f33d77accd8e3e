"""Layers that attend to the keys which an index selects (DeepSeek's sparse attention), run as full attention.

An index of the best K keys selects every key of a text of at most K tokens, so such a layer is full attention there.
Longer texts are rejected: which keys an index selects depends on the path through the tree.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

KINDS = ("indexed_attention", "deepseek_sparse_attention", "minimax_m3_sparse")  # the second: before 5.20


def covered(config: Any) -> int | None:
    """Return the length of the longest text whose tokens are all selected, in tokens, or None without an index."""
    if not set(KINDS) & set(getattr(config, "layer_types", None) or ()):
        return None
    if (keys := getattr(config, "index_topk", None)) is not None:
        return int(keys)
    if not hasattr(config, "index_topk_blocks"):  # Qwen4's counts otherwise
        return None
    return int(config.index_topk_blocks) * int(config.index_block_size)


def indexers(model: Any) -> list[Any]:
    """Return the modules of a model that select keys."""
    return [part for m in model.base_model.modules() if (part := getattr(m, "indexer", None)) is not None]


def select_all(model: Any) -> None:
    """Replace the selections of a structural copy by empty ones, which mean all keys."""
    for indexer in indexers(model):
        indexer.forward = _nothing


def _nothing(hidden_states: Tensor, *_: Any, **_named: Any) -> Tensor:
    return torch.empty(0, dtype=torch.int64, device=hidden_states.device)
