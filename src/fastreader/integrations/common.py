"""What the integrations share: a reader by name, loaded when it is first needed."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

NOTE = "fastreader_note"  # the key of a result's note in metadata


@lru_cache(maxsize=2)
def named_reader(model: str, device: str, dtype: str, precision: str) -> Any:
    """Return the reader of that name; two stay loaded."""
    from fastreader.reader.reader import Reader

    return Reader.load(model, device=device, dtype=dtype, precision=precision)
