"""PassageCache: keys and values of passages that were read before, within a limit on memory."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fastreader.core.checked import checked
from fastreader.core.checks import check_choice, check_int
from fastreader.errors import NotReloadableError
from fastreader.models.passage_cache.entries import PassageEntries
from fastreader.models.passage_cache.folder import PassageFolder


@dataclass(frozen=True)
class CacheInfo:
    """What a `PassageCache` holds, and what became of the look-ups.

    Attributes:
        hits: passages whose keys and values were found, each once a pass.
        misses: passages that were read.
        evictions: entries that left memory for others.
        loaded: entries that were mapped from the folder.
        written: entries that were written to the folder.
        damaged: files of the folder that were not what was written, and were removed.
        entries: number of passages in memory, and of headers before them.
        nbytes: memory of the entries, in bytes.
        max_bytes: limit on it.
    """

    hits: int
    misses: int
    evictions: int
    loaded: int
    written: int
    damaged: int
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

    With a folder, every entry is also a file, which other processes of the machine find, at once or after a restart. A
    file that is not whole, or whose checksum differs, is never used. Memory and folder have separate limits.

    Args:
        max_bytes: at most this much memory is taken by keys, values and states, those mapped from files included. The
            least recently used entry leaves first. Tensors are on the device of their layer.
        folder: keeps entries as files; made if it does not exist, for this user alone. Only use one whose writers you
            trust: passages can be read out of keys and values, and numbers follow from them. None for none.
        max_folder_bytes: limit on the files, of which the least recently used leave first.
        stored: "exact", or "int8" to round keys and values to 8 bits, with a scale for each token and head, which takes
            half to a quarter of memory and files; numbers after known passages then differ, see
            docs/passage-cache.md. States of recurrent layers stay exact.

    Attributes:
        max_bytes: the limit.
        entries: what is kept, as passes look it up.

    Raises:
        InputError: if a limit is < 1, or there is something else in `folder`.
        OSError: if the folder cannot be made.
    """

    def __init__(
        self,
        max_bytes: int = 1 << 30,
        folder: str | os.PathLike[str] | None = None,
        *,
        max_folder_bytes: int = 16 << 30,
        stored: str = "exact",
    ) -> None:
        check_int("max_bytes", max_bytes)
        check_int("max_folder_bytes", max_folder_bytes)
        check_choice("stored", stored, ("exact", "int8"))
        self.max_bytes = max_bytes
        files = None if folder is None else PassageFolder(folder, max_folder_bytes)
        self.entries = PassageEntries(max_bytes, files, rounded=stored == "int8")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the folder, without what is in memory, which another process may then share.

        Raises:
            NotReloadableError: without a folder.
        """
        held = self.entries
        if held.folder is None:
            raise NotReloadableError(
                f"cache: expected a PassageCache(folder=...), which another process can open too, got {self!r}, which "
                "is in this process"
            )
        stored = "int8" if held.rounded else "exact"
        return _opened, (self.max_bytes, held.folder.path.absolute(), held.folder.max_bytes, stored)

    def __len__(self) -> int:
        """Return the number of entries in memory."""
        return len(self.entries)

    def __repr__(self) -> str:
        folder = "" if self.entries.folder is None else f", folder={str(self.entries.folder.path)!r}"
        return f"PassageCache({self.entries.nbytes:,} of {self.max_bytes:,} bytes{folder})"

    def info(self) -> CacheInfo:
        """Return what the cache holds, and the counts of look-ups so far."""
        held = self.entries
        files = held.folder
        written, damaged = (0, 0) if files is None else (files.written, files.damaged)
        return CacheInfo(
            hits=held.hits,
            misses=held.misses,
            evictions=held.evictions,
            loaded=held.loaded,
            written=written,
            damaged=damaged,
            entries=len(held),
            nbytes=held.nbytes,
            max_bytes=held.max_bytes,
        )

    def clear(self) -> None:
        """Release all entries in memory. Calls that run keep those that they use until they end."""
        self.entries.clear()


def _opened(max_bytes: int, folder: Path, max_folder_bytes: int, stored: str) -> PassageCache:
    return PassageCache(max_bytes, folder, max_folder_bytes=max_folder_bytes, stored=stored)
