"""The bodies of requests and of errors, `{"error": {"message", "type", "param", "code"}, "detail"}`.

A field that is null has its default. A field that another server knows and this one does not is rejected by its name,
unless its value asks for what happens anyway.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from fastreader.data.rows import mismatch
from fastreader.errors import FastreaderError, InputError, OutOfBudgetError
from fastreader.integrations.serve.pass_queue import DeadlineError

Item = TypeVar("Item")
Text = Annotated[str, StringConstraints(pattern=r"\S")]
Document = str | dict[str, Any]
# The first wrong item is enough: an error for each would take more than an answer.
Many = Annotated[list[Item], Field(max_length=10_000, fail_fast=True)]
Prompts = Annotated[list[Item], Field(max_length=2_048, fail_fast=True)]
Tokens = Annotated[list[int], Field(fail_fast=True)]
Stops = Annotated[list[str], Field(max_length=64, fail_fast=True)]
StopTokens = Annotated[list[int], Field(max_length=1_024, fail_fast=True)]
Temperature = Annotated[float, Field(ge=0, allow_inf_nan=False)]

# Fields that change no answer, and values of others that ask for what this server does anyway.
_HARMLESS = frozenset(
    {
        *("cache_salt", "metadata", "parallel_tool_calls", "prediction", "priority", "prompt_cache_key"),
        *("prompt_cache_retention", "request_id", "safety_identifier", "service_tier", "store", "truncate"),
        *("truncation", "truncation_direction", "user", "name", "refusal", "annotations"),
    }
)
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (True,),
    "best_of": (1,),
    "continue_final_message": (False,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "raw_scores": (False,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "suffix": ("",),
    "tool_calls": ([],),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_activation": (True,),
    "use_beam_search": (False,),
}


class Body(BaseModel):
    """The fields of an object in a request."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, values: Any) -> Any:
        """Leave out nulls and fields without an effect, and reject other fields that this server does not have."""
        if not isinstance(values, dict):
            return values
        kept = {}
        for name, value in values.items():
            if name in _names(cls):
                if value is not None:
                    kept[name] = value
            elif value is not None and name not in _HARMLESS and value not in _NEUTRAL.get(name, ()):
                raise refusal(f"{name[:60]}: this server does not have this option, leave it out")
        return kept


@cache
def _names(body: type[BaseModel]) -> frozenset[str]:
    """Return the names by which a request may give the fields of a body."""
    names = set(body.model_fields)
    for info in body.model_fields.values():
        if isinstance(info.validation_alias, AliasChoices):
            names |= {str(name) for name in info.validation_alias.choices}
    return frozenset(names)


def refusal(message: str, status: int = 400) -> PydanticCustomError:
    """Return the error of a validator that is answered with a given message and status."""
    return PydanticCustomError("refused", "{message}", {"message": message, "status": status})


class RerankRequest(Body):
    """A body of `/rerank`, as Cohere, Jina and vLLM take it, or with `texts`, as text-embeddings-inference does."""

    model: str | None = None
    query: Text
    documents: Many[Document] = Field(default=[], description="Texts, or objects with a text.")
    texts: Many[str] | None = Field(None, description="Instead of documents; the response is then a list.")
    top_n: int | None = Field(None, ge=0, description="0 returns all.")
    return_documents: bool = Field(False, validation_alias=AliasChoices("return_documents", "return_text"))
    max_tokens_per_doc: int | None = Field(None, ge=1, description="Read at most this many tokens of each document.")
    method: str | None = Field(
        None, description="relevance, query_likelihood, yes_no, moi, or a baseline; by default the model's own."
    )
    instruction: str | None = Field(None, description="What makes a document relevant.")
    raw_scores: bool = Field(False, description="Of texts: return scores before their sigmoid.")

    @model_validator(mode="after")
    def _one_list(self) -> RerankRequest:
        if ("documents" in self.model_fields_set) == ("texts" in self.model_fields_set):
            both = "only one of documents and texts" if self.texts is not None else "expected, but missing"
            raise refusal(f"documents: {both}", 422)
        return self


class ScoreRequest(Body):
    """A body of `/score`: one text or a list on each side, where one text is compared with all of the other side."""

    model: str | None = None
    queries: Text | Many[Text] = Field(validation_alias=AliasChoices("queries", "text_1", "query", "data_1"))
    documents: Document | Many[Document] = Field(
        validation_alias=AliasChoices("documents", "text_2", "data_2", "items")
    )
    instruction: str | None = Field(None, description="What makes a document relevant.")


