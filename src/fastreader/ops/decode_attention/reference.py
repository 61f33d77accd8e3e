"""decode_attention as its definition reads, row by row: any dtype up to float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fastreader.ops.decode_attention.ranges import Ranges


def decode_attention_reference(
    query: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    ranges: Ranges,
    scale: float,
    softcap: float | None = None,
    *,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    positions: Tensor | None = None,
    window: int | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (out, lse) for the arguments of `decode_attention`, in float32, or float64 for float64 inputs."""
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    rows, heads, _ = query.shape
    groups = heads // keys[0].shape[1]
    out = query.new_zeros(rows, heads, values[0].shape[2], dtype=dtype)
    lse = query.new_full((rows, heads), float("-inf"), dtype=dtype)
    if sinks is not None:
        lse[:] = sinks
    for b in range(rows):
        filled = [r for r in range(ranges.row_ptr[b], ranges.row_ptr[b + 1]) if ranges.start[r] < ranges.stop[r]]
        if not filled:
            continue
        seen = [(int(ranges.part[r]), slice(int(ranges.start[r]), int(ranges.stop[r]))) for r in filled]
        key = torch.cat([keys[part][where] for part, where in seen]).to(dtype).repeat_interleave(groups, 1)
        value = torch.cat([values[part][where] for part, where in seen]).to(dtype).repeat_interleave(groups, 1)
        score = torch.einsum("hd,khd->hk", query[b].to(dtype), key) * scale  # [Hq, keys]
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if ranges.offset is not None:
            spans = [ranges.offset[r] + np.arange(ranges.stop[r] - ranges.start[r]) for r in filled]
            place = torch.from_numpy(np.concatenate(spans)).to(query.device)
            if positions is not None:
                visible = place <= positions[b]
                if window is not None:
                    visible &= place > positions[b] - window
                if chunk is not None:
                    visible &= place // chunk == positions[b] // chunk
                if not visible.any():
                    continue
                score, value, place = score[:, visible], value[visible], place[visible] - positions[b]
            if slopes is not None:
                score = score + slopes[:, None] * place.to(score)
        lse[b] = torch.logaddexp(lse[b], score.logsumexp(-1))
        out[b] = torch.einsum("hk,khd->hd", torch.exp(score - lse[b][:, None]), value)
    return out, lse
