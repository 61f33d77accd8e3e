"""What people use today for the same numbers; every way takes a workload's groups and gives one sum a sequence."""

from __future__ import annotations

import copy
import os
from typing import Any

import torch

from fastreader.cli.packing_gain.groups import Group
from fastreader.models.loading import load as loading
from fastreader.reader.reader import Reader

PADDED_ROWS = 8  # the batch size people set for evaluation on such machines
_CACHED_ROWS = 32  # rows a repeated cache is kept for at once


def model_beside(reader: Reader, model: str | os.PathLike[str]) -> Any:
    """Return transformers' model of a reader, with plain weights in the type that runs fastest with the same values."""
    own = reader.arithmetic
    dtype = own.dtype
    if own.formats:  # of a file; float32 holds its values
        dtype = torch.bfloat16 if own.products == "bf16" else torch.float32
    return loading.load(model, own.device, dtype, "exact")[0]


@torch.inference_mode()
def one_at_a_time(model: Any, groups: list[Group]) -> list[float]:
    """Run one forward for each sequence: the plainest way, and the truth in float32."""
    out = []
    for group in groups:
        for context, continuation in group.sequences():
            ids = torch.tensor([context + continuation], device=model.device)
            logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(continuation) + 1).logits[0, :-1]
            out.append(_picked(logits, continuation))
    return out


@torch.inference_mode()
def padded(model: Any, groups: list[Group]) -> list[float]:
    """Run padded batches with full logits, longest first."""
    sequences = [pair for group in groups for pair in group.sequences()]
    order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i][0]) - len(sequences[i][1]))
    out = [0.0] * len(sequences)
    for first in range(0, len(order), PADDED_ROWS):
        chosen = order[first : first + PADDED_ROWS]
        texts = [sequences[i][0] + sequences[i][1] for i in chosen]
        longest = max(map(len, texts))
        ids = torch.tensor([t + [0] * (longest - len(t)) for t in texts], device=model.device)
        mask = torch.tensor([[1] * len(t) + [0] * (longest - len(t)) for t in texts], device=model.device)
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        for row, i in enumerate(chosen):
            context, continuation = sequences[i]
            out[i] = _picked(logits[row, len(context) - 1 : len(context) + len(continuation) - 1], continuation)
    return out


@torch.inference_mode()
def prefix_cached(model: Any, groups: list[Group]) -> list[float]:
    """One prefill a context, its cache repeated for the continuations."""
    out = []
    for group in groups:
        scored = group.scored_from
        keep = 1 if scored is None else len(group.context) - scored + 1
        prefill = model(
            input_ids=torch.tensor([group.context], device=model.device), use_cache=True, logits_to_keep=keep
        )
        for first in range(0, len(group.continuations), _CACHED_ROWS):
            rows = group.continuations[first : first + _CACHED_ROWS]
            last = first + _CACHED_ROWS >= len(group.continuations)
            cache = prefill.past_key_values if last else copy.deepcopy(prefill.past_key_values)
            out += _continued(model, prefill.logits[:, -1:], cache, rows)
        if scored is not None:
            out.append(_picked(prefill.logits[0, :-1], group.context[scored:]))
    return out


def _continued(model: Any, first: torch.Tensor, cache: Any, rows: list[list[int]]) -> list[float]:
    longest = max(map(len, rows))
    logits = first.expand(len(rows), 1, -1)
    if longest > 1:
        cache.batch_repeat_interleave(len(rows))
        ids = torch.tensor([k[:-1] + [0] * (longest - len(k)) for k in rows], device=model.device)
        rest = model(input_ids=ids, past_key_values=cache, use_cache=True).logits
        logits = torch.cat([logits, rest], dim=1)
    return [_picked(logits[i, : len(k)], k) for i, k in enumerate(rows)]


def _picked(logits: torch.Tensor, continuation: list[int]) -> float:
    return float(
        logits.float().log_softmax(-1).gather(1, torch.tensor(continuation, device=logits.device)[:, None]).sum()
    )
