"""The tables within a study's file: its methods, and what is common to a family of them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fastreader.data.fingerprints import digest


class Strict(BaseModel):
    """A table with the keys it names, and no other."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class MethodConfig(BaseModel):
    """One method of a study; keys beyond these are the method's own options.

    Attributes:
        method: as the registry knows it, such as "moi", "sure:ranking" or "noise:random:4:near".
        name: how results and report call it; `method` by default.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    method: str
    name: str = ""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"method": value} if isinstance(value, str) else value

    @property
    def label(self) -> str:
        """`name`, or `method` where none was given."""
        return self.name or self.method

    @property
    def options(self) -> dict[str, Any]:
        """The method's own options."""
        return dict(self.model_extra or {})

    def digest(self) -> str:
        """16 hexadecimal digits that tell methods with their options apart."""
        return digest({"method": self.method, "options": self.options})


class NoiseConfig(Strict):
    """Where the passages of noise layouts come from.

    Attributes:
        random: a file of passages to draw from, "others" (passages of the study's other questions) or "words"
            (random words out of the study's passages).
        hard_count: hard distractors made for a question; 0: as many as the largest layout takes.
        max_new_tokens: of a reply.
        attention: for so many questions, also where the answers' tokens look (the attention heat map).
        attention_layouts: of these layouts alone; by default of all with passages.
    """

    random: str = "others"
    hard_count: Annotated[int, Field(ge=0)] = 0
    max_new_tokens: Annotated[int, Field(ge=1)] = 15
    attention: Annotated[int, Field(ge=0)] = 0
    attention_layouts: tuple[str, ...] = ()


class EorConfig(Strict):
    """The ensemble's retrievers.

    Attributes:
        retrievers: specifications; the source "R" is the question's own passages. None: a handful of them.
        sources: further sources by name, each a file of passages searched by BM25.
        depth: passages a source returns at most.
        similarities: of the voters, unless a method names its own.
        texts: of the prompts, unless a method has its own: "default", "short" (with examples of short answers, for
            small models), or some attributes of `eor.Texts`; in a study's file also a .json file of these.
        fit: also learn weights, from all of the study's questions; they are shown, and no method votes with them.
    """

    retrievers: tuple[str, ...] | None = None
    sources: dict[str, str] = {}
    depth: Annotated[int, Field(ge=1)] = 20
    similarities: tuple[str, ...] = ("exact", "f1")
    texts: str | dict[str, str] = "default"
    fit: bool = False
