"""Seeded damage to the bytes of a file: what a broken disk, a bad editor or a hostile author leaves."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from typing import Any

ODD: list[Any] = [
    None, True, False, 0, -1, 2**31, 2**63, -(2**63), 10**400, 1e308, float("nan"), float("inf"), "", " ",
    "\x00", "\ud800", "\x1b[2J", "x" * 5000, [], {}, [[]], {"": None}, [None], ["a", 1], {"question": []},
]  # fmt: skip


def truncate(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def flip(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 4, 32))):
        if out:
            out[chance.randrange(len(out))] ^= 1 << chance.randrange(8)
    return bytes(out)


def not_unicode(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice((b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\x80", b"\x00")) + data[at:]


def repeat(data: bytes, chance: random.Random) -> bytes:
    """A slice twice: keys, lines and sections that come again."""
    start = chance.randrange(len(data) + 1)
    end = chance.randrange(start, min(len(data), start + 200) + 1)
    return data[:end] + data[start:end] + data[end:]


def lines(data: bytes, chance: random.Random) -> bytes:
    """Lines in another order, doubled or lost."""
    found = data.splitlines(keepends=True)
    if found:
        found.insert(chance.randrange(len(found) + 1), chance.choice(found))
        del found[chance.randrange(len(found))]
    return b"".join(found)


def empty(data: bytes, chance: random.Random) -> bytes:
    return chance.choice(
        (b"", b"\n", b"\n\n\n", b" ", b"\xef\xbb\xbf", b"null", b"[]", b"{}", b"0", b'"x"', b"[[", b"\x1f\x8b")
    )


def deep(data: bytes, chance: random.Random) -> bytes:
    depth = chance.choice((100, 2000, 100_000))
    opened = chance.choice((b"[", b'{"a":', b"- "))
    at = chance.randrange(len(data) + 1)
    return chance.choice((opened * depth, data[:at] + opened * depth + data[at:], opened * depth + b"]" * depth))


def value(data: bytes, chance: random.Random) -> bytes:
    """A JSON value of another type, a key that is missing, doubled or new. Other formats get an odd number."""
    rows = data.splitlines() or [b""]
    whole = len(rows) == 1 or rows[0].strip() in (b"{", b"[")
    at = 0 if whole else chance.randrange(len(rows))
    try:
        row = json.loads(data if whole else rows[at])
    except (RecursionError, ValueError):
        numbers = (b"nan", b"1e999", b"-0", b"9" * 5000, b"true", b"'", b"2000-99-99", b"&a [*a]")
        spot = chance.randrange(len(data) + 1)
        return data[:spot] + chance.choice(numbers) + data[spot + chance.randrange(8) :]
    holders = list(_holders(row))
    if not holders:
        return json.dumps(chance.choice(ODD)).encode()
    holder = chance.choice(holders)
    key = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    kind = chance.randrange(4)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
    else:
        holder[key] = chance.choice(ODD)
    text = json.dumps(row).encode()
    return text if whole else b"\n".join([*rows[:at], text, *rows[at + 1 :]]) + b"\n"


def doubled_key(data: bytes, chance: random.Random) -> bytes:
    at = data.find(b"{", chance.randrange(len(data) + 1)) + 1
    return data[:at] + b'"id": 1, "id": 2, "question": 3, "bias": [NaN], ' + data[at:]


def _holders(found: Any):
    if isinstance(found, (dict, list)) and found:
        yield found
        for inner in found.values() if isinstance(found, dict) else found:
            yield from _holders(inner)


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    truncate, flip, not_unicode, repeat, lines, empty, deep, value, value, value, doubled_key,
)  # fmt: skip


def mutated(data: bytes, chance: random.Random) -> tuple[str, bytes]:
    """Return the names of one to three mutations and what they make of the data, in gzip if it was in gzip."""
    packed = data.startswith(b"\x1f\x8b") and chance.random() < 0.7
    if packed:
        data = gzip.decompress(data)
    chosen = chance.choices(MUTATIONS, k=chance.choice((1, 1, 2, 3)))
    for one in chosen:
        data = one(data, chance)
    names = "+".join(one.__name__ for one in chosen)
    return names, gzip.compress(data, 1) if packed else data
