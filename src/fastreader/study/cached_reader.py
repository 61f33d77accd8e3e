"""What a reader gave, kept by content: a run that is killed or extended asks nothing twice.

A key is a digest of the reader's description, the kind of call, its options and the text or tokens asked, so that it
does not matter which question or method asked, nor what it was packed with.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from fastreader.core.checks import check_no_text
from fastreader.core.protocol import Generation, Loglikelihood, ReaderProtocol, Results, TextOrTokens
from fastreader.core.tree import PrefixTree, TreeStats
from fastreader.data.cache import Cache
from fastreader.reader.decoding import check_stop, check_stop_tokens
from fastreader.study.digest import digest
from fastreader.study.meter import Meter
from fastreader.wrapped import WrappedReader

if TYPE_CHECKING:
    from fastreader.reader.loglikelihood import SequenceScores
    from fastreader.reader.reader import Reader

NOTHING = TreeStats(0, 0, 0, 0)


class CachedReader(WrappedReader):
    """A reader that answers out of a cache what it was asked before.

    It is a `ReaderProtocol`. Counts of tokens are those of all that was asked, so that they do not depend on what the
    cache holds; prompts that are texts are counted only where the reader itself counts them.

    Attributes:
        max_tokens: tokens computed in one pass at most, where a call does not say.
        total: a `Meter` of all calls.
        last: tokens given and seconds of the last call, seconds of this run alone.
    """

    def __init__(self, reader: ReaderProtocol, cache: Cache, max_tokens: int | None = None) -> None:
        super().__init__(reader)
        self.cache = cache
        self.max_tokens = max_tokens
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
        max_tokens: int | None = None,
    ) -> Results[Loglikelihood]:
        """As the reader's, out of the cache where it holds the request."""
        asked = [(_plain(c), _plain(t)) for c, t in requests]
        options = {"kind": "loglikelihood", "token_logprobs": token_logprobs, "on_overflow": on_overflow}

        def ask(missing: list[Any]) -> Results[Loglikelihood]:
            return self.reader.loglikelihood(
                missing,
                token_logprobs=token_logprobs,
                on_overflow=on_overflow,
                max_tokens=max_tokens or self.max_tokens,
            )

        items, run, seconds, passes = self._items(asked, options, ask, asdict)
        results = [Loglikelihood(**item) for item in items]
        stats = self._counted(asked, run, 0)
        self._note(stats, run, seconds)
        return Results(results, stats, passes, seconds)

    def generate(
        self,
        prompts: Iterable[TextOrTokens],
        *,
        max_new_tokens: int = 128,
        n: int = 1,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop: Sequence[str] = (),
        stop_tokens: Sequence[int] = (),
        token_logprobs: bool = False,
        on_overflow: str = "error",
        max_tokens: int | None = None,
        progress: bool | None = None,
    ) -> Results[list[Generation]]:
        """As the reader's, out of the cache where it holds the prompt; sampled texts only for the same call."""
        check_no_text("prompts", prompts)
        asked = [_plain(prompt) for prompt in prompts]
        settings: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "n": n,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "seed": seed,
            "stop": list(check_stop(stop)),
            "stop_tokens": sorted(check_stop_tokens(stop_tokens)),
            "token_logprobs": token_logprobs,
            "on_overflow": on_overflow,
        }
        # Equal prompts draw on in one call, so that a sampled text belongs to its whole call.
        call = {"call": digest(asked, 64)} if temperature > 0 else {}

        def ask(missing: list[Any]) -> Results[list[Generation]]:
            texts = asked if temperature > 0 else missing
            return self.reader.generate(texts, **settings, max_tokens=max_tokens or self.max_tokens, progress=progress)

        keys = {**settings, **call, "kind": "generate"}
        items, run, seconds, passes = self._items(
            asked, keys, ask, lambda texts: [asdict(g) for g in texts], distinct=temperature == 0
        )
        results = [[Generation(**g) for g in texts] for texts in items]
        new = sum(len(g.token_ids) for texts in results for g in texts)
        stats = self._counted([(prompt, []) for prompt in asked], run, new, n)
        self._note(stats, run, seconds, new)
        return Results(results, stats, passes, seconds)

    def tree_reader(self) -> Reader:
        """The same as a `Reader`, for methods that need one and not only its protocol.

        Raises:
            InputError: the reader is none.
        """
        from fastreader.study.cached_tree import CachedTreeReader

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
                    "tokens": int(scored.tokens[i]),
                    "greedy": bool(scored.greedy[i]),
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
        return TreeStats(stats.sequences * n, stats.given * n + new, stats.computed + new, stats.scored)

    def _note(self, asked: TreeStats, run: TreeStats, seconds: float, new: int = 0) -> None:
        self.last = (asked.given, seconds)
        for meter in self._meters:
            meter.add(asked, run, seconds, new)


def _plain(item: TextOrTokens) -> Any:
    return item if isinstance(item, str) else [int(token) for token in item]