class StreamOptions(Body):
    """What a stream holds besides texts."""

    include_usage: bool = False
    include_obfuscation: bool = False  # without effect on the texts


class Generated(Body):
    """Fields of texts to generate."""

    model: str | None = None
    temperature: Temperature = 1.0
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, description="0 and -1 keep all tokens.")
    n: int = Field(1, ge=1, le=128)
    seed: int | None = None
    stop: str | Stops | None = None
    stop_token_ids: StopTokens | None = None
    stream: bool = Field(False, description="Send the text as server-sent events while it is generated.")
    stream_options: StreamOptions | None = None


class CompletionRequest(Generated):
    """A body of `/v1/completions`."""

    prompt: str | Tokens | Prompts[str] | Prompts[Tokens]
    max_tokens: int = Field(16, ge=0, le=1 << 20)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=20, description="Number of most likely tokens to return at each place.")


class Message(Body):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str = Field("", description="A text, or a list of parts of type text.")

    @model_validator(mode="before")
    @classmethod
    def _join(cls, values: Any) -> Any:
        """Join the parts of a content."""
        parts = values.get("content") if isinstance(values, dict) else None
        if not isinstance(parts, list):
            return values
        for part in parts:
            kind = part.get("type") if isinstance(part, dict) else part
            if kind not in ("text", "input_text") or not isinstance(part.get("text"), str):
                raise refusal(f"messages: expected parts of type text with a text, got one of type {str(kind)[:40]!r}")
        return {**values, "content": "".join(part["text"] for part in parts)}


class ChatRequest(Generated):
    """A body of `/v1/chat/completions`."""

    messages: Many[Message] = Field(min_length=1)
    max_tokens: int = Field(512, ge=1, le=1 << 20, validation_alias=AliasChoices("max_completion_tokens", "max_tokens"))
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)
    chat_template_kwargs: dict[str, Any] = Field(default={}, description="Variables of the chat template.")


class TokenizeRequest(Body):
    """A body of `/tokenize`, as vLLM takes it: a prompt of `/v1/completions`, or messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Many[Message] | None = Field(None, min_length=1)
    add_special_tokens: bool | None = Field(None, description="True by default for a prompt; a chat writes its own.")
    return_token_strs: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default={}, description="Variables of the chat template.")

    @model_validator(mode="after")
    def _one_text(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise refusal("prompt: expected a prompt or messages, and not both", 422)
        if self.messages is not None and self.add_special_tokens:
            raise refusal("add_special_tokens: expected false with messages, whose template writes them", 422)
        return self


class DetokenizeRequest(Body):
    """A body of `/detokenize`, as vLLM takes it."""

    model: str | None = None
    tokens: Tokens


class ReadRequest(Body):
    """A body of `/v1/read`: how the order of the passages changes the answer."""

    model: str | None = None
    question: Text
    passages: Annotated[list[Document], Field(fail_fast=True)] = Field(min_length=1, max_length=100)
    candidates: Annotated[list[Text], Field(fail_fast=True)] | None = Field(
        None, min_length=1, max_length=100, description="Answers to score; by default one generated under each order."
    )
    aliases: dict[str, Annotated[list[Text], Field(min_length=1, max_length=100, fail_fast=True)]] = Field(
        default={}, max_length=100, description="Other names of candidates, by candidate, to find contradictions."
    )
    permutations: str = Field("cyclic", max_length=64, description="A design, such as cyclic, random:12 or latin.")
    seed: int = 0
    max_tokens: int = Field(16, ge=1, le=512, description="Of a generated answer.")
    attribute: bool = Field(False, description="Also say what each passage contributes to the answer.")

    @model_validator(mode="after")
    def _known(self) -> ReadRequest:
        """Reject aliases of what is no candidate, which would have no effect."""
        for name in self.aliases:
            if name not in (self.candidates or []):
                raise refusal(f"aliases: expected candidates as keys, got {name[:60]!r}", 422)
        return self


_PARAMETER = re.compile(r"^([A-Za-z_]\w*)(\[\d+\])*:")


class Refusal(Exception):
    """A request that is rejected, with its status."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


def error_body(message: str, kind: str, *, code: int, param: str | None = None) -> bytes:
    """Return the body of an error response."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json.dumps({"error": error, "detail": message}).encode()  # some clients of Jina read `detail`


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
    if first["type"] == "refused":
        return int(first["ctx"]["status"]), str(first["ctx"]["message"])
    place = _place(first["loc"])
    if first["type"] == "too_long":
        context = first["ctx"]
        return 422, f"{place}: expected at most {context['max_length']:,} items, got {len(first['input']):,}"
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
