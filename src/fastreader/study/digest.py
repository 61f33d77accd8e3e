"""Digests of JSON values."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(value: Any, length: int = 16) -> str:
    """Hexadecimal digits, 64 at most, that tell values apart; the order of keys does not matter.

    What is no JSON value, such as a date, goes by its text.
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
