"""What a measurement is of: reader and template, and whether two measurements are of the same."""

from __future__ import annotations

from collections.abc import Mapping


def differing(
    ours: str, reader: Mapping[str, str], template: str, theirs: str, other: Mapping[str, str], other_template: str
) -> list[str]:
    """What differs, both sides named; an empty reader name or template digest is unknown and not compared.

    >>> differing("bias", {"name": "a"}, "t", "scores", {"name": "b"}, "t")
    ["reader: bias 'a', scores 'b'"]
    """
    pairs = (
        ("reader", reader.get("name", ""), other.get("name", "")),
        ("template", template, other_template),
    )
    return [f"{name}: {ours} {a!r}, {theirs} {b!r}" for name, a, b in pairs if a and b and a != b]
