"""Readers that answer repeated requests from a cache, so that a run that is killed or extended repeats no call.

A key is a digest of the reader's description, the kind of call, its options and the text or tokens of the request.
It depends neither on the question or method nor on what the request was packed with.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack

import numpy as np

from fastreader.core.checks import check_list, require
from fastreader.core.options import GenerateOptions
from fastreader.core.protocol import (
    GenerateArguments,
    Generation,
    Loglikelihood,
    LoglikelihoodArguments,
    ReaderProtocol,
    ReaderWrapper,
    Results,
    ScoringReader,
    SequenceScores,
    TextOrTokens,
)
from fastreader.core.tree import PrefixTree, TreeStats
from fastreader.data.answer_cache import Cache
from fastreader.data.fingerprints import digest
from fastreader.errors import NotReloadableError
from fastreader.reader.programs.requests import Program, score

if TYPE_CHECKING:
    from fastreader.reader.relevance import RelevanceScores

T = TypeVar("T")
Pair = tuple[tuple[int, ...], tuple[int, ...]]
NOTHING = TreeStats(0, 0, 0, 0)
_EMPTY = Loglikelihood(0.0, 0, True, [])
_SCORED = ("logit", "score", "prompt", "truncated")


@dataclass
class Meter:
    """Sums of a reader's calls.

    Attributes:
        calls: number of calls that reached the reader.
        total_tokens, computed_tokens: tokens of all requests, as if nothing had been cached.
        new_tokens: tokens generated for all requests.
        run_tokens: tokens that went through the model in this run.
        seconds: wall clock of the reader.
    """

    calls: int = 0
    total_tokens: int = 0
    computed_tokens: int = 0
    new_tokens: int = 0
    run_tokens: int = 0
    seconds: float = 0.0

    def add(self, requested: TreeStats, run: TreeStats, seconds: float, new_tokens: int) -> None:
        """Add one call."""
        self.calls += run.sequences > 0
        self.total_tokens += requested.total_tokens
        self.computed_tokens += requested.computed_tokens
        self.new_tokens += new_tokens
        self.run_tokens += run.computed_tokens
        self.seconds += seconds


class CachedReader(ReaderWrapper):
    """A `ReaderProtocol` that answers repeated requests from a cache.

    Counts of tokens cover all requests, so that they do not depend on the cache; for prompts that are texts only the
    reader can count, so they cover the requests that reached it.

    Attributes:
        is_reranker: whether the reader's model was trained to score a query with a document.
        max_batch_tokens: at most this many tokens are computed in one pass, unless a call sets its own limit.
        total: a `Meter` of all calls since the last `take`.
        last: total tokens of the last call, and the seconds it took in this run.
    """

    def __init__(self, reader: ReaderProtocol, cache: Cache, max_batch_tokens: int | None = None) -> None:
        super().__init__(reader)
        self.cache = cache
        self.is_reranker = bool(getattr(reader, "is_reranker", False))
        self.max_batch_tokens = max_batch_tokens
        self.total = Meter()
        self.last: tuple[int, float] = (0, 0.0)
        self._meters: list[Meter] = []
        self._identity = json.dumps(
            {key: value for key, value in reader.describe().items() if key != "check"}, sort_keys=True
        )

    def loglikelihood(
        self,
        requests: Iterable[tuple[TextOrTokens, TextOrTokens]],
        **options: Unpack[LoglikelihoodArguments],
    ) -> Results[Loglikelihood]:
        """Score as the reader does, from the cache if it holds the request."""
        pairs = [(_plain(c), _plain(t)) for c, t in requests]
        limit = options.pop("max_batch_tokens", None) or self.max_batch_tokens
        defaults = {"token_logprobs": False, "special_tokens": True, "on_overflow": "error"}  # nosec B105 # no password
        settings: dict[str, Any] = defaults | options
        found = self._items(
            pairs,
            {**settings, "kind": "loglikelihood"},
            lambda missing: self.reader.loglikelihood(missing, **settings, max_batch_tokens=limit),
            _values,
        )
        stats = self._note(pairs, found)
        return Results([Loglikelihood(**item) for item in found], stats, found.passes, found.seconds)

    def generate(
        self, prompts: Iterable[TextOrTokens], **options: Unpack[GenerateArguments]
    ) -> Results[list[Generation]]:
        """Generate as the reader does, from the cache if it holds the prompt.

        Sampled texts come from the cache only for an equal call.
        """
        check_list("prompts", prompts)
        texts = [_plain(prompt) for prompt in prompts]
        checked = GenerateOptions(**options)
        settings = {k: v for k, v in asdict(checked).items() if k not in ("max_batch_tokens", "progress")}
        if checked.repetition_penalty == 1:  # readers of other kinds need not know it
            del settings["repetition_penalty"]
        settings |= {"stop": list(checked.stop), "stop_token_ids": sorted({int(t) for t in checked.stop_token_ids})}
        # Repeated prompts continue one random stream, so a sampled text belongs to its whole call.
        sampled = checked.temperature > 0
        found = self._items(
            texts,
            {**settings, **({"call": digest(texts, 64)} if sampled else {}), "kind": "generate"},
            lambda missing: self.reader.generate(
                texts if sampled else missing,
                **settings,
                max_batch_tokens=checked.max_batch_tokens or self.max_batch_tokens,
                progress=checked.progress,
            ),
            lambda generations: [_values(g) for g in generations],
            distinct=not sampled,
        )
        results = [[Generation(**g) for g in generations] for generations in found]
        new_tokens = sum(len(g.token_ids) for generations in results for g in generations)
        stats = self._note([(text, []) for text in texts], found, new_tokens, checked.n)
        return Results(results, stats, found.passes, found.seconds)

    def relevance_scores(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        instruction: str | None = None,
        on_overflow: str = "truncate",
        max_batch_tokens: int | None = None,
    ) -> RelevanceScores:
        """Score as `Reader.relevance_scores` does, from the cache if it holds the pair."""
        from fastreader.reader.relevance import RelevanceScores

        model: Any = self.reader
        settings = {"instruction": instruction, "on_overflow": on_overflow}
        limit = max_batch_tokens or self.max_batch_tokens

        def scored(missing: list[Any]) -> Results[dict[str, Any]]:
            started = time.perf_counter()
            found: RelevanceScores = model.relevance_scores(missing, **settings, max_batch_tokens=limit)
            values = (found.logits.tolist(), found.scores.tolist(), found.prompts, found.truncated)
            items = [dict(zip(_SCORED, item, strict=True)) for item in zip(*values, strict=True)]
            return Results(items, found.stats, found.passes, time.perf_counter() - started)

        texts = [list(pair) for pair in pairs]
        found = self._items(texts, {**settings, "kind": "relevance"}, scored, dict)
        logits, scores, prompts, truncated = ([item[key] for item in found] for key in _SCORED)
        stats = self._note([(prompt, []) for prompt in prompts], found)
        both = np.array(logits, dtype=np.float64), np.array(scores, dtype=np.float64)
        return RelevanceScores(*both, prompts, truncated, stats, found.passes)

    def take(self) -> Meter:
        """Return the sums of all calls since the last `take`."""
        taken, self.total = self.total, Meter()
        return taken

    def tree_reader(self) -> ScoringReader:
        """Return the same as a `ScoringReader`, for methods that need more than `ReaderProtocol`.

        Raises:
            InputError: if the reader behind is not a `ScoringReader`.
        """
        return _TreeReader(self)

    @contextlib.contextmanager
    def metered(self) -> Iterator[Meter]:
        """Count the calls made inside the block."""
        meter = Meter()
        self._meters.append(meter)
        try:
            yield meter
        finally:
            self._meters.remove(meter)

    def _items(
        self,
        requests: list[Any],
        options: Mapping[str, Any],
        call: Callable[[list[Any]], Results[Any]],
        pack: Callable[[Any], Any],
        distinct: bool = True,
    ) -> Results[Any]:
        """Return the values of all requests, with the cost of those that were not in the cache."""
        head = self._identity + json.dumps(options, sort_keys=True)
        keys = [digest([head, item, None if distinct else i], 64) for i, item in enumerate(requests)]
        known = self.cache.get(keys)
        missing = {key: item for key, item in zip(keys, requests, strict=True) if key not in known}
        if not missing:
            return Results([known[key] for key in keys], NOTHING, 0, 0.0)
        answered = call(list(missing.values()))
        fresh = {key: pack(item) for key, item in zip(missing if distinct else keys, answered, strict=True)}
        self.cache.put(fresh)
        known |= fresh
        return Results([known[key] for key in keys], answered.stats, answered.passes, answered.seconds)

    def _note(
        self, pairs: Sequence[tuple[Any, Any]], found: Results[Any], new_tokens: int = 0, n: int = 1
    ) -> TreeStats:
        """Add a call to the meters and return its stats."""
        stats = found.stats
        if pairs and not any(isinstance(part, str) for pair in pairs for part in pair):
            s = PrefixTree.build(pairs).stats
            computed = s.computed_tokens + new_tokens
            stats = TreeStats(s.sequences * n, s.total_tokens * n + new_tokens, computed, s.scored)
        self.last = (stats.total_tokens, found.seconds)
        for meter in (self.total, *self._meters):
            meter.add(stats, found.stats, found.seconds, new_tokens)
        return stats


def _values(item: Loglikelihood | Generation) -> dict[str, Any]:
    """Return the attributes, whose lists `asdict` would copy number by number."""
    return dict(vars(item))


def _plain(item: TextOrTokens) -> Any:
    return item if isinstance(item, str) else _integers(item)


def _integers(tokens: Sequence[int]) -> list[int]:
    """Return a list of Python's integers, without converting those that are."""
    return list(tokens) if set(map(type, tokens)) <= {int} else list(map(int, tokens))


