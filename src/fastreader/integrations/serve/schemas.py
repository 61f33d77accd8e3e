"""What requests hold. Fields that other servers know and this one does not use are ignored."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, Field, StringConstraints

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
