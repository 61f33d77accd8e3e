"""What trials chose for the parts of a model, and the file that spares a later load the trials."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastreader.data.files import read_object, write_json
from fastreader.data.fingerprints import digest
from fastreader.errors import InputError


@dataclass
class Choices:
    """What trials chose.

    Attributes:
        known: they were read, so that nothing is tried.
        made: by the name of the part, in values that JSON holds; None if no choice agreed.
        layers: names of the decoder layers that were tried.
        attention: how each attention layer is called, by its name; None if that is not known.
        step: the dimensions of positions in a step of generation in one call, or why there is no such step.
    """

    known: bool = False
    made: dict[str, Any] = field(default_factory=dict)
    layers: list[str] = field(default_factory=list)
    attention: dict[str, dict[str, Any]] | None = None
    step: int | str | None = None


def read_choices(path: Path | None) -> Choices:
    """Return the choices kept in a file, or none if there is no such file or it is damaged."""
    with contextlib.suppress(InputError):  # the trials run again and replace it
        kept = read_object(path) if path is not None else {}
        if kept.pop("digest", None) == digest(kept, 32):
            return Choices(known=True, **kept)
    return Choices()


def keep_choices(path: Path, choices: Choices) -> None:
    """Keep choices in a file, unless the cache folder cannot be written."""
    with contextlib.suppress(OSError):  # the next load tries again
        path.parent.mkdir(parents=True, exist_ok=True)
        values = {name: value for name, value in vars(choices).items() if name != "known"}
        write_json(path, {**values, "digest": digest(values, 32)})
