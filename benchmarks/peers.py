"""The usual ways (fastreader.cli.packing_gain.peers), lm-eval's, and what a prefill alone is compared with."""

from __future__ import annotations

from typing import Any

import torch

from fastreader.cli.packing_gain.groups import Group
from fastreader.cli.packing_gain.peers import PADDED_ROWS, one_at_a_time, padded, prefix_cached
from fastreader.models.loading import load as loading

__all__ = ["first_tokens", "harness", "one_at_a_time", "padded", "plain_model", "prefix_cached"]


def plain_model(name: str, dtype: torch.dtype, device: str = "cpu") -> Any:
    """Transformers' model. In float32 with the values that a quantised file holds, in other types rounded."""
    return loading.load(name, device, dtype, "exact", keep=False)[0].eval()


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
