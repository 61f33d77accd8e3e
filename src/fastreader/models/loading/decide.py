"""Second step of loading: decide how a found model is stored and multiplied, and from which of its files it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from fastreader.core.checks import expect
from fastreader.models.gguf import weights as gguf_weights
from fastreader.models.loading import peft_adapters
from fastreader.models.loading.find import Found
from fastreader.models.loading.options import LoadOptions
from fastreader.models.loading.text_only import text_model
from fastreader.models.machine.arithmetic import Arithmetic, resolve, resolve_device
from fastreader.models.machine.devices import devices_of, main_device
from fastreader.models.rewriting import quantised
from fastreader.models.rewriting.device_hooks import settled


@dataclass(frozen=True)
class Decision:
    """How a model is loaded.

    Attributes:
        reads: "pair" for given objects, "integers" of a quantised GGUF file, "values" of a GGUF file in the storage
            type, or a "checkpoint" by transformers.
        arithmetic: device, storage type and products. Its formats and several devices are known once weights are read.
        given: the text model of a pair, whose type and devices decide.
    """

    reads: Literal["pair", "integers", "values", "checkpoint"]
    arithmetic: Arithmetic
    given: Any = None


def decide(found: Found) -> Decision:
    """Return how a found model is loaded.

    Raises:
        InputError: if an option does not fit the model or this machine, or a pair is not a model and its tokenizer.
        UnsupportedModelError: if the adapters of a given model cannot be merged.
    """
    options, given = found.options, None
    reads: Literal["pair", "integers", "values", "checkpoint"]
    if found.kind == "pair":
        given = _given_text_model(*options.model)
        reads, arithmetic = "pair", _of_given(given, options)
    elif _keeps_integers(found):
        reads, arithmetic = "integers", _resolved(options, "float32", torch.float32, integers=True)
    else:
        arithmetic = _resolved(options, options.dtype, _stored_dtype(found))
        reads = "checkpoint" if found.file is None else "values"
    return Decision(reads, replace(arithmetic, deterministic=options.deterministic), given)


def _resolved(
    options: LoadOptions, dtype: str | torch.dtype, stored: torch.dtype, *, integers: bool = False
) -> Arithmetic:
    device = _first_device(options.device_map) or options.device
    return resolve(device, dtype, options.precision, stored, options.products, integers)


def _keeps_integers(found: Found) -> bool:
    """Return whether weights keep the integers of a quantised GGUF file: always with dtype "file", else if possible."""
    options = found.options
    integers = found.file is not None and gguf_weights.has_integers(found.file)
    asked = options.dtype == "file"
    wanted = options.dtype == "auto" and options.keep_integers and options.device_map is None and found.adapter is None
    if asked:
        expect(found.adapter is None, "dtype", "another type than 'file', since an adapter is merged", "file")
        expected = "another type than 'file', since this is no GGUF file of quantised weights"
        expect(integers, "dtype", expected, "file")
    if not (asked or (wanted and integers)):
        return False
    reason = gguf_weights.why_not(resolve_device(options.device))
    expect(reason is None or not asked, "dtype", f"another type than 'file': {reason}", "file")
    return reason is None


def form_of(found: Found, decision: Decision) -> gguf_weights.WeightForm:
    """Return how a GGUF file's weights are held."""
    keep, dtype = decision.reads == "integers", decision.arithmetic.dtype
    alone = found.options.device_map is None and found.adapter is None  # PEFT merges adapters into plain tensors
    halves = alone and decision.arithmetic.device.type == "cpu" and dtype == torch.float32
    return gguf_weights.WeightForm(keep, keep or halves, torch.float32 if keep else dtype)


def _given_text_model(model: Any, tokenizer: Any) -> Any:
    """Return the text model of a pair, with accelerate's hooks removed and adapters merged in a copy."""
    from transformers import PreTrainedModel

    if isinstance(model, torch.nn.Module):
        model = settled(model, type(model).__name__)
        model = peft_adapters.merged_copy(model) if peft_adapters.carries(model) else model
    expect(isinstance(model, PreTrainedModel), "model", "a transformers model first in the pair", type(model))
    is_tokenizer = callable(tokenizer) and hasattr(tokenizer, "bos_token_id")
    expect(is_tokenizer, "model", "a transformers tokenizer second in the pair", type(tokenizer))
    return text_model(model)


def _of_given(model: Any, options: LoadOptions) -> Arithmetic:
    """Return the arithmetic of a given model, which stays on its devices."""
    several = len(devices_of(model)) > 1
    device = main_device(model) if several else model.device
    asked = "auto" if options.device == "auto" else options.device
    expect(not several or asked == "auto", "device", "'auto', since the given model is on several", asked)
    arithmetic = resolve(
        device if asked == "auto" else asked, options.dtype, options.precision, model.dtype, options.products
    )
    same = arithmetic.device.type == device.type and arithmetic.device.index in (None, device.index or 0)
    expect(same, "device", f"'auto' or the device of the given model, which is on {device}", asked)
    kept = arithmetic.dtype == model.dtype or not quantised.method(model)
    expect(kept, "dtype", f"'auto' or {model.dtype}, since its weights are quantised", options.dtype)
    return arithmetic


def _first_device(device_map: Any) -> torch.device | None:
    """Return the first device of a map that is not the CPU, or None without a map or for one by name."""
    if not isinstance(device_map, Mapping):
        return None
    found = [torch.device(one) for one in device_map.values()]
    return next((one for one in found if one.type != "cpu"), found[0])


def _stored_dtype(found: Found) -> torch.dtype:
    config, options = found.config, found.options
    exact = options.keep_integers and options.precision != "fast"
    if exact and found.file is not None and gguf_weights.quantised_types(found.file):
        return torch.float32  # bfloat16 would round every value of the file
    stored = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    if isinstance(stored, str):
        stored = getattr(torch, stored)
    return stored if isinstance(stored, torch.dtype) else torch.float32
