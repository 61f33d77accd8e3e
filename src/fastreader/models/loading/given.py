"""Take the text model of a given (transformers model, tokenizer) pair, which stays as it is."""

from __future__ import annotations

from typing import Any

import torch

from fastreader.core.checks import expect
from fastreader.models.loading import peft_adapters
from fastreader.models.loading.text_only import text_model
from fastreader.models.rewriting.device_hooks import settled


def given_text_model(model: Any, tokenizer: Any) -> Any:
    """Return the text model of a pair, with accelerate's hooks removed and adapters merged in a copy.

    Raises:
        InputError: if the pair is not a transformers model and its tokenizer.
        UnsupportedModelError: if the model's adapters cannot be merged.
    """
    from transformers import PreTrainedModel

    if isinstance(model, torch.nn.Module):
        model = settled(model, type(model).__name__)
        model = peft_adapters.merged_copy(model) if peft_adapters.carries(model) else model
    expect(isinstance(model, PreTrainedModel), "model", "a transformers model first in the pair", type(model))
    is_tokenizer = callable(tokenizer) and hasattr(tokenizer, "bos_token_id")
    expect(is_tokenizer, "model", "a transformers tokenizer second in the pair", type(tokenizer))
    return text_model(model)
