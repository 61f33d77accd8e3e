"""What people use today for the same numbers. Every way takes a workload's groups and gives one sum a sequence."""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
from groups import Group

from fastreader.models.loading.load import load
from fastreader.models.loading.options import LoadOptions

PADDED_ROWS = 8  # the batch size people set for evaluation on such machines
_CACHED_ROWS = 32  # rows a repeated cache is kept for at once


def plain_model(name: str | os.PathLike[str], dtype: torch.dtype, device: str | torch.device = "cpu") -> Any:
    """Transformers' model. In float32 with the values that a quantised file holds, in other types rounded."""
    return load(LoadOptions(name, device, dtype, "exact", keep_integers=False)).model.eval()


def one_at_a_time(model: Any, groups: list[Group]) -> list[float]:
    """Run one forward for each sequence: the plainest way, and the truth in float32."""
    from fastreader.cli.demo import plain_scores  # here, since commands need packages that a GPU machine may lack

    return plain_scores(model, [pair for group in groups for pair in group.sequences()])


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


def harness(folder: str, dtype: torch.dtype, groups: list[Group], device: str = "cpu") -> Any:
    """lm-eval's HFLM over the same token sequences, prefix cache off as it is. Call the result to run it."""
    from lm_eval.models.huggingface import HFLM

    name = {torch.bfloat16: "bfloat16", torch.float32: "float32"}[dtype]
    model = HFLM(pretrained=folder, dtype=name, device=device, batch_size=PADDED_ROWS)
    requests = [(("", ""), context, continuation) for group in groups for context, continuation in group.sequences()]
    return lambda: [score for score, _ in model._loglikelihood_tokens(requests, disable_tqdm=True)]


@torch.inference_mode()
def first_tokens(model: Any, groups: list[Group]) -> list[int]:
    """The likeliest token after each context."""
    contexts = (torch.tensor([group.context], device=model.device) for group in groups)
    return [int(model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1].argmax()) for ids in contexts]


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
