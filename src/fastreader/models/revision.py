"""Which weights a model holds: its name may stay while they change."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

VALUES = 64  # of each parameter


def revision(model: Any, tokenizer: Any) -> str:
    """A digest of what a name or a path leaves open: a sample of each weight, and the chat template.

    Training or merging moves nearly every value of a matrix, so that a few of each tell; all of them would mean
    reading the checkpoint once more. They are rounded to bfloat16, so that the storage type, which results name
    anyway, changes nothing where the checkpoint is bfloat16 or the type is.

    Args:
        model: a transformers model, on any device.
        tokenizer: of it.

    Returns:
        12 hexadecimal digits.
    """
    digest = hashlib.sha256(json.dumps(getattr(tokenizer, "chat_template", None), sort_keys=True).encode())
    for parameter in model.parameters():
        digest.update(_sample(parameter).cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


def _sample(parameter: torch.Tensor) -> torch.Tensor:
    """`VALUES` values at even distances, the first and the last among them, as bytes."""
    flat = parameter.detach().reshape(-1)
    if not len(flat):
        return flat.new_empty(0, dtype=torch.uint8)
    places = torch.linspace(0, len(flat) - 1, min(VALUES, len(flat)), dtype=torch.float64).long()
    taken = flat[places.to(flat.device)]
    if taken.is_floating_point():
        taken = taken.to(torch.bfloat16)
    return taken.view(torch.uint8)
