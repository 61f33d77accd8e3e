"""Which keys each layer sees by its configuration: all, a sliding window, or a chunk."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastreader.errors import UnsupportedModelError


@dataclass(frozen=True)
class Chunk:
    """A layer in which a token sees the keys of its chunk of positions, as in Llama 4.

    Attributes:
        tokens: length of a chunk.
    """

    tokens: int


# What a layer sees: its last tokens, a chunk, or everything.
Window = int | Chunk | None

# Kinds of layers that attend to the keys which an index selects (DeepSeek's sparse attention); the second before 5.20.
# An index of the best K keys selects every key of a text of at most K tokens, so they run as full attention there.
# Longer texts are rejected: which keys an index selects depends on the path through the tree.
INDEXED = ("indexed_attention", "deepseek_sparse_attention", "minimax_m3_sparse")
# Kinds of layers without attention: a recurrent state or a short convolution, and only a feed-forward.
_RECURRENT, _ALONE = ("linear_attention", "conv"), ("mlp", "moe")


def layers_without_attention(config: Any) -> frozenset[int]:
    """Return the layers of a text model's config that have a recurrence or a feed-forward instead of attention."""
    kinds = getattr(config, "layer_types", None) or ()
    return frozenset(layer for layer, kind in enumerate(kinds) if kind in _RECURRENT + _ALONE)


def layer_windows(config: Any, model_name: str, recurrent: Collection[int] = ()) -> list[Window]:
    """Return each layer's attention window by a text model's config, where None is full attention, or no attention.

    Args:
        recurrent: layers whose recurrence the packed pass computes.

    Raises:
        UnsupportedModelError: if a layer is neither full, sliding nor chunked attention, and not in `recurrent`.
    """
    count = int(getattr(config, "num_layers_per_stack", None) or config.num_hidden_layers)
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return [window] * count
    of_kind: dict[str, Window] = {"full_attention": None, "sliding_attention": window}
    if indexed_context(config) is not None:
        of_kind |= dict.fromkeys(INDEXED)
    if (chunk := getattr(config, "attention_chunk_size", None)) is not None:
        of_kind["chunked_attention"] = Chunk(int(chunk))
    if recurrent:
        of_kind |= dict.fromkeys(_ALONE)
    for layer, kind in enumerate(kinds[:count]):
        known = layer in recurrent and kind in (*_RECURRENT, "hybrid")
        if kind not in of_kind and not known:
            raise UnsupportedModelError(
                f"{model_name}: layer {layer} is {kind!r}; the packed pass computes full_attention, "
                "sliding_attention and, with an attention_chunk_size, chunked_attention only"
            )
    return [of_kind.get(kind) for kind in kinds[:count]]


def indexed_context(config: Any) -> int | None:
    """Return the length of the longest text whose tokens are all selected, in tokens, or None without an index."""
    if not set(INDEXED) & set(getattr(config, "layer_types", None) or ()):
        return None
    if (keys := getattr(config, "index_topk", None)) is not None:
        return int(keys)
    if not hasattr(config, "index_topk_blocks"):  # Qwen4's counts otherwise
        return None
    return int(config.index_topk_blocks) * int(config.index_block_size)


def indexers(model: Any) -> list[Any]:
    """Return the modules of a model that select keys."""
    return [part for m in model.base_model.modules() if (part := getattr(m, "indexer", None)) is not None]


def select_all_keys(model: Any) -> None:
    """Replace the selections of a structural copy by empty ones, which mean all keys."""
    for indexer in indexers(model):
        indexer.forward = _nothing


def _nothing(hidden_states: Tensor, *_: Any, **_named: Any) -> Tensor:
    return torch.empty(0, dtype=torch.int64, device=hidden_states.device)
