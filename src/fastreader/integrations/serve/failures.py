"""Errors as responses: `{"error": {"message", "type", "param", "code"}}` with the status that clients expect."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from fastreader.data.rows import mismatch
from fastreader.errors import FastreaderError, InputError, OutOfBudgetError
from fastreader.integrations.serve.packing import DeadlineError

_PARAMETER = re.compile(r"^([A-Za-z_]\w*)(\[\d+\])*:")


class Refusal(Exception):
    """A request that is rejected, with its status."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


def error_body(message: str, kind: str, *, code: int, param: str | None = None) -> bytes:
    """Return the body of an error response."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()


def status_of(error: FastreaderError) -> tuple[int, str]:
    """Return the status and type of an error: the caller's fault, the server's load, or neither."""
    if isinstance(error, DeadlineError):
        return 504, "timeout_error"
    if isinstance(error, InputError):
        return 422, "invalid_request_error"
    if isinstance(error, OutOfBudgetError):
        return 413, "invalid_request_error"
    return 500, "server_error"


def explained(errors: Sequence[Any]) -> tuple[int, str]:
    """Return the status and message for what pydantic found wrong with a body: its first field, and what it takes."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return 400, f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}"
    if isinstance(first["input"], bytes):  # FastAPI parses a body only if its header says JSON
        return 415, "the body is not announced as JSON; send the header Content-Type: application/json"
    place = _place(first["loc"])
    if first["type"] == "missing":
        return 422, f"{place or 'body'}: expected, but missing"
    return 422, f"{place or 'body'}: {mismatch([error for error in errors if _place(error['loc']) == place])}"


def _place(parts: Sequence[Any]) -> str:
    """Return a field's name with its indices, without the names of a union's types."""
    place = ""
    for part in parts[1:]:
        if isinstance(part, int):
            place += f"[{part}]"
        elif not place:
            place = str(part)
    return place


def parameter_of(message: str) -> str | None:
    """Return the argument that a message begins with, or None if it begins without a name."""
    found = _PARAMETER.match(message)
    return found[1] if found else None
