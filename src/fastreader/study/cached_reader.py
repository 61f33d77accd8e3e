"""What a reader gave, kept by content: a run that is killed or extended asks nothing twice.

A key is a digest of the reader's description, the kind of call, its options and the text or tokens asked, so that it
does not matter which question or method asked, nor what it was packed with.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from fastreader.core.checks import check_list
from fastreader.core.options import GenerateOptions
from fastreader.core.protocol import (
    Generation,
    Loglikelihood,
    ReaderProtocol,
    ReaderWrapper,
    Results,
    SequenceScores,
    TextOrTokens,
)
from fastreader.core.tree import PrefixTree, TreeStats
from fastreader.data.cache import Cache
from fastreader.data.fingerprints import digest
from fastreader.errors import InputError
from fastreader.reader.reader import Reader
from fastreader.study.meter import Meter

NOTHING = TreeStats(0, 0, 0, 0)


class CachedReader(ReaderWrapper):
    """A reader that answers out of a cache what it was asked before.

    It is a `ReaderProtocol`. Counts of tokens are those of all that was asked, so that they do not depend on what the
    cache holds; prompts that are texts are counted only where the reader itself counts them.

    Attributes:
        max_batch_tokens: tokens computed in one pass at most, where a call does not say.
        total: a `Meter` of all calls.
        last: tokens given and seconds of the last call, seconds of this run alone.
    """

    def __init__(self, reader: ReaderProtocol, cache: Cache, max_batch_tokens: int | None = None) -> None:
        super().__init__(reader)
        self.cache = cache
        self.max_batch_tokens = max_batch_tokens
        self.total = Meter()
        self.last: tuple[int, float] = (0, 0.0)
        self._meters: list[Meter] = [self.total]
        self._identity = json.dumps(reader.describe(), sort_keys=True)
        self._tree: Reader | None = None

    def loglikelihood(
        self,
        requests: Iterable[tuple[TextOrTokens, TextOrTokens]],
        *,
        token_logprobs: bool = False,
        on_overflow: str = "error",
        max_batch_tokens: int | None = None,
    ) -> Results[Loglikelihood]:
        """As the reader's, out of the cache where it holds the request."""
        asked = [(_plain(c), _plain(t)) for c, t in requests]
        options = {"kind": "loglikelihood", "token_logprobs": token_logprobs, "on_overflow": on_overflow}

        def ask(missing: list[Any]) -> Results[Loglikelihood]:
            return self.reader.loglikelihood(
                missing,
                token_logprobs=token_logprobs,
                on_overflow=on_overflow,
                max_batch_tokens=max_batch_tokens or self.max_batch_tokens,
            )

        items, run, seconds, passes = self._items(asked, options, ask, asdict)
        results = [Loglikelihood(**item) for item in items]
        stats = self._counted(asked, run, 0)
        self._note(stats, run, seconds)
        return Results(results, stats, passes, seconds)

    def generate(self, prompts: Iterable[TextOrTokens], **options: Any) -> Results[list[Generation]]:
        """Generate as the reader does, from the cache if it holds the prompt; sampled texts only for the same call."""
        check_list("prompts", prompts)
        asked = [_plain(prompt) for prompt in prompts]
        checked = GenerateOptions(**options)
        settings = {k: v for k, v in asdict(checked).items() if k not in ("max_batch_tokens", "progress")}
        settings |= {"stop": list(checked.stop), "stop_token_ids": sorted({int(t) for t in checked.stop_token_ids})}
        # Repeated prompts continue one random stream, so a sampled text belongs to its whole call.
        call = {"call": digest(asked, 64)} if checked.temperature > 0 else {}

        def ask(missing: list[Any]) -> Results[list[Generation]]:
            texts = asked if checked.temperature > 0 else missing
            return self.reader.generate(
                texts,
                **settings,
                max_batch_tokens=checked.max_batch_tokens or self.max_batch_tokens,
                progress=checked.progress,
            )

        keys = {**settings, **call, "kind": "generate"}
        items, run, seconds, passes = self._items(
            asked, keys, ask, lambda texts: [asdict(g) for g in texts], distinct=checked.temperature == 0
        )
        results = [[Generation(**g) for g in texts] for texts in items]
        new = sum(len(g.token_ids) for texts in results for g in texts)
        stats = self._counted([(prompt, []) for prompt in asked], run, new, checked.n)
        self._note(stats, run, seconds, new)
        return Results(results, stats, passes, seconds)

    def tree_reader(self) -> Reader:
        """The same as a `Reader`, for methods that need one and not only its protocol.

        Raises:
            InputError: the reader is none.
        """

        if self._tree is None:
            self._tree = CachedTreeReader(self)
        return self._tree

    @contextlib.contextmanager
    def metered(self) -> Iterator[Meter]:
        """Count the calls made within."""
        meter = Meter()
        self._meters.append(meter)
        try:
            yield meter
        finally:
            self._meters.remove(meter)

    def scores(
        self, sequences: Sequence[tuple[Any, Any]], ask: Callable[[list[Any]], SequenceScores]
    ) -> tuple[list[dict[str, Any]], TreeStats, float, int]:
        """`Reader.score` item by item, see `CachedTreeReader`."""
        asked = [(_plain(c), _plain(t)) for c, t in sequences]

        def rows(missing: list[Any]) -> Results[dict[str, Any]]:
            scored = ask(missing)
            items = [
                {
                    "logprob": float(scored.logprob[i]),
                    "tokens": int(scored.num_tokens[i]),
                    "greedy": bool(scored.is_greedy[i]),
                    "token_logprobs": np.asarray(scored.token_logprobs[i]).tolist(),
                }
                for i in range(len(missing))
            ]
            return Results(items, scored.stats, scored.passes, scored.seconds)

        items, run, seconds, passes = self._items(asked, {"kind": "score"}, rows, dict)
        stats = self._counted(asked, run, 0)
        self._note(stats, run, seconds)
        return items, stats, seconds, passes

    def _items(
        self,
        asked: list[Any],
        options: Mapping[str, Any],
        ask: Callable[[list[Any]], Results[Any]],
        pack: Callable[[Any], Any],
        distinct: bool = True,
    ) -> tuple[list[Any], TreeStats, float, int]:
        """Values for what is asked, the cost of those that were not in the cache."""
        head = self._identity + json.dumps(options, sort_keys=True)
        keys = [digest([head, item, None if distinct else i], 64) for i, item in enumerate(asked)]
        known = self.cache.get(keys)
        missing = list({key: item for key, item in zip(keys, asked, strict=True) if key not in known}.items())
        if not missing:
            return [known[key] for key in keys], NOTHING, 0.0, 0
        answered = ask([item for _, item in missing])
        names = [key for key, _ in missing] if distinct else keys
        fresh = {key: pack(item) for key, item in zip(names, answered, strict=True)}
        self.cache.put(fresh)
        known |= fresh
        return [known[key] for key in keys], answered.stats, answered.seconds, answered.passes

    def _counted(self, pairs: Sequence[tuple[Any, Any]], run: TreeStats, new: int, n: int = 1) -> TreeStats:
        if any(isinstance(part, str) for pair in pairs for part in pair) or not pairs:
            return run
        stats = PrefixTree.build(pairs).stats
        return TreeStats(stats.sequences * n, stats.total_tokens * n + new, stats.computed_tokens + new, stats.scored)

    def _note(self, asked: TreeStats, run: TreeStats, seconds: float, new: int = 0) -> None:
        self.last = (asked.total_tokens, seconds)
        for meter in self._meters:
            meter.add(asked, run, seconds, new)


