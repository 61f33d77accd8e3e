"""How data sets write what a passage consists of: its identifier, title and text."""

from __future__ import annotations

from collections.abc import Sequence

from fastreader.core.checks import is_int


def id_text(value: object) -> str:
    """Return an identifier as text, and a whole number without a fraction: pandas reads 7 as 7.0 next to a NaN."""
    whole = is_int(value) or (isinstance(value, float) and value.is_integer() and abs(value) < 2**53)
    return str(int(value)) if whole else str(value)  # type: ignore[call-overload]


def split_contents(contents: str) -> tuple[str, str]:
    """Return title and text of FlashRAG's `contents`: the first line is the title, and a single line is the text.

    Corpora of Wikipedia have the title in double quotes, as pyserini's do.
    """
    title, newline, text = contents.partition("\n")
    quoted = split_quoted(contents)
    return quoted if quoted[0] else (title, text) if newline else ("", title)


def with_contents(title: str, text: str) -> str:
    """Return title and text as `contents` from which `split_contents` reads them."""
    quoted = len(title) > 2 and title[0] == title[-1] == '"'  # its own quotes, not a corpus's
    return f'"{title}"\n{text}' if quoted else f"{title}\n{text}"


def split_quoted(text: str) -> tuple[str, str]:
    """Return title and text of a Wikipedia passage of pyserini, whose first line is the title in double quotes."""
    first, newline, rest = text.partition("\n")
    quoted = newline and len(first) > 2 and first[0] == first[-1] == '"'
    return (first[1:-1], rest) if quoted else ("", text)


def joined_sentences(sentences: Sequence[str]) -> str:
    """Return sentences as one text, with a space between two that have none, as in 2WikiMultihopQA."""
    text = ""
    for sentence in sentences:
        gap = bool(text) and not text[-1].isspace() and bool(sentence) and not sentence[0].isspace()
        text += " " * gap + sentence
    return text


def titled(title: str | None, text: str) -> tuple[str, str]:
    """Return title and text of a document, whose text is the title if there is no text, as in some rows of BEIR."""
    return (title or "", text) if text.strip() else ("", title or "")
