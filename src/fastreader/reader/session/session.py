"""Session: a reader that keeps the keys and values of prefixes between calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeAlias

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, check_texts, expect, located
from fastreader.core.forks import repair_in_children
from fastreader.core.protocol import TextOrTokens
from fastreader.core.tree import PrefixTree, TokenPairs, TreeStats
from fastreader.errors import ContextOverflowError, FastreaderError, NotReloadableError, OutOfBudgetError
from fastreader.models.machine import memory
from fastreader.models.passage_cache.known import Ends, KnownPassages
from fastreader.models.passes.key_values import KeyValues, Reuse
from fastreader.models.passes.prefix_cache import KeptKeys, PrefixCache
from fastreader.models.tree_model import TreeModel
from fastreader.reader.base import ReaderBase
from fastreader.reader.local_model import LocalModel

PassageLookup: TypeAlias = Callable[[TokenPairs, Ends], KnownPassages]
_SHARE = 0.5  # of the free memory, for what is cached


@checked
class Session(ReaderBase):
    """A reader over prefixes that were read once, created by `Reader.session`.

    Contexts and prompts that start like a cached prefix (with all of it or part) continue from its keys and values;
    others are read whole. With `cache_scored`, scored texts are cached like prefixes. A context manager that releases
    the memory at its end. Calls from several threads wait for each other.

    Args:
        local_model: the reader's.
        max_bytes, cache_scored: see `Reader.session`, which also reads the first prefixes.
        passages: of a cache of passages, see `PassageReader.session`.

    Attributes:
        stats: tokens computed to read the prefixes.
    """

    def __init__(
        self,
        local_model: LocalModel,
        max_bytes: int | None = None,
        *,
        cache_scored: bool = False,
        passages: PassageLookup | None = None,
    ) -> None:
        super().__init__(local_model)
        self._passages = passages
        check_int("max_bytes", max_bytes, optional=True)
        self._kept: PrefixCache | None = PrefixCache(local_model.model.regimes)
        self._use = threading.RLock()  # the cache may not change between a look-up and the read that follows it
        self._keeps = cache_scored
        free = min(map(memory.free_bytes, local_model.model.devices))
        self._allowed = int(_SHARE * free) if max_bytes is None else max_bytes
        self.stats = TreeStats(0, 0, 0, 0)
        repair_in_children(self)

    def after_fork(self) -> None:
        """Replace the lock in a forked child, and close a session that another thread may have half changed."""
        if self._use.acquire(blocking=False):
            self._use.release()
        else:
            self._kept = None
        self._use = threading.RLock()

    def session(
        self,
        *prefixes: TextOrTokens | Sequence[str],
        max_bytes: int | None = None,
        cache_scored: bool = False,
        **options: Any,
    ) -> Session:
        """Open another session of the same reader, sharing nothing with this one, as `Reader.session`."""
        return open_session(self.local_model, prefixes, max_bytes, cache_scored, self._passages, **options)

    def prefill(
        self,
        *prefixes: TextOrTokens | Sequence[str],
        system: str | None = None,
        chat: bool | None = None,
        chat_options: Mapping[str, Any] | None = None,
        special_tokens: bool = False,
        max_batch_tokens: int | None = None,
    ) -> None:
        """Read further prefixes, without shared beginnings, and cache them too.

        Args:
            prefixes, system, chat, chat_options, special_tokens, max_batch_tokens: see `Reader.session`.

        Raises:
            InputError, ContextOverflowError: as `Reader.session`.
            OutOfBudgetError: if the session would exceed its memory; it is left as it was.
        """
        model = self.local_model.model
        expect(bool(prefixes), "prefixes", "at least one", prefixes)
        encoded: list[Sequence[int]] = []
        ends: list[tuple[int, ...]] = []
        for i, prefix in enumerate(prefixes):
            pieces = [] if isinstance(prefix, str) or not isinstance(prefix, Sequence) else prefix
            if pieces and all(isinstance(piece, str) for piece in pieces):
                check_texts(f"prefixes[{i}]", list(pieces), empty=True)
                read: Any = partial(self.prefix, system=system, chat=chat, chat_options=chat_options)
                tokens = read(prefix)
                first = [read(pieces[:count]) for count in (1, 2)] if len(pieces) > 1 else []
                # Pieces of which each adds tokens to those before it: a header, and a passage.
                added = sorted({len(part) for part in first if part == tokens[: len(part)]} - {0})
                ends.append(tuple(added) if len(added) == len(first) else ())
            else:
                ends.append(())
                tokens = self.encoder.prompt_tokens(
                    prefix,  # type: ignore[arg-type]
                    f"prefixes[{i}]",
                    special_tokens=special_tokens,
                )
            if model.max_length is not None and len(tokens) > model.max_length:
                raise ContextOverflowError(
                    f"prefixes[{i}] is {len(tokens)} tokens long, the context of {self.name} is "
                    f"{model.max_length}{model.context_note}"
                )
            encoded.append(tokens)
        with located("prefixes"):
            trees = self.plan([(prefix, ()) for prefix in encoded], max_batch_tokens, new_tokens=2)
        known = None if self._passages is None else self._passages([(prefix, ()) for prefix in encoded], ends)
        with self._use:
            kept = self._open()
            self._check_room(trees)
            for tree in trees:
                reuse = kept.lookup(tree)
                if known is not None:
                    of_passages = known.lookup(tree)
                    found = [each for each in (reuse, of_passages) if each is not None]
                    reuse = max(found, key=lambda each: each.num_cached, default=None)
                key_values = model.new_key_values(tree, reuse)
                with self.local_model.lock:
                    model.hidden(tree, reuse=reuse, key_values=key_values)
                if known is not None and not model.mixers:
                    known.add(tree, key_values)
                kept.add(tree, key_values)
                self.stats = self.stats + (tree.stats if reuse is None else reuse.stats(tree.stats))

    def _check_room(self, trees: Sequence[PrefixTree]) -> None:
        """Raise OutOfBudgetError if these trees and what is cached would exceed the session's memory."""
        kept = self._open()
        model = self.local_model.model
        needed = (len(kept) + kept.count_new(trees)) * model.key_value_bytes
        if model.mixers:  # a bound: states that the session has are not kept again
            new = [model.new_key_values(tree).states for tree in trees]
            needed += (kept.num_states + sum(len(s.tokens) for s in new if s is not None)) * model.state_bytes
        if needed > self._allowed:
            raise OutOfBudgetError(
                f"session: the keys and values to keep take {needed:,} bytes, {self._allowed:,} are allowed"
            )

    @contextmanager
    def _cache(self) -> Iterator[KeptKeys]:
        with self._use:
            yield _SessionKeys(self._open(), self._keeps, self.local_model.model, self._check_room)

    def _open(self) -> PrefixCache:
        if self._kept is None:
            raise FastreaderError("session: closed; its keys and values are gone")
        return self._kept

    def __reduce__(self) -> NoReturn:
        raise NotReloadableError(
            f"session: expected a Reader, which another process can load too, got a session of {self.name}, whose keys "
            "and values are in this process; pickle the reader and call its session there"
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the cached keys and values, after which the session cannot be used."""
        with self._use:
            self._kept = None

    @property
    def nbytes(self) -> int:
        """Memory of the cached keys and values in bytes, 0 once closed."""
        return 0 if self._kept is None else self._kept.nbytes


@dataclass(frozen=True)
class _SessionKeys:
    """What one call of a session starts from, and adds to."""

    cache: PrefixCache
    keeps: bool
    model: TreeModel
    admit: Callable[[Sequence[PrefixTree]], None]
    loads: bool = False  # all are in memory

    def lookup(self, tree: PrefixTree) -> Reuse | None:
        return self.cache.lookup(tree)

    def new_key_values(self, tree: PrefixTree, reuse: Reuse | None) -> KeyValues:
        return self.model.new_key_values(tree, reuse)

    def add(self, tree: PrefixTree, key_values: KeyValues) -> None:
        self.cache.add(tree, key_values)


def open_session(
    local_model: LocalModel,
    prefixes: Sequence[TextOrTokens | Sequence[str]],
    max_bytes: int | None,
    cache_scored: bool,
    passages: PassageLookup | None = None,
    **options: Any,
) -> Session:
    """Do the work of `Reader.session`, with the options of `Session.prefill`."""
    session = Session(local_model, max_bytes, cache_scored=cache_scored, passages=passages)
    if prefixes or not cache_scored:
        session.prefill(*prefixes, **options)
    return session
