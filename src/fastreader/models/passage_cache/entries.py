"""PassageEntries: keys and values by the tokens before and under them, in memory and, if wanted, in a folder."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from fastreader.core.forks import repair_in_children
from fastreader.models.passage_cache.folder import PassageFolder, PrefixKey
from fastreader.models.passage_cache.rounded import RoundedKeyValues
from fastreader.models.passes.key_values import KeyValues


class PassageEntries:
    """Keys and values of headers, and of the passages after them, shared by threads.

    In memory the least recently used entries leave first. An entry that is only in the folder is mapped from its file,
    and counts as memory like others.

    Args:
        max_bytes: at most this much memory is taken.
        folder: keeps all entries as files; None for none.
        rounded: whether keys and values are kept as integers of 8 bits.

    Attributes:
        nbytes: memory of keys, values and states.
        hits, misses: passages that were found, and that were read.
        evictions: entries that left memory for others.
        loaded: entries that were mapped from the folder.
    """

    def __init__(self, max_bytes: int, folder: PassageFolder | None = None, *, rounded: bool = False) -> None:
        self.max_bytes = max_bytes
        self.folder = folder
        self.rounded = rounded
        self._stored = "int8" if rounded else "exact"
        self.nbytes = self.hits = self.misses = self.evictions = self.loaded = 0
        self._held: OrderedDict[PrefixKey, KeyValues] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()
        repair_in_children(self)

    def after_fork(self) -> None:
        """Replace the lock in a forked child, and forget entries that another thread may have half changed."""
        if not self._lock.acquire(blocking=False):
            self._held, self.nbytes = OrderedDict(), 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def clear(self) -> None:
        """Release all entries."""
        with self._lock:
            self._held, self.nbytes = OrderedDict(), 0

    def holds(self, key: PrefixKey) -> bool:
        """Return whether a prefix's last part is in memory, or has a file."""
        return key in self._held or (self.folder is not None and self._named(key) in self.folder)

    def only_in_files(self, key: PrefixKey) -> bool:
        """Return whether a prefix's last part has a file, and is not in memory."""
        return self.folder is not None and key not in self._held and self._named(key) in self.folder

    def get(self, key: PrefixKey) -> KeyValues | None:
        """Return the keys and values of a prefix's last part, or None, and note its use."""
        self.touch(key)
        found = self._held.get(key)
        if found is None and self.folder is not None:
            found = self.folder.get(self._named(key))
            if found is not None:
                with self._lock:
                    self.loaded += 1
                    self._keep(key, None, found)
        return found

    def touch(self, key: PrefixKey) -> None:
        """Note the use of an entry in memory."""
        with self._lock:
            if key not in self._held:
                return
            self._held.move_to_end(key)
        if self.folder is not None:
            self.folder.touch(self._named(key))

    def add(
        self, entries: Iterable[tuple[PrefixKey, PrefixKey | None, KeyValues]], about: Mapping[str, Any] | None = None
    ) -> None:
        """Keep new entries, of which the last counts as the most recently used.

        An entry larger than `max_bytes` is not kept in memory.

        Args:
            entries: key, key of the header before it if any, and what to keep, which nobody else may change.
            about: how the reader describes itself, for the folder; None for a model that no other process can have.
        """
        for key, header, given in entries:
            key_values = RoundedKeyValues.of(given) if self.rounded else given
            with self._lock:
                new = key not in self._held
                if new:
                    self._keep(key, header, key_values)
            if new and self.folder is not None and about is not None:
                described = {**about, "stored": self._stored}
                # The file of a header that is in memory may have been removed meanwhile.
                if header is not None and (above := self._held.get(header)) is not None:
                    self.folder.put(self._named(header), above, described)
                self.folder.put(self._named(key), key_values, described)

    def _keep(self, key: PrefixKey, header: PrefixKey | None, key_values: KeyValues) -> None:
        size = key_values.total_bytes
        if key in self._held or size > self.max_bytes:
            return
        # Without its header a passage cannot be used, so the header leaves after it.
        if header is not None and header in self._held:
            self._held.move_to_end(header)
        while self.nbytes + size > self.max_bytes:
            _, gone = self._held.popitem(last=False)
            self.nbytes -= gone.total_bytes
            self.evictions += 1
        self._held[key] = key_values
        self.nbytes += size

    def of_reader(self, fingerprint: str) -> str:
        """Return what the folder calls a reader, whose rounded values are another reader's."""
        return f"{fingerprint}-int8" if self.rounded else fingerprint

    def _named(self, key: PrefixKey) -> PrefixKey:
        """Return the key in the folder."""
        return self.of_reader(key[0]), key[1]

    def count(self, hits: int, misses: int) -> None:
        """Add to the counts of passages that were found, and that were read."""
        with self._lock:
            self.hits += hits
            self.misses += misses
