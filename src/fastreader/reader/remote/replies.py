"""Check an engine's replies against schemas, so that nothing else is taken for its numbers."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fastreader.errors import EngineError

_ROUNDING = 1e-3  # an engine's rounding may put a log-probability this far above 0
LogProbability = Annotated[float, Field(le=_ROUNDING)]
Count = Annotated[int, Field(ge=0)]
Length = Annotated[int, Field(gt=0)]


class Reply(BaseModel):
    """A reply, or a part of one: fields that are not declared here are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


class ModelMeta(Reply):
    """What llama.cpp's server adds to a model."""

    n_ctx_train: Length | None = None


class ServedModel(Reply):
    """A model that the engine serves."""

    id: str
    max_model_len: Length | None = None
    meta: ModelMeta | None = None


class ServedModels(Reply):
    """The reply to `/v1/models`."""

    data: list[ServedModel] = []


class PromptDetails(Reply):
    """Tokens of the prompt that the engine found in its cache."""

    cached_tokens: Count | None = None


class Usage(Reply):
    """The engine's count of tokens."""

    prompt_tokens: Count | None = None
    prompt_tokens_details: PromptDetails | None = None


class Logprobs(Reply):
    """Log-probabilities of OpenAI's completions, nats."""

    tokens: list[str] | None = None
    token_logprobs: list[LogProbability | None] | None = None
    top_logprobs: list[dict[str, LogProbability] | None] | None = None


class PromptLogprob(Reply):
    """vLLM's entry for one token id at one place of the prompt."""

    logprob: LogProbability


class EngineChoice(Reply):
    """One text of a completion."""

    index: Count = 0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[Count] | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None


class Completion(Reply):
    """The reply to `/v1/completions`."""

    choices: list[EngineChoice] = []
    usage: Usage | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that were in the engine's cache, or None if unknown."""
        details = self.usage and self.usage.prompt_tokens_details
        return details.cached_tokens if details else None


_SglangToken = tuple[LogProbability | None, int, str | None]  # log-probability, token id, text


class SglangMeta(Reply):
    """The numbers of SGLang's reply."""

    input_token_logprobs: list[_SglangToken] = []
    input_top_logprobs: list[list[_SglangToken] | None] | None = None
    cached_tokens: Count | None = None


class SglangReply(Reply):
    """The reply to SGLang's `/generate`."""

    meta_info: SglangMeta = SglangMeta()


ReplyType = TypeVar("ReplyType", bound=Reply)


def parse(body: bytes, kind: type[ReplyType], url: str) -> ReplyType:
    """Return the reply in a body.

    Raises:
        EngineError: if it is no JSON object of this kind, with the address and the field.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        raise EngineError(f"the engine at {url} answered without JSON: {body[:80].decode(errors='replace')!r}")
    place = ".".join(map(str, first["loc"]))
    if not place:
        raise EngineError(f"the engine at {url} answered with {type(first['input']).__name__}, expected an object")
    said = f"{first['msg'][0].lower()}{first['msg'][1:]}, got {str(first['input'])[:80]!r}"
    raise EngineError(f"the engine at {url} answered with a wrong {place}: {said}")
