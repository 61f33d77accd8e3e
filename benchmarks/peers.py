"""What people use today for the same numbers: transformers, in the two usual ways, and one at a time as the truth."""

from __future__ import annotations

from typing import Any

import torch

Sequences = list[tuple[list[int], list[int]]]


@torch.inference_mode()
def one_at_a_time(model: Any, contexts: list[list[int]], continuations: list[list[int]]) -> list[float]:
    """The plainest way: one forward a sequence."""
    out = []
    for context in contexts:
        for continuation in continuations:
            ids = torch.tensor([context + continuation])
            logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(continuation) + 1).logits[0, :-1]
            picked = logits.float().log_softmax(-1).gather(1, torch.tensor(continuation)[:, None])
            out.append(float(picked.sum()))
    return out


@torch.inference_mode()
def padded(model: Any, contexts: list[list[int]], continuations: list[list[int]], batch: int = 8) -> list[float]:
    """Padded batches with full logits, as evaluation harnesses do."""
    sequences = [(c, k) for c in contexts for k in continuations]
    order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i][0]) - len(sequences[i][1]))
    out = [0.0] * len(sequences)
    for first in range(0, len(order), batch):
        chosen = order[first : first + batch]
        texts = [sequences[i][0] + sequences[i][1] for i in chosen]
        longest = max(map(len, texts))
        ids = torch.tensor([t + [0] * (longest - len(t)) for t in texts])
        mask = torch.tensor([[1] * len(t) + [0] * (longest - len(t)) for t in texts])
        logprobs = model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float().log_softmax(-1)
        for row, i in enumerate(chosen):
            context, continuation = sequences[i]
            part = logprobs[row, len(context) - 1 : len(context) + len(continuation) - 1]
            out[i] = float(part.gather(1, torch.tensor(continuation)[:, None]).sum())
    return out


@torch.inference_mode()
def prefix_cached(model: Any, contexts: list[list[int]], continuations: list[list[int]]) -> list[float]:
    """One prefill an ordering, its cache repeated for the candidates."""
    longest = max(map(len, continuations))
    ids = torch.tensor([k + [0] * (longest - len(k)) for k in continuations])
    out = []
    for context in contexts:
        prefill = model(input_ids=torch.tensor([context]), use_cache=True, logits_to_keep=1)
        cache = prefill.past_key_values
        cache.batch_repeat_interleave(len(continuations))
        rest = model(input_ids=ids[:, :-1], past_key_values=cache, use_cache=True).logits if longest > 1 else None
        first = prefill.logits.expand(len(continuations), 1, -1)
        logits = first if rest is None else torch.cat([first, rest], dim=1)
        logprobs = logits.float().log_softmax(-1)
        for row, continuation in enumerate(continuations):
            picked = logprobs[row, : len(continuation)].gather(1, torch.tensor(continuation)[:, None])
            out.append(float(picked.sum()))
    return out