class _TreeReader(ReaderWrapper):
    """The `ScoringReader` behind a `CachedReader`, with all scores and texts from the cache.

    Args:
        cached: the cached reader.
        known: scores by pair, for a function that runs as a program; None scores through the cache.
    """

    def __init__(self, cached: CachedReader, known: Mapping[Pair, Loglikelihood] | None = None) -> None:
        reader = cached.reader
        wanted = "one that plans and scores token ids (sure, eor and noise take others)"
        require(isinstance(reader, ScoringReader), f"reader: expected {wanted}, got {type(reader).__name__!r}")
        assert isinstance(reader, ScoringReader)
        super().__init__(reader)
        self.encoder = reader.encoder
        self.budget, self.plan, self.prefix = reader.budget, reader.plan, reader.prefix
        self.loglikelihood, self.generate = cached.loglikelihood, cached.generate
        self.is_reranker, self.relevance_scores = cached.is_reranker, cached.relevance_scores
        self._known = known

    def __reduce__(self) -> NoReturn:
        raise NotReloadableError("reader: expected one without a cache, which stays in this process, got a cached one")

    def score(
        self, sequences: Sequence[tuple[Any, Any]], *, max_batch_tokens: int | None = None, trees: Any = None
    ) -> SequenceScores:
        """Score as `Reader.score` does."""
        pairs: list[Pair] = [(tuple(_integers(context)), tuple(_integers(text))) for context, text in sequences]
        scored = [pair for pair in pairs if pair[1]]
        if self._known is None:
            results = self.loglikelihood(scored, token_logprobs=True, max_batch_tokens=max_batch_tokens)
        else:
            if missing := [pair for pair in dict.fromkeys(scored) if pair not in self._known]:
                raise _MissingScores(missing)
            stats = PrefixTree.build(scored).stats if scored else NOTHING
            results = Results([self._known[pair] for pair in scored], stats, 0)
        found = iter(results)
        items = [next(found) if text else _EMPTY for _, text in pairs]
        return SequenceScores(
            logprob=np.array([item.logprob for item in items], dtype=np.float64),
            num_tokens=np.array([item.num_tokens for item in items], dtype=np.int64),
            is_greedy=np.array([item.is_greedy for item in items], dtype=bool),
            token_logprobs=[np.array(item.token_logprobs or [], dtype=np.float64) for item in items],
            stats=results.stats,
            passes=results.passes,
            seconds=results.seconds,
        )


class _MissingScores(Exception):
    """Scores that a function needs and that are not known yet."""

    def __init__(self, pairs: list[Pair]) -> None:
        super().__init__()
        self.pairs = pairs


def scoring(stage: str, reader: CachedReader, function: Callable[[ScoringReader], T]) -> Program[T]:
    """Run a function that scores as a program, so that its scores are packed with other requests.

    `function` is called again and again with all scores known so far, until it returns; each call that needs more
    scores makes a request. It must be deterministic. Its scores have no `token_logprobs`. An exception ends a call
    early because `function` scores deep inside, where it cannot yield.
    """
    known: dict[Pair, Loglikelihood] = {}
    tree = _TreeReader(reader, known)
    while True:
        try:
            return function(tree)
        except _MissingScores as missing:
            pairs = missing.pairs
        replies = yield from score(stage, pairs)
        known.update(zip(pairs, replies, strict=True))
