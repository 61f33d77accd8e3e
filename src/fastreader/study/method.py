"""What a study asks of a method: a program for each question, and an answer with how it came about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fastreader.core.checks import check_int
from fastreader.core.tree import TreeStats
from fastreader.data import Example
from fastreader.errors import InputError
from fastreader.reader.programs.requests import Program

if TYPE_CHECKING:
    from fastreader.study.cached_reader import CachedReader
    from fastreader.study.config import MethodConfig, Study

NOTHING = TreeStats(0, 0, 0, 0)


class NotApplicable(InputError):
    """A question lacks what a method needs; it is left out of that method's figures, and counted."""


class OverLong(NotApplicable):
    """A prompt that leaves no room in the context for a reply; not asked, and counted by itself.

    Attributes:
        tokens: of the prompt.
    """

    def __init__(self, message: str, tokens: int) -> None:
        super().__init__(message)
        self.tokens = tokens


@dataclass(frozen=True)
class Answered:
    """What a method gave for one question.

    Attributes:
        text: the answer.
        trace: how it came about, JSON values; the report knows "order" (the passages as read: indices into the
            question's, or objects with kind, title and text), "utilities", "observations", "candidates",
            "summaries", "ensemble", "kinds" and "notes".
        direct: tokens of calls that the method made itself, outside of its requests.
        new: tokens written by these.
        seconds: of these; None: what passed until its first request.
    """

    text: str
    trace: dict[str, Any] = field(default_factory=dict)
    direct: TreeStats = NOTHING
    new: int = 0
    seconds: float | None = None


@dataclass(frozen=True)
class Asked:
    """Questions worked on together.

    Attributes:
        reader: answers; what it was asked before comes out of the run's cache.
        examples: the questions, each with an id of its own, passages cut to the study's number.
        seed: for methods that draw.
        everything: all questions of the study, for what is drawn from others.
    """

    reader: CachedReader
    examples: Sequence[Example]
    seed: int
    everything: Sequence[Example]


class StudyMethod(Protocol):
    """A method with its options."""

    @property
    def draws(self) -> bool:
        """Whether the seed matters."""
        ...

    def programs(self, asked: Asked) -> list[Program[Answered]]:
        """A program for each question; it asks the reader by yielding requests, which are packed with others'."""
        ...


@dataclass(frozen=True)
class Family:
    """Methods behind one name, or behind "NAME:VARIANT".

    Attributes:
        name: of the family.
        about: one line.
        variants: names behind the colon, for messages; called when needed, so that nothing loads before.
        make: a method from its variant ("" without one), its options and the study.
    """

    name: str
    about: str
    variants: Callable[[], Sequence[str]]
    make: Callable[[str, dict[str, Any], Study], StudyMethod]


_COUNTS = ("max_new_tokens", "passages", "max_passages")
_LISTS = ("retrievers", "similarities")


def no_options(config: MethodConfig | str, options: dict[str, Any], known: Sequence[str] = ()) -> None:
    """Raise InputError where `options` holds a name that is not `known`, or a value that cannot be."""
    if unknown := sorted(set(options) - set(known)):
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        raise InputError(f"method {config!r}: unknown option {unknown[0]!r}; {takes}")
    for name, value in options.items():
        if name in _COUNTS:
            check_int(f"method {config!r}: {name}", value, json_value=True)
        if name in _LISTS and not (isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)):
            raise InputError(f"method {config!r}: {name}: expected a list of texts, got {value!r}")
