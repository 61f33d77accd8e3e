"""Packer: one thread that runs the passes of all requests, so that requests at the same time share them.

It takes the call that is due first and those that fit with it, scores their sequences in one tree, and hands each its
part. Texts are generated a step at a time between such passes. So a call that nobody waits for any more ends within one
pass. A call is due when it would be done if the server had nothing else to do, a few seconds after it came at most: a
small one goes before a large one that came shortly before it, and no call waits for ever.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from itertools import accumulate, takewhile
from typing import Any

from fastreader.core.halving import by_halves
from fastreader.core.options import StepOptions
from fastreader.core.protocol import Generation, Results, SequenceScores
from fastreader.core.tree import PrefixTree, Tokens, TreeStats
from fastreader.errors import FastreaderError
from fastreader.integrations.serve.settings import ServerSettings
from fastreader.reader.base import ReaderBase
from fastreader.reader.generation.generate import Steps
from fastreader.reader.generation.text_so_far import DecodedText
from fastreader.reader.session.passages import PassageReader

log = logging.getLogger(__name__)
Pair = tuple[Tokens, Tokens]
TOO_LONG = "the request took longer than this server allows"
_MORE = 4  # waits for others before a pass, at most
_SHARING = 8  # at most this many budgets of calls are tried in one pass, for what they share
_WRITING = 16  # calls of generate that run at once
_PASS_SECONDS = 1.0  # that one pass should take at most, by the rate of those before
_FEWEST = 512  # tokens of one pass by default, however slow the reader is
_MOST = {"cpu": 4096}  # tokens of one pass by default, 32,768 on a GPU
_PRODUCTS = {"cpu": 1e11}  # multiplications a second before any pass was timed, 1e14 on a GPU
_RATED = 256  # tokens of a pass whose time says how fast the reader is
_STEP_TOKENS = 16  # tokens of a pass that take as long as one step of a text, roughly
_STEPS = 64  # of a text, that count for when it is due: most texts end before their limit
_LATEST = 10.0  # seconds after which a call is due, however much it computes
_FAILING = 8  # passes in a row that failed as they should not, from which on the server calls itself unhealthy


class DeadlineError(FastreaderError, TimeoutError):
    """A request took longer than the server allows, or its client left."""


@dataclass
class Totals:
    """What the passes so far computed.

    Attributes:
        passes: passes of scores, and of prompts.
        computed_tokens: tokens that they computed.
        alone_tokens: tokens that they would have computed if each call had run in separate passes, and no passage had
            been read before.
        written_tokens: tokens of generated texts.
        longest_pass: seconds of the longest pass or step so far, for which every other call waits.
    """

    passes: int = 0
    computed_tokens: int = 0
    alone_tokens: int = 0
    written_tokens: int = 0
    longest_pass: float = 0.0


@dataclass(eq=False)
class WaitingCall:
    """One pass of scores that waits, with pairs, or texts to generate after prompts.

    A call with `ends`, see `PassageReader.score`, is scored by `cached`, the reader with its key's cache, which had
    `cached_tokens` of its tokens when it was last looked up. `places` are the places of its pairs in the request's.
    """

    deadline: float
    pairs: Sequence[Pair] = ()
    trees: Sequence[PrefixTree] = ()
    top_tokens: int = 0
    prompts: Sequence[Tokens] = ()
    options: StepOptions = field(default_factory=StepOptions)
    on_step: Callable[[list[DecodedText]], None] | None = None
    ends: Sequence[Sequence[int]] = ()
    cached: PassageReader | None = None
    cached_tokens: int = 0
    places: Sequence[int] = ()
    alone: bool = False
    due: float = 0.0
    future: Future[Any] = field(default_factory=Future)

    @property
    def tokens(self) -> int:
        """Tokens that it computes alone and without a cache, without tokens to generate."""
        return sum(tree.stats.computed_tokens for tree in self.trees)

    @property
    def computed_tokens(self) -> int:
        """Tokens that it computes alone with what its cache had."""
        return self.tokens - self.cached_tokens

    def look_up(self) -> int:
        """Count the tokens that its cache has now, and return `computed_tokens`."""
        if self.cached is not None:
            found = self.cached.cost(self.pairs, self.ends, self.trees)
            self.cached_tokens = sum(stats.cached_tokens for stats in found)
        return self.computed_tokens

    @property
    def work(self) -> int:
        """Tokens that take about as long to compute as the whole call, or as the beginning of its texts."""
        return self.computed_tokens + (0 if self.pairs else _STEP_TOKENS * min(self.options.max_new_tokens, _STEPS))

    @property
    def start(self) -> Tokens:
        """Tokens that it begins with."""
        return self.pairs[0][0] if self.pairs else self.prompts[0]

    @property
    def planned(self) -> Sequence[Pair]:
        """Sequences that it computes."""
        return self.pairs or [(prompt, ()) for prompt in self.prompts]

    def joins(self, other: WaitingCall) -> bool:
        """Return whether both can run in one pass, unlike drawn texts, which depend on the texts drawn before."""
        if self.pairs or other.pairs:
            return bool(self.pairs and other.pairs)
        drawn = self.options.temperature or self.options.n != 1
        return not (drawn or self.alone or other.alone) and self.options == other.options

    def finish(self, found: Any) -> None:
        """Hand over a result, or an error that the caller raises."""
        if not self.future.set_running_or_notify_cancel():
            return
        if isinstance(found, Exception):
            self.future.set_exception(found)
        elif isinstance(found, BaseException):  # SystemExit would end the thread that waits for it
            self.future.set_exception(RuntimeError(f"a pass ended by {type(found).__name__}"))
        else:
            self.future.set_result(found)


@dataclass(eq=False)
class _Writing:
    """Texts that are generated together, for one or several calls."""

    calls: list[WaitingCall]
    steps: Steps


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
        self._waiting: deque[WaitingCall] = deque()
        self._writing: list[_Writing] = []
        self._pass_from = 0.0  # no pass of scores or prompts before, by time.monotonic
        model = reader.local_model.model
        weights = max(1, model.weights_a_layer * len(model.windows))
        self._rate = _PRODUCTS.get(model.device.type, 1e14) / weights  # tokens a second
        self._limit = _MOST.get(model.device.type, 32_768)
        self._since: float | None = None  # when the pass that runs began
        self._failures = 0  # passes in a row
        self._changed = threading.Condition()
        self._open = True
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="fastreader-passes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish the calls that wait, and stop."""
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join()

    @property
    def budget(self) -> int:
        """Tokens that one pass computes at most."""
        default = min(max(int(self._rate * _PASS_SECONDS), _FEWEST), self._limit)
        return min(self._most or default, self.reader.budget())

    def trouble(self, patience: float) -> str:
        """Return why requests cannot be answered, empty if they can.

        Args:
            patience: seconds that one pass may take.
        """
        since = self._since
        if not self._thread.is_alive():
            return "the thread of the passes has ended"
        if since is not None and (taken := time.monotonic() - since) > patience:
            return f"one pass has been running for {taken:.0f} s"
        return f"the last {self._failures} passes failed; the log says how" if self._failures >= _FAILING else ""

    def submit(self, job: WaitingCall) -> Any:
        """Wait for a call's turn, and return its result or raise its error.

        Raises:
            DeadlineError: if it is not done in time.
            FastreaderError: if the packer was closed.
        """
        with self._changed:
            if not self._open:
                raise FastreaderError("the server is stopping")
            if not self._thread.is_alive():
                self._start()
            job.due = time.monotonic() + min(job.work / self._rate, _LATEST)
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
        while True:
            try:
                if not self._wait():
                    return
                self._pass_once()
                for writing in list(self._writing):
                    self._write_once(writing)
            except BaseException:  # whatever happened: all later requests need this thread
                self._failures += 1
                log.exception("the thread of the passes continues after an error")
            finally:
                self._since = None

    def _wait(self) -> bool:
        """Wait until there is something to do, and return False once closed with nothing left."""
        with self._changed:
            while self._open and not self._waiting and not self._writing:
                self._changed.wait()
            for _ in range(_MORE if self._pause and self._open and not self._writing else 0):
                before = len(self._waiting)
                self._changed.wait_for(lambda: not self._open, self._pause)
                if len(self._waiting) == before:
                    break
            for job in [job for job in self._waiting if job.future.cancelled()]:
                self._waiting.remove(job)
            return bool(self._open or self._waiting or self._writing)

    def _take(self) -> list[WaitingCall]:
        """Return the call that is due first, with the others that join its pass, or an empty list."""
        with self._changed:
            room = len(self._writing) < _WRITING
            waiting = sorted((job for job in self._waiting if job.pairs or room), key=lambda job: job.due)
        if not waiting:
            return []
        taken = waiting[:1]
        try:
            taken += self._fitting(waiting[0], waiting[1:])
        except BaseException as error:
            self._outcome(waiting[0], error)
        finally:
            with self._changed:
                for job in taken:
                    self._waiting.remove(job)
        return [job for job in taken if not job.future.done()]

    def _fitting(self, first: WaitingCall, others: Sequence[WaitingCall]) -> list[WaitingCall]:
        """Return the calls that fit with the first, in order of how much of its beginning they share."""
        others = list(filter(first.joins, others)) if self._pack else []
        # In a pass of two caches, what one has would also be found by the other's calls. So would it by calls that look
        # nothing up, whose numbers it changes where it is rounded.
        cached = _cached([first, *others])
        rounded = cached is not None and cached.passage_cache.entries.rounded
        others = [job for job in others if job.cached is first.cached or (not rounded and job.cached in (None, cached))]
        if not others:
            return []
        others.sort(key=lambda job: -_shared(first.start, job.start))
        budget, room = self.budget, self.reader.budget()
        # Known passages take no time. They take memory, for which `room` counts them as if they were computed.
        alone = list(accumulate((job.tokens for job in others), initial=first.tokens))[1:]
        fewest, computed = 0, first.look_up()
        for job, held in zip(others, alone, strict=True):
            computed += job.look_up()
            if computed > budget or held > room:
                break
            fewest += 1
        looked_up = fewest + 1
        # What they share is computed once, so more of them may fit than their sizes say. Of what each has in the cache,
        # all may be what the others have.
        most = max(fewest, bisect_right(alone, _SHARING * budget))
        while fewest < most:
            count = (fewest + most + 1) // 2
            jobs = [first, *others[:count]]
            trees = self.reader.plan([pair for job in jobs for pair in job.planned], room)
            together = sum(tree.stats.computed_tokens for tree in trees)
            if together <= room and together - max(job.cached_tokens for job in jobs) <= budget:
                fewest = count
            else:
                most = count - 1
        for job in others[looked_up:fewest]:
            job.look_up()
        return others[:fewest]

    def _outcome(self, job: WaitingCall, found: Any) -> None:
        foreign = isinstance(found, BaseException) and not isinstance(found, FastreaderError)
        self._failures = self._failures + 1 if foreign else 0
        job.finish(found)

    def _pass_once(self) -> None:
        """Run one pass of scores or of prompts, unless texts are still owed the time that the last one took."""
        began = time.monotonic()
        if self._writing and began < self._pass_from:
            return
        jobs = self._take()
        if not jobs:
            return
        if jobs[0].pairs:
            self._score(jobs)
        else:
            self._begin_writing(jobs)
        now = time.monotonic()
        self._pass_from = now + (now - began)

    def _score(self, jobs: list[WaitingCall]) -> None:
        self._since = began = time.monotonic()
        # By halves if a pass fails, so that a call that fails harms no other.
        for job, found in zip(jobs, by_halves(jobs, self._scored, BaseException), strict=True):
            self._outcome(job, found)
        self.totals.longest_pass = max(self.totals.longest_pass, time.monotonic() - began)

    def _scored(self, jobs: Sequence[WaitingCall]) -> list[SequenceScores]:
        pairs = [pair for job in jobs for pair in job.pairs]
        how: Any = {
            "trees": jobs[0].trees if len(jobs) == 1 else None,
            "top_tokens": max(job.top_tokens for job in jobs),
        }
        cached = _cached(jobs)
        if cached is None:
            found = self.reader.score(pairs, max_batch_tokens=self._most, **how)
        else:  # by memory, since `self._most` would count what the cache has
            found = cached.score(pairs, ends=[own for job in jobs for own in job.ends or [()] * len(job.pairs)], **how)
        if len(jobs) == 1:
            jobs[0].cached_tokens = found.stats.cached_tokens
        self.totals.passes += found.passes
        self.totals.computed_tokens += found.stats.computed_tokens
        if found.stats.computed_tokens >= _RATED and found.seconds > 0:
            self._rate = (self._rate + found.stats.computed_tokens / found.seconds) / 2
        self.totals.alone_tokens += sum(job.tokens for job in jobs)
        ends = list(accumulate(len(job.pairs) for job in jobs))
        return [_part(found, slice(end - len(job.pairs), end), job) for job, end in zip(jobs, ends, strict=True)]

    def _begin_writing(self, jobs: list[WaitingCall]) -> None:
        """Read the prompts of texts, which choose their first tokens."""
        prompts = [prompt for job in jobs for prompt in job.prompts]
        try:
            options = replace(jobs[0].options, max_batch_tokens=max(1, self.reader.budget() // _WRITING))
            writing = _Writing(jobs, self.reader.generate_steps(prompts, options))
        except BaseException as error:
            self._failed(jobs, error)
            return
        self._writing.append(writing)
        self._write_once(writing)

    def _write_once(self, writing: _Writing) -> None:
        """Run one step of texts, and drop those that nobody waits for."""
        self._since = began = time.monotonic()
        try:
            texts = next(writing.steps)
            self.totals.longest_pass = max(self.totals.longest_pass, time.monotonic() - began)
        except StopIteration as end:
            self._writing.remove(writing)
            self._written(writing, end.value)
            return
        except BaseException as error:
            self._writing.remove(writing)
            self._failed(writing.calls, error)
            return
        first = 0
        for job in writing.calls:
            own = texts[first : first + len(job.prompts) * job.options.n]
            first += len(own)
            if job.on_step is not None and not job.future.done():
                try:
                    job.on_step(own)
                except Exception as error:
                    self._outcome(job, error)
            if job.future.done():
                for text in own:
                    text.finish_reason = text.finish_reason or "left"
        if all(job.future.done() for job in writing.calls):
            self._writing.remove(writing)
            writing.steps.close()

    def _failed(self, jobs: Sequence[WaitingCall], error: BaseException) -> None:
        """Hand a call its error, or let each of several run by itself, so that one that fails harms no other."""
        if len(jobs) == 1:
            self._outcome(jobs[0], error)
            return
        with self._changed:
            for job in jobs:
                job.alone = True
                self._waiting.append(job)

    def _written(self, writing: _Writing, found: Results[list[Generation]]) -> None:
        """Hand each call its texts."""
        self.totals.passes += found.passes
        self.totals.computed_tokens += found.stats.computed_tokens
        self.totals.written_tokens += sum(len(text.token_ids) for texts in found for text in texts)
        first = 0
        for job in writing.calls:
            own = found[first : first + len(job.prompts)]
            first += len(own)
            stats = found.stats
            if len(writing.calls) > 1:
                new = sum(len(text.token_ids) for group in own for text in group)
                alone = total(job.trees)
                stats = TreeStats(alone.sequences, alone.total_tokens + new, alone.computed_tokens + new, new)
            self.totals.alone_tokens += stats.computed_tokens
            if not job.future.done():
                self._outcome(job, Results(own, stats, found.passes, found.seconds))


def _shared(first: Tokens, other: Tokens) -> int:
    """Return how many tokens two beginnings share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, other, strict=False)))


def _cached(jobs: Sequence[WaitingCall]) -> PassageReader | None:
    """Return the reader with the cache of the first call that has one, or None."""
    return next((job.cached for job in jobs if job.cached is not None), None)


def total(trees: Sequence[PrefixTree]) -> TreeStats:
    """Return the tokens of trees together."""
    return sum((tree.stats for tree in trees), TreeStats(0, 0, 0, 0))


def _part(scores: SequenceScores, part: slice, job: WaitingCall) -> SequenceScores:
    """Return the part of a pass's scores that belongs to one call."""
    most = job.top_tokens
    return SequenceScores(
        scores.logprob[part],
        scores.num_tokens[part],
        scores.is_greedy[part],
        scores.token_logprobs[part],
        replace(total(job.trees), cached_tokens=job.cached_tokens),
        scores.passes,
        scores.seconds,
        [top[:, :most] for top in scores.top_tokens[part]] if most and scores.top_tokens else None,
        [top[:, :most] for top in scores.top_logprobs[part]] if most and scores.top_logprobs else None,
        None if scores.relevance is None else scores.relevance[part],
    )
