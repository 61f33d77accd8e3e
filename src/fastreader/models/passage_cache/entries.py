"""PassageEntries: keys and values by the tokens before and under them, the least recently used leaving first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from fastreader.core.forks import repair_in_children
from fastreader.models.passes.key_values import KeyValues

PrefixKey = tuple[str, str]
"""Fingerprint of the model, and digest of all tokens of a prefix."""


class PassageEntries:
    """Keys and values of headers, and of the passages after them, shared by threads.

    Args:
        max_bytes: at most this much memory is taken.

    Attributes:
        nbytes: memory of keys, values and states.
        hits, misses: passages that were found, and that were read.
        evictions: entries that left for others.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = self.hits = self.misses = self.evictions = 0
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

    def get(self, key: PrefixKey) -> KeyValues | None:
        """Return the keys and values of a prefix's last part, or None, and note its use."""
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def add(self, entries: Sequence[tuple[PrefixKey, PrefixKey | None, KeyValues]]) -> None:
        """Keep new entries, of which the last counts as the most recently used.

        An entry larger than `max_bytes` is not kept.

        Args:
            entries: key, key of the header before it if any, and what to keep, which nobody else may change.
        """
        with self._lock:
            for key, header, key_values in entries:
                size = key_values.total_bytes
                if key in self._held or size > self.max_bytes:
                    continue
                # Without its header a passage cannot be used, so the header leaves after it.
                if header is not None and header in self._held:
                    self._held.move_to_end(header)
                while self.nbytes + size > self.max_bytes:
                    _, gone = self._held.popitem(last=False)
                    self.nbytes -= gone.total_bytes
                    self.evictions += 1
                self._held[key] = key_values
                self.nbytes += size

    def count(self, hits: int, misses: int) -> None:
        """Add to the counts of passages that were found, and that were read."""
        with self._lock:
            self.hits += hits
            self.misses += misses
