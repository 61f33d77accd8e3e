"""Packer: one thread that runs the passes of all requests, so that requests at the same time share them.

A request runs in its own thread, with a `PackedReader` instead of the reader. Each of its calls of `score` waits
here; the packer takes all that wait and fit, scores their sequences in one tree, and hands each its part.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from itertools import accumulate, islice, takewhile
from typing import Any, Unpack

from fastreader.core.halving import by_halves
from fastreader.core.options import GenerateOptions
from fastreader.core.protocol import GenerateArguments, Generation, Results, SequenceScores, TextOrTokens
from fastreader.core.tree import PrefixTree, Tokens, TreeStats
from fastreader.errors import FastreaderError
from fastreader.integrations.serve.settings import ServerSettings
from fastreader.reader.base import ReaderBase
from fastreader.reader.loglikelihood import ScoreReader

Pair = tuple[Tokens, Tokens]
TOO_LONG = "the request took longer than this server allows"
_MORE = 4  # waits for others before a pass, at most


class DeadlineError(FastreaderError, TimeoutError):
    """A request took longer than the server allows."""


@dataclass
class Totals:
    """What the passes so far computed.

    Attributes:
        passes: passes of scores.
        computed_tokens: tokens that they computed.
        alone_tokens: tokens that they would have computed if each call had run in separate passes.
        written_tokens: tokens of generated texts.
    """

    passes: int = 0
    computed_tokens: int = 0
    alone_tokens: int = 0
    written_tokens: int = 0


@dataclass(eq=False)
class _WaitingCall:
    """One call that waits: of `score` with pairs, or of `generate` with prompts."""

    deadline: float
    pairs: Sequence[Pair] = ()
    trees: Sequence[PrefixTree] = ()
    best_tokens: bool = False
    prompts: Sequence[Tokens] = ()
    options: dict[str, Any] = field(default_factory=dict)
    future: Future[Any] = field(default_factory=Future)

    @property
    def tokens(self) -> int:
        """Tokens that it computes alone, without tokens to generate."""
        return sum(tree.stats.computed_tokens for tree in self.trees)

    @property
    def start(self) -> Tokens:
        """Tokens that it begins with."""
        return self.pairs[0][0] if self.pairs else self.prompts[0]

    def joins(self, other: _WaitingCall) -> bool:
        """Return whether both can run in one pass, unlike drawn texts, which depend on the texts drawn before."""
        if self.pairs or other.pairs:
            return bool(self.pairs and other.pairs)
        drawn = self.options.get("temperature", 0.0) or self.options.get("n", 1) != 1
        return not drawn and self.options == other.options


class Packer:
    """Runs all passes of a reader, one at a time.

    Args:
        reader: scores and generates; nothing else should use it meanwhile, or passes wait for each other.
        settings: `pack`, `pack_seconds` and `max_batch_tokens` of it.

    Attributes:
        totals: tokens so far.
    """

    def __init__(self, reader: ReaderBase, settings: ServerSettings) -> None:
        self.reader, self.totals = reader, Totals()
        self._pack, self._most = settings.pack, settings.max_batch_tokens
        self._pause = settings.pack_seconds if settings.pack else 0.0
        self._waiting: deque[_WaitingCall] = deque()
        self._changed = threading.Condition()
        self._open = True
        self._thread = threading.Thread(target=self._loop, name="fastreader-passes", daemon=True)
        self._thread.start()

    def reader_until(self, deadline: float) -> PackedReader:
        """Return the reader as one request uses it.

        Args:
            deadline: by `time.monotonic`; calls that have no result by then raise a `DeadlineError`.
        """
        return PackedReader(self, deadline)

    def close(self) -> None:
        """Finish the calls that wait, and stop."""
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join()

    @property
    def budget(self) -> int:
        """Tokens that one pass computes at most."""
        return self._most or self.reader.budget()

    def submit(self, job: _WaitingCall) -> Any:
        """Wait for a call's turn, and return its result or raise its error.

        Raises:
            DeadlineError: if it is not done in time.
            FastreaderError: if the packer was closed.
        """
        with self._changed:
            if not self._open:
                raise FastreaderError("the server is stopping")
            self._waiting.append(job)
            self._changed.notify()
        try:
            return job.future.result(max(0.0, job.deadline - time.monotonic()))
        except (TimeoutError, CancelledError) as error:
            if job.future.done() and not job.future.cancelled():
                raise  # an error of the pass itself
            job.future.cancel()
            raise DeadlineError(TOO_LONG) from error

    def _loop(self) -> None:
        while jobs := self._next():
            # By halves if a pass fails, so that a call that fails harms no other.
            for job, found in zip(jobs, by_halves(jobs, self._results, BaseException), strict=True):
                if not job.future.set_running_or_notify_cancel():
                    continue
                if isinstance(found, BaseException):  # the caller raises it
                    job.future.set_exception(found)
                else:
                    job.future.set_result(found)

    def _next(self) -> list[_WaitingCall]:
        """Wait for calls, and return the oldest with the others that join its pass, or an empty list once closed."""
        with self._changed:
            while True:
                while self._open and not self._waiting:
                    self._changed.wait()
                for _ in range(_MORE if self._pause and self._open else 0):
                    before = len(self._waiting)
                    self._changed.wait_for(lambda: not self._open, self._pause)
                    if len(self._waiting) == before:
                        break
                alive = [job for job in self._waiting if not job.future.cancelled()]
                self._waiting.clear()
                if alive:
                    joined = [alive[0], *self._fitting(alive[0], alive[1:])]
                    self._waiting.extend(job for job in alive if job not in joined)
                    return joined
                if not self._open:
                    return []

    def _fitting(self, first: _WaitingCall, others: Sequence[_WaitingCall]) -> list[_WaitingCall]:
        """Return the calls that fit with the first, in order of how much of its beginning they share."""
        left = self.budget - first.tokens
        joined: list[_WaitingCall] = []
        if not self._pack:
            return joined
        for job in sorted(filter(first.joins, others), key=lambda job: -_shared(first.start, job.start)):
            if job.tokens <= left:
                left -= job.tokens
                joined.append(job)
        return joined

    def _results(self, jobs: Sequence[_WaitingCall]) -> Sequence[Any]:
        return self._scored(jobs) if jobs[0].pairs else self._written(jobs)

    def _scored(self, jobs: Sequence[_WaitingCall]) -> list[SequenceScores]:
        pairs = [pair for job in jobs for pair in job.pairs]
        found = self.reader.score(
            pairs,
            max_batch_tokens=self._most,
            trees=jobs[0].trees if len(jobs) == 1 else None,
            best_tokens=any(job.best_tokens for job in jobs),
        )
        self.totals.passes += found.passes
        self.totals.computed_tokens += found.stats.computed_tokens
        self.totals.alone_tokens += sum(job.tokens for job in jobs)
        if len(jobs) == 1:
            return [found]
        ends = list(accumulate(len(job.pairs) for job in jobs))
        return [_part(found, slice(end - len(job.pairs), end), job) for job, end in zip(jobs, ends, strict=True)]

    def _written(self, jobs: Sequence[_WaitingCall]) -> list[Results[list[Generation]]]:
        prompts = [prompt for job in jobs for prompt in job.prompts]
        found = self.reader.generate(prompts, **jobs[0].options)
        self.totals.passes += found.passes
        self.totals.computed_tokens += found.stats.computed_tokens
        self.totals.written_tokens += sum(len(text.token_ids) for texts in found for text in texts)
        if len(jobs) == 1:
            self.totals.alone_tokens += found.stats.computed_tokens
            return [found]
        results, texts = [], iter(found)
        for job in jobs:
            own = list(islice(texts, len(job.prompts)))
            new = sum(len(text.token_ids) for group in own for text in group)
            alone = _total(job.trees)
            stats = TreeStats(alone.sequences, alone.total_tokens + new, alone.computed_tokens + new, new)
            self.totals.alone_tokens += stats.computed_tokens
            results.append(Results(own, stats, found.passes, found.seconds))
        return results


class PackedReader(ScoreReader):
    """A `ScoringReader` for one request, whose passes run in a `Packer`.

    `stats` of its results count the call as if it had run alone.
    """

    def __init__(self, packer: Packer, deadline: float) -> None:
        super().__init__(packer.reader.encoder)
        self._packer, self._reader, self._deadline = packer, packer.reader, deadline
        self._waiting: Future[Any] | None = None
        self.name = packer.reader.name

    def cancel(self) -> None:
        """Let the call that waits, and each later one, raise a `DeadlineError`, while a running pass ends as usual."""
        self._deadline = 0.0
        if self._waiting is not None:
            self._waiting.cancel()

    @property
    def max_length(self) -> int | None:
        """See `ReaderBase.max_length`."""
        return self._reader.max_length

    @property
    def end_tokens(self) -> frozenset[int]:
        """See `ReaderBase.end_tokens`."""
        return self._reader.end_tokens

    def describe(self) -> dict[str, str]:
        """See `ReaderBase.describe`."""
        return self._reader.describe()

    def budget(self) -> int:
        """See `ReaderBase.budget`."""
        return self._packer.budget

    def plan(
        self, sequences: Sequence[Pair], max_batch_tokens: int | None = None, *, new_tokens: int = 0
    ) -> list[PrefixTree]:
        """See `ReaderBase.plan`."""
        return self._reader.plan(sequences, max_batch_tokens or self._packer.budget, new_tokens=new_tokens)

    def score(
        self,
        sequences: Sequence[Pair],
        *,
        max_batch_tokens: int | None = None,
        trees: Sequence[PrefixTree] | None = None,
        best_tokens: bool = False,
    ) -> SequenceScores:
        """Score as `ReaderBase.score` does, with the packer's budget instead of `max_batch_tokens`."""
        planned = self.plan(sequences) if trees is None else trees
        found: SequenceScores = self._submit(_WaitingCall(self._deadline, sequences, planned, best_tokens))
        return found

    def generate(
        self, prompts: Iterable[TextOrTokens], **options: Unpack[GenerateArguments]
    ) -> Results[list[Generation]]:
        """Generate as `ReaderBase.generate` does, together with greedy texts of equal options."""
        settings = GenerateOptions(**options)
        given = [
            self.encoder.prompt_tokens(prompt, f"prompts[{i}]", special_tokens=settings.special_tokens)
            for i, prompt in enumerate(prompts)
        ]
        if not given:
            return Results([], TreeStats(0, 0, 0, 0), passes=0)
        limit = self.max_length
        whole = limit is None or all(len(prompt) <= limit for prompt in given)
        trees = self.plan([(prompt, []) for prompt in given]) if whole else ()
        asked = {**options, "progress": False}
        found: Results[list[Generation]] = self._submit(
            _WaitingCall(self._deadline, trees=trees, prompts=given, options=asked)
        )
        return found

    def _submit(self, job: _WaitingCall) -> Any:
        self._waiting = job.future
        return self._packer.submit(job)


def _shared(first: Tokens, other: Tokens) -> int:
    """Return how many tokens two beginnings share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, other, strict=False)))


def _total(trees: Sequence[PrefixTree]) -> TreeStats:
    return sum((tree.stats for tree in trees), TreeStats(0, 0, 0, 0))


def _part(scores: SequenceScores, part: slice, job: _WaitingCall) -> SequenceScores:
    """Return the part of a pass's scores that belongs to one call."""
    return SequenceScores(
        scores.logprob[part],
        scores.num_tokens[part],
        scores.is_greedy[part],
        scores.token_logprobs[part],
        _total(job.trees),
        scores.passes,
        scores.seconds,
        None if scores.best_tokens is None else scores.best_tokens[part],
        None if scores.best_logprobs is None else scores.best_logprobs[part],
    )
