"""TODO."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fastreader.data import Example
from fastreader.errors import FastreaderError


class Result(Protocol):
    """What every method's result has."""

    @property
    def id(self) -> str | None:
        """The example's identifier."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        ...


@dataclass(frozen=True)
class Asking:
    """What the command line asks of a method; what a method has no use for is left at None.

    Attributes:
        method: its name.
        k: candidates.
        mode: how labels are judged.
        max_summary_tokens: of each summary.
        candidates_prompt: which prompt asks for candidates.
        shots: a file of answered questions.
        weights, encoder: how passages are weighed and compared.
        batch_size: number of questions packed together.
        on_overflow: what to do with prompts that are too long.
        bias, order: MoI's.
        output, resume: file of results, and whether to continue it.
        progress: as everywhere.
        on_error: called for each question that fails; None: raise.
    """

    method: str
    k: int | None
    mode: str | None
    max_summary_tokens: int | None
    candidates_prompt: str | None
    shots: Path | None
    weights: str | None
    encoder: str | None
    batch_size: int | None
    on_overflow: str | None
    bias: Path | None
    order: str | None
    output: Path | None
    resume: bool
    progress: bool | None
    on_error: Callable[[int, Example, FastreaderError], object] | None
