"""Verdicts of earlier checks and trials, kept in the cache folder by weights, versions and arithmetic."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fastreader.data.files import cache_dir, read_object, write_json
from fastreader.data.fingerprints import digest, file_digest, file_stamp
from fastreader.errors import InputError
from fastreader.models.check.probe import Checked, within_limits
from fastreader.models.gguf.weights import formats_of
from fastreader.models.machine.arithmetic import Arithmetic
from fastreader.models.machine.devices import devices_of, main_device
from fastreader.models.tree_model import TreeModel
from fastreader.ops import extension


def verdict_path(model: TreeModel, weights: str, quick: bool = False) -> Path:
    """Return the file for the verdict on a model.

    Its name is a digest of everything that the verdict rests on: weights and class of the model, arithmetic, device,
    instruction set, and the code: fastreader's own of the pass, torch's and transformers' by version.

    Args:
        weights: `models.revision` of it.
        quick: of a quick check, not of a full one.
    """
    how = [model.precision, model.products, model.deterministic, model.forward_path, model.max_length, quick]
    return _path("checks", model.original, weights, how)


def trials_path(model: Any, weights: str, arithmetic: Arithmetic) -> Path:
    """Return the file for what the trials of a model's parts chose, named like that of a verdict.

    Args:
        model: as it was loaded.
        weights: `models.revision` of it.
        arithmetic: with which it runs.
    """
    return _path("trials", model, weights, [arithmetic.precision, arithmetic.products, arithmetic.deterministic])


def is_from_transformers(model: Any) -> bool:
    """Return whether a model's class is transformers' own, since other code may change unnoticed."""
    return type(model).__module__.startswith("transformers.models.")


def _path(kind: str, model: Any, weights: str, how: list[Any]) -> Path:
    import transformers

    devices, main = devices_of(model), main_device(model)
    device = torch.cuda.get_device_name(main) if main.type == "cuda" else "cpu"
    used = {
        "weights": weights,
        "class": type(model).__qualname__,
        "stored": [str(model.dtype), *formats_of(model)],
        "arithmetic": how,
        "device": [device, _instruction_set() if device == "cpu" else ""],
        "places": [str(p.device) for p in model.parameters()] if len(devices) > 1 else [],
        "versions": [torch.__version__, transformers.__version__, code_digest()],
    }
    return cache_dir() / kind / f"{digest(used, 32)}.json"


def known_verdict(path: Path) -> Checked | None:
    """Return the verdict kept in a file, or None if there is no such file, or a check would not have kept it.

    A verdict on a model that is further off than usual because float32 itself is, is no longer known either.
    """
    with contextlib.suppress(InputError):  # the check runs again and replaces it
        kept = read_object(path)
        if set(kept) == {limit.name for limit in fields(Checked)} and within_limits(kept):
            return Checked(**kept)
    return None


def keep_verdict(path: Path, verdict: Checked) -> None:
    """Keep the verdict of a check that passed, unless the cache folder cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, asdict(verdict))
    except OSError:
        return  # the next load checks again


def _instruction_set() -> str:
    return extension.why_missing() or extension.used_instruction_set()


@cache
def code_digest() -> str:
    """Return a digest of the code that a pass runs: core/, models/, ops/ and the compiled extension."""
    package = Path(__file__).parents[2]
    sources = sorted(path for part in ("core", "models", "ops") for path in (package / part).rglob("*.py"))
    compiled = sorted(package.glob("_C*"))
    return digest([[file_digest(path) for path in sources], [(path.name, *file_stamp(path)) for path in compiled]])
