"""Checkpoints of a distillation run: a folder each, whole or not there."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from fastreader.errors import InputError, ModelFileError
from fastreader.moi.distill.student import Student

_PREFIX = "checkpoint-"
_DAMAGED = (
    OSError,
    EOFError,
    KeyError,
    RuntimeError,
    json.JSONDecodeError,
    UnicodeDecodeError,
    pickle.UnpicklingError,
    SafetensorError,
)


def save(
    folder: Path, student: Student, optimiser: torch.optim.Optimizer, state: dict[str, Any], keep: int = 2
) -> Path:
    """Write adapter, optimiser and `state` (with its "step") in one rename; older checkpoints but `keep` go.

    Returns:
        The checkpoint's folder, ``checkpoint-<step>``; PEFT can load the adapter in it.
    """
    target = folder / f"{_PREFIX}{state['step']:06d}"
    making = folder / f".{target.name}.making"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    student.save_adapter(making)
    torch.save(optimiser.state_dict(), making / "optimiser.pt")
    (making / "state.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    making.rename(target)
    for old in _all(folder)[:-keep]:
        shutil.rmtree(old)
    return target


def latest(folder: Path) -> Path | None:
    """The checkpoint of the highest step; None where there is none."""
    return found[-1] if (found := _all(folder)) else None


def restore(
    checkpoint: Path, student: Student, optimiser: torch.optim.Optimizer, made: dict[str, Any]
) -> dict[str, Any]:
    """Put a checkpoint's adapter and optimiser back; returns its state.

    Args:
        checkpoint: from `latest`.
        student, optimiser: as they were when it was written.
        made: what the run depends on; must be what the state says under "made".

    Raises:
        InputError: the checkpoint is of a run with other settings (they are named).
        ModelFileError: a file of it is damaged or missing.
    """
    try:
        state: dict[str, Any] = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
        theirs = state["made"]
        if theirs != made:
            names = sorted(k for k in theirs.keys() | made.keys() if theirs.get(k) != made.get(k))
            told = ", ".join(f"{k} ({theirs.get(k)!r} there, {made.get(k)!r} now)" for k in names)
            raise InputError(f"{checkpoint}: made with other settings: {told}")
        student.set_adapter(load_file(checkpoint / "adapter_model.safetensors", device=str(student.device)))
        optimiser.load_state_dict(
            torch.load(checkpoint / "optimiser.pt", map_location=student.device, weights_only=True)
        )
    except _DAMAGED as error:
        told = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise ModelFileError(f"{checkpoint}: a checkpoint's file is damaged or missing ({told})") from error
    return state


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_PREFIX}*")) if folder.is_dir() else []
