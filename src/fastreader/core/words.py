"""Write counts in words, for people."""

from __future__ import annotations


def counted(count: int, name: str) -> str:
    """Return a count with its noun, whose plural ends in s.

    >>> counted(1, "passage"), counted(0, "passage"), counted(1200, "candidate")
    ('1 passage', '0 passages', '1,200 candidates')
    """
    return f"{count:,} {name}{'' if count == 1 else 's'}"
