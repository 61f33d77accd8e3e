"""Packer: one thread that runs the passes of all requests, so that requests at the same time share them.

A request runs in its own thread, with a `PackedReader` instead of the reader. Its calls of `score` wait here, one pass
at a time; the packer takes all that wait and fit, scores their sequences in one tree, and hands each its part. Texts
are generated a step at a time between such passes. So a call that nobody waits for any more ends within one pass.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from itertools import accumulate, takewhile
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from fastreader.core.checks import expect
from fastreader.core.halving import by_halves
from fastreader.core.options import StepOptions
from fastreader.core.protocol import GenerateArguments, Generation, Results, SequenceScores, TextOrTokens
from fastreader.core.tree import PrefixTree, Tokens, TreeStats
from fastreader.errors import FastreaderError
from fastreader.integrations.serve.settings import ServerSettings
from fastreader.reader.base import ReaderBase
from fastreader.reader.generation.generate import Steps
from fastreader.reader.generation.text_so_far import DecodedText
from fastreader.reader.loglikelihood import ScoreReader
from fastreader.reader.relevance import RelevanceCalls

log = logging.getLogger(__name__)
Pair = tuple[Tokens, Tokens]
OnStep = Callable[[list[tuple[int, DecodedText]]], None]  # the texts so far, by their numbers
TOO_LONG = "the request took longer than this server allows"
_MORE = 4  # waits for others before a pass, at most
_SHARING = 8  # at most this many budgets of calls are tried in one pass, for what they share
_WRITING = 16  # calls of generate that run at once
_PASS_TOKENS = {"cpu": 4096}  # of one pass by default, so that it takes about a second
_GPU_TOKENS = 32_768
_FAILING = 8  # passes in a row that failed as they should not, from which on the server calls itself unhealthy


class DeadlineError(FastreaderError, TimeoutError):
    """A request took longer than the server allows, or its client left."""


@dataclass
class Totals:
    """What the passes so far computed.

    Attributes:
        passes: passes of scores, and of prompts.
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
    """One pass of scores that waits, with pairs, or texts to generate after prompts."""

    deadline: float
    pairs: Sequence[Pair] = ()
    trees: Sequence[PrefixTree] = ()
    top_tokens: int = 0
    prompts: Sequence[Tokens] = ()
    options: StepOptions = field(default_factory=StepOptions)
    on_step: Callable[[list[DecodedText]], None] | None = None
    alone: bool = False
    future: Future[Any] = field(default_factory=Future)

    @property
    def tokens(self) -> int:
        """Tokens that it computes alone, without tokens to generate."""
        return sum(tree.stats.computed_tokens for tree in self.trees)

    @property
    def start(self) -> Tokens:
        """Tokens that it begins with."""
        return self.pairs[0][0] if self.pairs else self.prompts[0]

    @property
    def planned(self) -> Sequence[Pair]:
        """Sequences that it computes."""
        return self.pairs or [(prompt, ()) for prompt in self.prompts]

    def joins(self, other: _WaitingCall) -> bool:
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

    calls: list[_WaitingCall]
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
        self._waiting: deque[_WaitingCall] = deque()
        self._writing: list[_Writing] = []
        self._scores_from = 0.0  # no pass of scores before, by time.monotonic
        self._since: float | None = None  # when the pass that runs began
        self._failures = 0  # passes in a row
        self._changed = threading.Condition()
        self._open = True
        self._start()

    def _start(self) -> None:
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
        memory = self.reader.budget()
        device = self.reader.local_model.model.device.type
        return min(self._most or _PASS_TOKENS.get(device, _GPU_TOKENS), memory)

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

    def submit(self, job: _WaitingCall) -> Any:
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
                self._score_once()
                self._begin_writing()
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

    def _take(self, scores: bool) -> list[_WaitingCall]:
        """Return the oldest call of scores, or of texts, with the others that join its pass, or an empty list."""
        with self._changed:
            waiting = [job for job in self._waiting if bool(job.pairs) == scores]
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

    def _fitting(self, first: _WaitingCall, others: Sequence[_WaitingCall]) -> list[_WaitingCall]:
        """Return the calls that fit with the first, in order of how much of its beginning they share."""
        others = list(filter(first.joins, others)) if self._pack else []
        if not others:
            return []
        budget = self.budget
        others.sort(key=lambda job: -_shared(first.start, job.start))
        alone = list(accumulate((job.tokens for job in others), initial=first.tokens))[1:]
        fewest, most = bisect_right(alone, budget), bisect_right(alone, _SHARING * budget)
        # What they share is computed once, so more of them may fit than their sizes say.
        while fewest < most:
            count = (fewest + most + 1) // 2
            trees = self.reader.plan([p for job in [first, *others[:count]] for p in job.planned], budget)
            if sum(tree.stats.computed_tokens for tree in trees) <= budget:
                fewest = count
            else:
                most = count - 1
        return others[:fewest]

    def _outcome(self, job: _WaitingCall, found: Any) -> None:
        foreign = isinstance(found, BaseException) and not isinstance(found, FastreaderError)
        self._failures = self._failures + 1 if foreign else 0
        job.finish(found)

    def _score_once(self) -> None:
        """Run one pass of scores, unless texts are still owed the time that the last one took."""
        began = time.monotonic()
        if self._writing and began < self._scores_from:
            return
        if jobs := self._take(True):
            self._since = began
            # By halves if a pass fails, so that a call that fails harms no other.
            for job, found in zip(jobs, by_halves(jobs, self._scored, BaseException), strict=True):
                self._outcome(job, found)
            now = time.monotonic()
            self._scores_from = now + (now - began)

    def _scored(self, jobs: Sequence[_WaitingCall]) -> list[SequenceScores]:
        pairs = [pair for job in jobs for pair in job.pairs]
        found = self.reader.score(
            pairs,
            max_batch_tokens=self._most,
            trees=jobs[0].trees if len(jobs) == 1 else None,
            top_tokens=max(job.top_tokens for job in jobs),
        )
        self.totals.passes += found.passes
        self.totals.computed_tokens += found.stats.computed_tokens
        self.totals.alone_tokens += sum(job.tokens for job in jobs)
        ends = list(accumulate(len(job.pairs) for job in jobs))
        return [_part(found, slice(end - len(job.pairs), end), job) for job, end in zip(jobs, ends, strict=True)]

    def _begin_writing(self) -> None:
        """Let the texts that wait be generated too, as far as there is room."""
        while len(self._writing) < _WRITING and (jobs := self._take(False)):
            prompts = [prompt for job in jobs for prompt in job.prompts]
            try:
                options = replace(jobs[0].options, max_batch_tokens=max(1, self.reader.budget() // _WRITING))
                self._writing.append(_Writing(jobs, self.reader.generate_steps(prompts, options)))
            except BaseException as error:
                self._failed(jobs, error)

    def _write_once(self, writing: _Writing) -> None:
        """Run one step of texts, and drop those that nobody waits for."""
        self._since = time.monotonic()
        try:
            texts = next(writing.steps)
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

    def _failed(self, jobs: Sequence[_WaitingCall], error: BaseException) -> None:
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
                alone = _total(job.trees)
                stats = TreeStats(alone.sequences, alone.total_tokens + new, alone.computed_tokens + new, new)
            self.totals.alone_tokens += stats.computed_tokens
            if not job.future.done():
                self._outcome(job, Results(own, stats, found.passes, found.seconds))


class PackedReader(ScoreReader, RelevanceCalls):
    """A `ScoringReader` for one request, whose passes run in a `Packer`.

    `stats` of its results count the call as if it had run alone.
    """

    def __init__(self, packer: Packer, deadline: float) -> None:
        super().__init__(packer.reader.encoder)
        self._packer, self._reader, self._deadline = packer, packer.reader, deadline
        self._waiting: Future[Any] | None = None
        self._cancelled = False
        self.name = packer.reader.name
        self.relevance_writer = packer.reader.relevance_writer

    def cancel(self) -> None:
        """Let the call that waits, and each later one, raise a `DeadlineError`, while a running pass ends as usual."""
        self._cancelled = True
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

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return int(self._reader.local_model.model.head.weight.shape[0])

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
        most = self._packer.budget
        return self._reader.plan(sequences, min(max_batch_tokens or most, most), new_tokens=new_tokens)

    def score(
        self,
        sequences: Sequence[Pair],
        *,
        max_batch_tokens: int | None = None,
        trees: Sequence[PrefixTree] | None = None,
        top_tokens: int = 0,
    ) -> SequenceScores:
        """Score as `ReaderBase.score` does, each pass when its turn comes."""
        planned = self.plan(sequences, max_batch_tokens) if trees is None else trees
        held = sum(len(tree.leaves) for tree in planned)
        expect(held == len(sequences), "trees", f"trees of {len(sequences)} sequences", f"trees of {held} sequences")
        parts = []
        for tree in planned:
            pairs = [sequences[i] for i in tree.sequence_ids]
            alone = replace(tree, sequence_ids=np.arange(len(pairs)))
            parts.append(self._submit(_WaitingCall(self._deadline, pairs, [alone], top_tokens)))
        places = np.concatenate([tree.sequence_ids for tree in planned]) if planned else np.zeros(0, dtype=np.int64)
        return _joined(parts, np.argsort(places, kind="stable"), top_tokens)

    def generate(
        self,
        prompts: Iterable[TextOrTokens],
        *,
        top_logprobs: int = 0,
        on_step: OnStep | None = None,
        **options: Unpack[GenerateArguments],
    ) -> Results[list[Generation]]:
        """Generate as `ReaderBase.generate` does, together with greedy texts of equal options.

        Args:
            prompts, options: see `ReaderBase.generate`.
            top_logprobs: number of most likely tokens that each token comes with.
            on_step: called after each step, in the thread of the passes, with the texts that are being generated and
                their numbers, n for each prompt.
        """
        options["progress"] = False
        settings = StepOptions(**options, top_logprobs=top_logprobs)
        given = [
            self.encoder.prompt_tokens(prompt, f"prompts[{i}]", special_tokens=settings.special_tokens)
            for i, prompt in enumerate(prompts)
        ]
        results: list[list[Generation]] = [[] for _ in given]
        stats, passes, seconds, limit = TreeStats(0, 0, 0, 0), 0, 0.0, self.max_length
        for members in _by_size(given, self._packer.budget):
            own = [given[i] for i in members]
            whole = limit is None or all(len(prompt) <= limit for prompt in own)
            trees = self.plan([(prompt, []) for prompt in own]) if whole else ()
            call = _WaitingCall(self._deadline, trees=trees, prompts=own, options=settings)
            if on_step is not None:
                numbers = [i * settings.n + sample for i in members for sample in range(settings.n)]
                call.on_step = _numbered(on_step, numbers)
            found: Results[list[Generation]] = self._submit(call)
            for i, texts in zip(members, found, strict=True):
                results[i] = texts
            stats, passes, seconds = stats + found.stats, passes + found.passes, seconds + found.seconds
        return Results(results, stats, passes, seconds)

    def _submit(self, job: _WaitingCall) -> Any:
        self._waiting = job.future
        if self._cancelled:
            raise DeadlineError(TOO_LONG)
        return self._packer.submit(job)


def _numbered(on_step: OnStep, numbers: Sequence[int]) -> Callable[[list[DecodedText]], None]:
    return lambda texts: on_step(list(zip(numbers, texts, strict=True)))


def _by_size(prompts: Sequence[Tokens], budget: int) -> list[list[int]]:
    """Return the numbers of the prompts in groups that one pass can read, with equal prompts in one group.

    Draws count how often a prompt was given, so equal prompts stay together; to read one twice costs nothing.
    """
    equal: dict[tuple[int, ...], list[int]] = {}
    for i, prompt in enumerate(prompts):
        equal.setdefault(tuple(prompt), []).append(i)
    groups: list[list[int]] = []
    left = 0
    for prompt, members in equal.items():
        if not groups or len(prompt) > left:
            groups.append([])
            left = budget
        groups[-1] += members
        left -= len(prompt)
    return groups


def _shared(first: Tokens, other: Tokens) -> int:
    """Return how many tokens two beginnings share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, other, strict=False)))


def _total(trees: Sequence[PrefixTree]) -> TreeStats:
    return sum((tree.stats for tree in trees), TreeStats(0, 0, 0, 0))


def _part(scores: SequenceScores, part: slice, job: _WaitingCall) -> SequenceScores:
    """Return the part of a pass's scores that belongs to one call."""
    most = job.top_tokens
    return SequenceScores(
        scores.logprob[part],
        scores.num_tokens[part],
        scores.is_greedy[part],
        scores.token_logprobs[part],
        _total(job.trees),
        scores.passes,
        scores.seconds,
        [top[:, :most] for top in scores.top_tokens[part]] if most and scores.top_tokens else None,
        [top[:, :most] for top in scores.top_logprobs[part]] if most and scores.top_logprobs else None,
        None if scores.relevance is None else scores.relevance[part],
    )


def _joined(parts: Sequence[SequenceScores], order: npt.NDArray[np.int64], top_tokens: int) -> SequenceScores:
    """Return the scores of a call's passes as one, where `order` puts their sequences into the call's order."""

    def arrays(name: str, kind: type) -> npt.NDArray[Any]:
        found = [getattr(part, name) for part in parts]
        return np.concatenate(found)[order] if found else np.zeros(0, dtype=kind)

    def lists(name: str) -> list[Any]:
        every = [row for part in parts for row in getattr(part, name)]
        return [every[i] for i in order]

    return SequenceScores(
        arrays("logprob", float),
        arrays("num_tokens", int),
        arrays("is_greedy", bool),
        lists("token_logprobs"),
        sum((part.stats for part in parts), TreeStats(0, 0, 0, 0)),
        sum(part.passes for part in parts),
        sum(part.seconds for part in parts),
        lists("top_tokens") if top_tokens else None,
        lists("top_logprobs") if top_tokens else None,
        arrays("relevance", float) if parts and parts[0].relevance is not None else None,
    )