def _plain(item: TextOrTokens) -> Any:
    return item if isinstance(item, str) else [int(token) for token in item]


class CachedTreeReader(Reader):
    """The reader behind a `CachedReader`, sharing its model and its lock."""

    session = None  # type: ignore[assignment]  # what a session gives would be neither in the cache nor counted

    def __init__(self, cached: CachedReader) -> None:
        if not isinstance(cached.reader, Reader):
            raise InputError(
                f"reader: this method needs a fastreader.Reader, got {type(cached.reader).__name__}; other readers "
                "serve the methods sure, eor and noise"
            )
        self.__dict__.update(vars(cached.reader))
        self._cached = cached

    def score(
        self, sequences: Sequence[tuple[Any, Any]], *, max_batch_tokens: int | None = None, trees: Any = None
    ) -> SequenceScores:
        """As `Reader.score`."""
        inner: Any = self._cached.reader
        items, stats, seconds, passes = self._cached.scores(
            sequences,
            lambda missing: inner.score(missing, max_batch_tokens=max_batch_tokens or self._cached.max_batch_tokens),
        )
        return SequenceScores(
            logprob=np.array([item["logprob"] for item in items], dtype=np.float64),
            num_tokens=np.array([item["tokens"] for item in items], dtype=np.int64),
            is_greedy=np.array([item["greedy"] for item in items], dtype=bool),
            token_logprobs=[np.array(item["token_logprobs"], dtype=np.float64) for item in items],
            stats=stats,
            passes=passes,
            seconds=seconds,
        )

    def loglikelihood(self, requests: Any, **options: Any) -> Any:
        """As `Reader.loglikelihood`."""
        return self._cached.loglikelihood(requests, **options)

    def generate(self, prompts: Any, **options: Any) -> Any:
        """As `Reader.generate`."""
        return self._cached.generate(prompts, **options)
