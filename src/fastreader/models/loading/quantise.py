"""Round a model's weights to few bits while they are read, as bitsandbytes does."""

from __future__ import annotations

import importlib.util
from typing import Any

from fastreader.core.checks import rejecting
from fastreader.core.progress import silence_progress_bars
from fastreader.errors import MissingExtraError

KINDS = ("nf4", "int8")


def quantised(model: str, kind: str, device: str = "auto") -> tuple[Any, Any]:
    """Return a model with rounded weights, and its tokenizer, as `Reader.load` takes a pair.

    Args:
        model: a folder or a hub id.
        kind: "nf4", 4-bit normal floats (Dettmers et al. 2023), or "int8", 8-bit integers without outliers apart.
        device: "auto" chooses CUDA if available.

    Raises:
        MissingExtraError: if bitsandbytes is not installed.
        InputError: if there is no such model.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtraError("bitsandbytes", "quantised")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

    where = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    computed = torch.float32 if where == "cpu" else torch.bfloat16
    # A threshold for outliers would make a text's numbers depend on what it is packed with.
    options: dict[str, Any] = {"load_in_8bit": True, "llm_int8_threshold": 0.0}
    if kind == "nf4":
        options = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": computed}
    with rejecting(f"model: expected a folder or a hub id of a model, got {model!r}", OSError), silence_progress_bars():
        rounded = AutoModelForCausalLM.from_pretrained(
            model,
            quantization_config=BitsAndBytesConfig(**options),
            dtype=computed,
            device_map=where,
            trust_remote_code=False,
        )
        return rounded, AutoTokenizer.from_pretrained(model, trust_remote_code=False)
