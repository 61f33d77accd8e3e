"""PassageCache: keys and values of passages that were read before, within a limit on memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fastreader.core.checked import checked
from fastreader.core.checks import check_int
from fastreader.models.passage_cache.entries import PassageEntries


@dataclass(frozen=True)
class CacheInfo:
    """What a `PassageCache` holds, and what became of the look-ups.

    Attributes:
        hits: passages whose keys and values were found, each once a pass.
        misses: passages that were read.
        evictions: entries that left memory for others.
        entries: number of passages in memory, and of headers before them.
        nbytes: memory of the entries, in bytes.
        max_bytes: limit on it.
    """

    hits: int
    misses: int
    evictions: int
    entries: int
    nbytes: int
    max_bytes: int

    def to_dict(self) -> dict[str, int]:
        """Return everything as JSON values."""
        return asdict(self)


@checked
class PassageCache:
    """Keys and values of passages that follow a prompt's header, for calls with other questions.

    What a causal model computes for the header and the passage after it does not depend on what comes later, so results
    equal an uncached call's: bit for bit where docs/determinism.md promises it, else up to rounding.
    Give the cache to a reader (`Reader.with_cache`) or to a call (``cache=``). Several readers and threads may share
    one: an entry belongs to weights, precision, way of computing, header and passage, and serves no other.

    Args:
        max_bytes: at most this much memory is taken by keys, values and states. The least recently used entry leaves
            first. Tensors stay on the device of their layer.

    Attributes:
        max_bytes: the limit.
        entries: what is kept, as passes look it up.

    Raises:
        InputError: if `max_bytes` < 1.
    """

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        check_int("max_bytes", max_bytes)
        self.max_bytes = max_bytes
        self.entries = PassageEntries(max_bytes)

    def __len__(self) -> int:
        """Return the number of entries in memory."""
        return len(self.entries)

    def __repr__(self) -> str:
        return f"PassageCache({self.entries.nbytes:,} of {self.max_bytes:,} bytes)"

    def info(self) -> CacheInfo:
        """Return what the cache holds, and the counts of look-ups so far."""
        held = self.entries
        return CacheInfo(held.hits, held.misses, held.evictions, len(held), held.nbytes, held.max_bytes)

    def clear(self) -> None:
        """Release all entries. Calls that run keep those that they use until they end."""
        self.entries.clear()
