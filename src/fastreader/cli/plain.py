"""The scores of a reader by plain transformers, one sequence at a time, to compare times and numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastreader.reader.reader import Reader


def plain_model(reader: Reader, model: str | os.PathLike[str], adapter: str | None = None) -> Any:
    """Return transformers' model of a reader, with plain weights in the type of the reader's products."""
    import torch

    from fastreader.models.loading.load import load
    from fastreader.models.loading.options import LoadOptions

    own = reader.arithmetic
    dtype = own.dtype
    if own.formats:  # float32 holds the values of a quantised file
        dtype = torch.bfloat16 if own.products == "bf16" else torch.float32
    options = LoadOptions(model, own.device, dtype, "exact", adapter=adapter, keep_integers=False)
    return load(options).model.eval()


def plain_scores(model: Any, sequences: Sequence[tuple[list[int], list[int]]]) -> list[float]:
    """Return the log-likelihood of each continuation after its context (token ids), one forward pass for each."""
    import torch

    found = []
    with torch.inference_mode():
        for context, continuation in sequences:
            ids = torch.tensor([context + continuation], device=model.device)
            logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(continuation) + 1).logits[0, :-1]
            chosen = torch.tensor(continuation, device=logits.device)[:, None]
            found.append(float(logits.float().log_softmax(-1).gather(1, chosen).sum()))
    return found
