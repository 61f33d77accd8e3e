"""The rotary embedding that a GGUF file states, as the rope_parameters of transformers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fastreader.errors import ModelFileError, UnsupportedModelError
from fastreader.models.gguf.architectures import Architecture
from fastreader.models.gguf.file import GgufFile
from fastreader.models.gguf.values import floats

_BASE = 10_000.0  # llama.cpp's, of a file without one
_TYPES = ("none", "linear", "yarn", "longrope")
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_CLOSE = 2e-6  # relative, of divisors that are stored in float32


def rope_parameters(file: GgufFile, of: Architecture, head: int, context: int) -> dict[str, Any]:
    """Return the rotary scheme of a file.

    Args:
        file: whose keys `rope.*` and tensors `rope_*.weight` count as used.
        of: its architecture.
        head: values of a head.
        context: the longest text, in tokens.

    Raises:
        ModelFileError: if a number is impossible.
        UnsupportedModelError: if transformers' modules of this architecture do not compute the scheme.
    """
    prefix = f"{file.architecture}.rope."

    def number(key: str, default: float) -> float:
        value = file.get(prefix + key, float, default)
        if not value > 0:
            raise ModelFileError(f"{file.path}: {prefix}{key}: expected a positive number, got {value}")
        return value

    rotated = file.get(f"{prefix}dimension_count", int, head)
    if not 0 < rotated <= head or rotated % 2:
        expected = f"an even number up to the {head} values of a head"
        raise ModelFileError(f"{file.path}: {prefix}dimension_count: expected {expected}, got {rotated}")
    if rotated != head and not of.partial_rotary:
        raise _unsupported(file, f"rope.dimension_count {rotated} of {head}")
    common: dict[str, Any] = {"rope_type": "default", "rope_theta": number("freq_base", _BASE)}
    if of.partial_rotary:
        common["partial_rotary_factor"] = _share(rotated, head)
    factor = number("scaling.factor", number("scale_linear", 1.0))
    kind = file.get(f"{prefix}scaling.type", str, "linear")
    original = file.get(f"{prefix}scaling.original_context_length", int, context)
    finetuned = file.get(f"{prefix}scaling.finetuned", bool, True)  # how the model was trained
    if file.architecture == "granite" and not finetuned:  # llama.cpp then rotates nothing
        raise _unsupported(file, "rope.scaling.finetuned false (no rotary embedding)")
    sizes = number("scaling.attn_factor", 1.0)
    if kind not in _TYPES or original < 1:
        raise _unsupported(file, f"rope.scaling.type {kind!r}, original_context_length {original}")
    tables = {name: file.tensor(f"rope_{name}.weight") for name in ("freqs", "factors_long", "factors_short")}
    values = {name: floats(tensor).tolist() for name, tensor in tables.items() if tensor is not None}
    for name, table in values.items():
        if len(table) != rotated // 2 or not all(0 < value < math.inf for value in table):
            raise ModelFileError(f"{file.path}: rope_{name}.weight: expected {rotated // 2} positive numbers")
    plain = kind in ("none", "linear") and factor == 1 and sizes == 1
    if values.keys() == {"factors_long", "factors_short"} and kind in ("linear", "longrope") and factor == 1:
        scheme = {
            "rope_type": "longrope",
            "short_factor": values["factors_short"],
            "long_factor": values["factors_long"],
            "original_max_position_embeddings": original,
            "attention_factor": sizes,
        }
        return {**common, **_supported(scheme, "longrope", file, of)}
    if values.keys() == {"freqs"} and plain:
        scheme = _divided(np.asarray(values["freqs"]), common["rope_theta"], context)
        return {**common, **_supported(scheme, "divisors", file, of)}
    if values:
        raise _unsupported(file, f"rope_{min(values)}.weight together with rope.scaling.type {kind!r}")
    if plain:
        return common
    if kind == "linear" and sizes == 1:
        return {**common, **_supported({"rope_type": "linear", "factor": factor}, "linear", file, of)}
    if kind == "yarn" and sizes == 1:
        scheme = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        for ours, theirs in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
            if file.has(f"rope.scaling.{theirs}"):
                scheme[ours] = number(f"scaling.{theirs}", 1.0)
        if file.architecture == "gpt-oss":
            scheme["truncate"] = False  # as its transformers config states, which the file does not
        return {**common, **_supported(scheme, "yarn", file, of)}
    raise _unsupported(file, f"rope.scaling.type {kind!r} with factor {factor}, attn_factor {sizes}")


def _share(part: int, whole: int) -> float:
    """Return the factor with which transformers computes a number of rotated values."""
    factor = part / whole
    return factor if int(whole * factor) == part else math.nextafter(factor, 1)


def _divided(divisors: np.ndarray[Any, Any], base: float, context: int) -> dict[str, Any]:
    """Return the scheme of divisors of the frequencies: that of Llama 3 if they are its, else a table of them."""
    if (divisors == 1).all():
        return {}
    factor = float(divisors.max())
    frequencies = base ** -(np.arange(len(divisors)) / len(divisors))
    turns = _LLAMA3["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    if np.allclose(divisors * ((1 - smooth) / factor + smooth), 1, rtol=0, atol=_CLOSE):
        return {"rope_type": "llama3", "factor": factor, **_LLAMA3}
    table = divisors.tolist()
    return {
        "rope_type": "longrope",
        "short_factor": table,
        "long_factor": table,
        "original_max_position_embeddings": context,
        "attention_factor": 1.0,
    }


def _supported(scheme: dict[str, Any], kind: str, file: GgufFile, of: Architecture) -> dict[str, Any]:
    if kind not in of.scalings:
        what = f"rope.scaling.type {kind!r}, rope.scaling.factor {scheme.get('factor')}"
        raise _unsupported(file, "rope_freqs.weight" if kind == "divisors" else what)
    return scheme


def _unsupported(file: GgufFile, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{file.path}: states {what}, which fastreader does not apply to the architecture {file.architecture!r}"
    )
