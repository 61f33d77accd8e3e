"""TODO."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fastreader.data import Example, Passage
from fastreader.errors import InputError

PassageLike = Passage | str


def as_example(
    question: str | Example, passages: Sequence[PassageLike] | None, candidates: Sequence[str] | None
) -> Example:
    """What `score_permutations` is given for one question, as an example.

    Raises:
        InputError: passages twice, or one in place of a list.
    """
    if isinstance(question, Example):
        if passages is not None:
            raise InputError("passages: expected None with an Example, which brings its own")
        return with_candidates(question, candidates)
    if isinstance(passages, (str, bytes, Passage)):
        raise InputError(f"passages: expected a list of passages, got one {type(passages).__name__}")
    return with_candidates(Example(question, list(passages) if passages is not None else []), candidates)  # type: ignore[arg-type]


def with_candidates(example: Example, candidates: Sequence[str] | None) -> Example:
    """The example with `candidates` in place of its own, and texts among its passages made passages."""
    if isinstance(candidates, (str, bytes)):
        raise InputError("candidates: expected a list of texts, got one text")
    return replace(
        example,
        passages=[_as_passage(p) for p in example.passages],
        candidates=example.candidates if candidates is None else list(candidates),
    )


def _as_passage(passage: Any) -> Any:
    return Passage(passage) if isinstance(passage, str) else passage  # anything else is refused by check_example


def check_example(example: Example, question_only: bool, where: str) -> None:
    """Refuse a question, passages or candidates that cannot be scored.

    Raises:
        InputError: `where` names the example.
    """
    if not isinstance(example.question, str) or not example.question.strip():
        raise InputError(f"{where}: question must be a text with more than white space, got {example.question!r}")
    if not example.passages:
        raise InputError(f"{where}: expected at least one passage, got none")
    for p, passage in enumerate(example.passages):
        if not isinstance(passage, Passage):
            raise InputError(f"{where}: passages[{p}] must be a Passage or a text, got {type(passage).__name__}")
        if not isinstance(passage.text, str) or not isinstance(passage.title, str):
            raise InputError(f"{where}: text and title of passages[{p}] must be texts, got {passage!r}")
        if not passage.text.strip():
            raise InputError(f"{where}: passages[{p}] is empty")
    if not example.candidates and not question_only:
        raise InputError(
            f"{where}: expected at least one candidate, got none; question_only=True scores the question alone"
        )
    for k, candidate in enumerate(example.candidates):
        if not isinstance(candidate, str) or not candidate.strip():
            raise InputError(f"{where}: candidates[{k}] must be a text with more than white space, got {candidate!r}")


def make_passages(passages: Iterable[Passage | str]) -> list[Passage]:
    """Passages, from passages or plain texts.

    Raises:
        InputError: something else is among them.
    """
    if isinstance(passages, (str, Passage)) or not isinstance(passages, Iterable):
        raise InputError(f"passages: expected a list, got {type(passages).__name__}")
    out = []
    for index, passage in enumerate(passages):
        if not isinstance(passage, (str, Passage)):
            raise InputError(f"passages[{index}]: expected a Passage or text, got {type(passage).__name__}")
        out.append(Passage(passage) if isinstance(passage, str) else passage)
    return out


def make_question(question: str) -> str:
    """The question, checked.

    Raises:
        InputError: no text, or nothing in it.
    """
    if not isinstance(question, str) or not question.strip():
        raise InputError(f"question: expected text, got {question!r}")
    return question.strip()
