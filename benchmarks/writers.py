"""transformers' two usual ways to write after many prompts, greedily, always to the full length."""

from __future__ import annotations

from typing import Any

import torch


def endless(model: Any, tokenizer: Any) -> None:
    """Take the end of text from a model and its tokenizer, so that every way writes the same number of tokens."""
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token = None


@torch.inference_mode()
def padded(model: Any, prompts: list[list[int]], new: int) -> list[list[int]]:
    """One batch, padded on the left."""
    return _write(model, prompts, new, None)


@torch.inference_mode()
def prefix_cached(model: Any, prompts: list[list[int]], new: int) -> list[list[int]]:
    """What all prompts start with is read once, its cache repeated for the rows."""
    shared = 0
    shortest = min(map(len, prompts))
    while shared < shortest - 1 and len({prompt[shared] for prompt in prompts}) == 1:
        shared += 1
    if shared == 0:
        return _write(model, prompts, new, None)
    prefill = model(
        input_ids=torch.tensor([prompts[0][:shared]], device=model.device), use_cache=True, logits_to_keep=1
    )
    cache = prefill.past_key_values
    cache.batch_repeat_interleave(len(prompts))
    return _write(model, prompts, new, cache, shared)


def _write(model: Any, prompts: list[list[int]], new: int, cache: Any, shared: int = 0) -> list[list[int]]:
    """Padding stands between the shared part and the rest, where the mask hides it."""
    longest = max(map(len, prompts))
    ids = [p[:shared] + [0] * (longest - len(p)) + p[shared:] for p in prompts]
    mask = [[1] * shared + [0] * (longest - len(p)) + [1] * (len(p) - shared) for p in prompts]
    out = model.generate(
        torch.tensor(ids, device=model.device),
        attention_mask=torch.tensor(mask, device=model.device),
        past_key_values=cache,
        max_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
    )
    rows: list[list[int]] = out[:, longest:].tolist()
    return rows
