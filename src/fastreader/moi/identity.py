"""What a measurement is of: reader and template, and whether two measurements are of the same."""

from __future__ import annotations

from collections.abc import Mapping


def differing(
    ours: str, reader: Mapping[str, str], template: str, theirs: str, other: Mapping[str, str], other_template: str
) -> list[str]:
    """What differs, both sides named; an empty reader name, revision or template digest is unknown and not compared.

    Readers of one revision are the same, whatever they are called.

    >>> differing("bias", {"name": "a"}, "t", "scores", {"name": "b"}, "t")
    ["reader: bias 'a', scores 'b'"]
    """
    revision, other_revision = reader.get("revision", ""), other.get("revision", "")
    pairs = [("template", template, other_template)]
    if not revision or revision != other_revision:
        pairs = [("reader", reader.get("name", ""), other.get("name", "")), *pairs]
        pairs += [("the reader's revision", revision, other_revision)]
    return [f"{name}: {ours} {a!r}, {theirs} {b!r}" for name, a, b in pairs if a and b and a != b]
