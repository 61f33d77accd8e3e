"""What a measurement is of: reader and template, and whether two measurements are of the same."""

from __future__ import annotations

from collections.abc import Mapping


def differing(
    ours: str, reader: Mapping[str, str], template: str, theirs: str, other: Mapping[str, str], other_template: str
) -> list[str]:
    """What differs, both sides named; an empty reader name or template digest is unknown and not compared.

    Readers of one revision are the same, whatever they are called. A packaged model has none, so that a reader of its
    name which has one is another.

    >>> differing("bias", {"name": "a"}, "t", "scores", {"name": "b"}, "t")
    ["reader: bias 'a', scores 'b'"]
    >>> differing("bias", {"name": "a"}, "t", "scores", {"name": "a", "revision": "0a1b"}, "t")
    ["the reader's revision: bias '', scores '0a1b'"]
    """
    name, other_name = reader.get("name", ""), other.get("name", "")
    revision, other_revision = reader.get("revision", ""), other.get("revision", "")
    pairs = []
    if not revision or revision != other_revision:
        pairs.append(("reader", name, other_name, bool(name and other_name)))
        known = bool(revision and other_revision) or name == other_name != ""
        pairs.append(("the reader's revision", revision, other_revision, known))
    pairs.insert(1, ("template", template, other_template, bool(template and other_template)))
    return [f"{what}: {ours} {a!r}, {theirs} {b!r}" for what, a, b, known in pairs if known and a != b]
