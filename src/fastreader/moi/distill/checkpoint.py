"""Checkpoints of a distillation run: one folder each, complete or absent."""

from __future__ import annotations

import contextlib
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from fastreader.core.checks import require
from fastreader.data.files import read_object, write_json
from fastreader.errors import InputError, ModelFileError
from fastreader.moi.distill.student import Student

_PREFIX = "checkpoint-"
_DAMAGED = (OSError, EOFError, KeyError, RuntimeError, InputError, pickle.UnpicklingError, SafetensorError)


def save(
    folder: Path, student: Student, optimiser: torch.optim.Optimizer, state: dict[str, Any], keep: int = 2
) -> Path:
    """Write adapter, optimiser and `state` (with its "step") in one rename, and delete all but `keep` checkpoints.

    Returns:
        The checkpoint's folder, ``checkpoint-<step>``; PEFT can load the adapter in it.
    """
    target = folder / f"{_PREFIX}{state['step']:06d}"
    making = folder / f".{target.name}.making"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    student.save_adapter(making)
    torch.save(optimiser.state_dict(), making / "optimiser.pt")
    write_json(making / "state.json", state)
    shutil.rmtree(target, ignore_errors=True)
    making.rename(target)
    for old in _all(folder)[:-keep]:
        shutil.rmtree(old)
    return target


def latest(folder: Path) -> Path | None:
    """Return the checkpoint of the highest step, or None if there are no checkpoints."""
    return found[-1] if (found := _all(folder)) else None


def restore(
    checkpoint: Path, student: Student, optimiser: torch.optim.Optimizer, made: dict[str, Any]
) -> dict[str, Any]:
    """Restore adapter and optimiser from a checkpoint, and return its state.

    Args:
        checkpoint: from `latest`.
        student, optimiser: configured as when it was written.
        made: the settings of the run; must equal the state's "made".

    Raises:
        InputError: if the checkpoint belongs to a run with other settings; the message names them.
        ModelFileError: if one of its files is damaged or missing.
    """
    with _reading(checkpoint):
        state = read_object(checkpoint / "state.json")
        theirs = state["made"]
    names = sorted(k for k in theirs.keys() | made.keys() if theirs.get(k) != made.get(k))
    differing = ", ".join(f"{k} ({theirs.get(k)!r} there, {made.get(k)!r} now)" for k in names)
    require(theirs == made, f"{checkpoint}: made with other settings: {differing}")
    with _reading(checkpoint):
        student.set_adapter(load_file(checkpoint / "adapter_model.safetensors", device=str(student.device)))
        optimiser.load_state_dict(
            torch.load(checkpoint / "optimiser.pt", map_location=student.device, weights_only=True)
        )
    return state


@contextlib.contextmanager
def _reading(checkpoint: Path) -> Iterator[None]:
    """Turn any error of a checkpoint's files into a ModelFileError that names the checkpoint."""
    try:
        yield
    except _DAMAGED as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise ModelFileError(f"{checkpoint}: a checkpoint's file is damaged or missing ({reason})") from error


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_PREFIX}*")) if folder.is_dir() else []
