"""Checked prompt texts, and the small texts that prompts are filled with."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fastreader.errors import InputError

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_PLACEHOLDERS = "xyzwvutsrqponmlkjihgfedcba"
MOST_CANDIDATES = 26  # letters there are


def number_word(number: int) -> str:
    """A small number in words.

    >>> number_word(2)
    'two'
    """
    return _NUMBERS[number] if 0 <= number < len(_NUMBERS) else str(number)


def letter(index: int) -> str:
    """The marker of candidate `index`, from 0: "(a)", "(b)", ..."""
    return f"({string.ascii_lowercase[index]})"


def placeholders(number: int) -> list[str]:
    """What stands for candidates in the answer format: "xx", "yy", ..."""
    return [2 * _PLACEHOLDERS[i] for i in range(number)]


def answer_form(number: int) -> str:
    """The answer format asked for.

    >>> answer_form(2)
    '(a) xx, (b) yy'
    """
    return ", ".join(f"{letter(i)} {text}" for i, text in enumerate(placeholders(number)))


def choices(candidates: Sequence[str]) -> str:
    """Candidates with their letters.

    >>> choices(["the Nile", "the Seine"])
    '(a) the Nile (b) the Seine'
    """
    return " ".join(f"{letter(i)} {text}" for i, text in enumerate(candidates))


class Texts:
    """Base of frozen dataclasses of prompt texts: fields are checked, `to_dict` and `from_dict` are inverse."""

    FIELDS: ClassVar[dict[str, tuple[set[str], set[str]]]]  # of each piece: must have, may have

    def __post_init__(self) -> None:
        for name, (required, optional) in self.FIELDS.items():
            check_fields(f"{type(self).__name__}.{name}", getattr(self, name), required, optional)

    def to_dict(self) -> dict[str, Any]:
        """All texts by name."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Any:
        """From texts by name; what is left out keeps its default.

        Raises:
            InputError: an unknown name, or a text without the fields it needs.
        """
        known = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
        if unknown := sorted(set(values) - set(known)):
            raise InputError(f"{cls.__name__}: unknown texts {', '.join(unknown)}; it has {', '.join(known)}")
        return cls(**values)


def check_fields(name: str, text: Any, required: set[str], optional: set[str]) -> None:
    """Raise InputError unless `text` is a format string with the fields it must have and no others.

    Where it has none, it is no format string: it stands in the prompt as it is, braces and all.
    """
    if not isinstance(text, str):
        raise InputError(f"{name}: expected text, got {type(text).__name__}")
    if not required | optional:
        return
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise InputError(f"{name}: {text!r} is not a format string ({error})") from error
    used = {str(key) for _, key, _, _ in parts if key is not None}
    if any(spec or conversion for _, key, spec, conversion in parts if key is not None):
        raise InputError(f"{name}: fields stand alone, as {{question}}, without ':' or '!'; got {text!r}")
    if missing := sorted(required - used):
        raise InputError(f"{name}: the field {{{missing[0]}}} must appear in it, got {text!r}")
    if extra := sorted(used - required - optional):
        raise InputError(f"{name}: unknown fields {extra}; it may use {sorted(required | optional)}")
