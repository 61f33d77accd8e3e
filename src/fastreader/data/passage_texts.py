"""How data sets write what a passage consists of: its identifier, title and text."""

from __future__ import annotations

from fastreader.core.checks import is_int


def id_text(value: object) -> str:
    """Return an identifier as text, and a whole number without a fraction: pandas reads 7 as 7.0 next to a NaN."""
    whole = is_int(value) or (isinstance(value, float) and value.is_integer() and abs(value) < 2**53)
    return str(int(value)) if whole else str(value)  # type: ignore[call-overload]


def split_contents(contents: str) -> tuple[str, str]:
    """Return title and text of FlashRAG's `contents`: the first line is the title, and a single line is the text."""
    title, newline, text = contents.partition("\n")
    return (title, text) if newline else ("", title)


def titled(title: str | None, text: str) -> tuple[str, str]:
    """Return title and text of a document, whose text is the title if there is no text, as in some rows of BEIR."""
    return (title or "", text) if text.strip() else ("", title or "")
