"""The bodies of requests and of errors, `{"error": {"message", "type", "param", "code"}}`.

Fields that other servers know and this one does not use are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, Field, StringConstraints

from fastreader.data.rows import mismatch
from fastreader.errors import FastreaderError, InputError, OutOfBudgetError
from fastreader.integrations.serve.packing import DeadlineError

Text = Annotated[str, StringConstraints(pattern=r"\S")]
Document = str | dict[str, Any]
Tokens = list[int]


class RerankRequest(BaseModel):
    """A body of `/rerank`, as Cohere, Jina and vLLM take it."""

    model: str | None = None
    query: Text
    documents: list[Document] = Field(description="Texts, or objects with a text.")
    top_n: int | None = Field(None, ge=1)
    return_documents: bool = False
    method: str = Field("query_likelihood", description="query_likelihood, moi, or a baseline.")


class ScoreRequest(BaseModel):
    """A body of `/score`: one text or a list on each side, where one text is compared with all of the other side."""

    model: str | None = None
    queries: Text | list[Text] = Field(validation_alias=AliasChoices("queries", "text_1", "query"))
    documents: Document | list[Document] = Field(validation_alias=AliasChoices("documents", "text_2"))


class CompletionRequest(BaseModel):
    """A body of `/v1/completions`."""

    model: str | None = None
    prompt: str | Tokens | list[str] | list[Tokens]
    max_tokens: int = Field(16, ge=0, le=1 << 20)
    temperature: float = Field(1.0, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    n: int = Field(1, ge=1, le=128)
    seed: int | None = None
    stop: str | list[str] | None = None
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, description="0, or 1 for the most likely token at each place of a prompt.")
    stream: bool = False


class ReadRequest(BaseModel):
    """A body of `/v1/read`: how the order of the passages changes the answer."""

    model: str | None = None
    question: Text
    passages: list[Document] = Field(min_length=1, max_length=100)
    candidates: list[Text] | None = Field(
        None, min_length=1, max_length=100, description="Answers to score; by default one generated under each order."
    )
    permutations: str = Field("cyclic", max_length=64, description="A design, such as cyclic, random:12 or latin.")
    seed: int = 0
    max_tokens: int = Field(16, ge=1, le=512, description="Of a generated answer.")


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
