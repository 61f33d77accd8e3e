"""PromptTexts: the base of every template, and ChatTexts: of those with settings for the chat."""

from __future__ import annotations

import dataclasses
import os
import string
from collections.abc import Mapping, Set
from typing import Any, ClassVar, Self

from fastreader.core.checked import checked
from fastreader.core.checks import check_json, check_keys, expect, located, rejecting, require
from fastreader.data.files import read_object
from fastreader.data.fingerprints import digest


@checked
class PromptTexts:
    """Base of frozen dataclasses of prompt texts: fields are checked, and a file can replace any text.

    A text whose default has fields is a format string: it must hold these fields, and literal braces are doubled. Any
    other text stands in the prompt as it is, braces included.

    Attributes:
        OPTIONAL: by text, the fields that it may leave out, or add to those in its default.
        REQUIRED: by text without a default, the fields that it must hold.

    Raises:
        InputError: if a value has another type, or a text lacks a field or uses an unknown one; the message names it.
    """

    OPTIONAL: ClassVar[Mapping[str, Set[str]]] = {}
    REQUIRED: ClassVar[Mapping[str, Set[str]]] = {}

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            name, value = f"{type(self).__name__}.{item.name}", getattr(self, item.name)
            expected, kinds = _KINDS[str(item.type)]
            expect(isinstance(value, kinds), name, expected, value)
            if isinstance(value, str):
                check_fields(name, value, *_fields_of(type(self), item))
            elif isinstance(value, dict):
                expect(all(isinstance(key, str) for key in value), name, "names as keys", value)
                check_json(name, value)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a TOML or JSON file with some of the attributes, where the others keep their defaults.

        Raises:
            InputError: if the file is not TOML or JSON, has an unknown key, or a text is invalid.
        """
        values = read_object(path, (".toml", ".json"))
        with located(os.fspath(path)):
            return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Create from values by name, with defaults for attributes that are left out.

        Raises:
            InputError: if a name is unknown or a value is invalid.
        """
        check_keys(cls.__name__, values, [item.name for item in dataclasses.fields(cls)])  # type: ignore[arg-type]
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes, as `load` and `from_dict` read them."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    def digest(self) -> str:
        """Return 16 hexadecimal digits that distinguish templates, as results carry them."""
        known: str | None = self.__dict__.get("_digest")
        if known is None:
            known = digest(self.to_dict())
            if not any(isinstance(value, dict) and value for value in self.__dict__.values()):  # nothing can change
                object.__setattr__(self, "_digest", known)
        return known


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatTexts(PromptTexts):
    """Base of templates that choose how the model's chat template is applied.

    Attributes:
        chat: whether to use the chat template; None uses it if the model has one.
        system: system message of the chat; None uses the chat template's default.
        chat_options: further variables for the chat template, such as {"enable_thinking": False}. A chat template
            whose generation prompt does not directly precede an answer, for example because it opens the model's
            thinking, is rejected unless the template says how the answer begins ("" if nothing is missing).
    """

    chat: bool | None = None
    system: str | None = None
    chat_options: dict[str, Any] = dataclasses.field(default_factory=dict)


def check_fields(name: str, text: str, required: Set[str], optional: Set[str]) -> None:
    """Check that `text` is a format string with the fields it must have and no others.

    Raises:
        InputError: naming the text and the field.
    """
    if not required | optional:
        return
    with rejecting(f"{name}: {text!r} is not a format string", ValueError):
        parts = _parts(text)
    used = {str(key) for _, key, _, _ in parts}
    problem = ""
    if any(spec or conversion for _, _, spec, conversion in parts):
        problem = "fields must be plain, such as {question}, without ':' or '!'"
    elif unknown := sorted(used - required - optional):
        problem = f"unknown fields {unknown}; it may use {sorted(required | optional)}"
    elif missing := sorted(required - used):
        problem = f"the field {{{missing[0]}}} must appear in it"
    require(not problem, f"{name}: {problem}, got {text!r}")


def _fields_of(texts: type[PromptTexts], item: dataclasses.Field[Any]) -> tuple[Set[str], Set[str]]:
    """Return the fields that a text must hold, and those that it may hold."""
    used = {str(key) for _, key, _, _ in _parts(item.default)} if isinstance(item.default, str) else set()
    optional = texts.OPTIONAL.get(item.name, frozenset())
    return used - optional | texts.REQUIRED.get(item.name, frozenset()), optional


def _parts(text: str) -> list[tuple[str, str | None, str | None, str | None]]:
    return [part for part in string.Formatter().parse(text) if part[1] is not None]


_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "str": ("text", (str,)),
    "str | None": ("text or None", (str, type(None))),
    "int | None": ("an integer or None", (int, type(None))),
    "bool": ("True or False", (bool,)),
    "bool | None": ("True, False or None", (bool, type(None))),
    "dict[str, Any]": ("names with values", (dict,)),
}
