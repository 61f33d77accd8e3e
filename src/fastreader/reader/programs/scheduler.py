"""Running many questions' programs together: each round, requests of one kind become one call of the reader."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fastreader.core.protocol import ReaderProtocol, TextOrTokens
from fastreader.errors import FastreaderError
from fastreader.reader.programs.costs import StageCost, packed_cost, stage_cost
from fastreader.reader.programs.journal import Journal, Replies
from fastreader.reader.programs.kept_reader import KeptReader
from fastreader.reader.programs.readers import Readers
from fastreader.reader.programs.requests import Program, Request, Score, Write

T = TypeVar("T")


@dataclass
class Outcome(Generic[T]):
    """How a program ended: with a value, or with the error that a call of its own raised; and what it cost."""

    value: T | None = None
    error: FastreaderError | None = None
    costs: dict[str, StageCost] = field(default_factory=dict)


@dataclass
class _Running(Generic[T]):
    index: int
    program: Program[T]
    readers: Readers
    outcome: Outcome[T]
    step: int = 0
    pending: Request | None = None

    def advance(self, replies: Replies | None, error: FastreaderError | None = None) -> None:
        """Send the replies, or raise the error, inside the program, and take its next request."""
        try:
            # Where it started, there is nothing to reply to yet.
            self.pending = self.program.throw(error) if error else self.program.send(replies)
        except StopIteration as end:
            self.pending, self.outcome.value = None, end.value
        except FastreaderError as raised:
            self.pending, self.outcome.error = None, raised

    def receive(self, replies: Replies, cost: StageCost) -> None:
        assert self.pending is not None
        stage, costs = self.pending.stage, self.outcome.costs
        costs[stage] = costs[stage] + cost if stage in costs else cost
        self.step += 1
        self.advance(replies)


def run(programs: Sequence[tuple[Program[T], Readers]], journal: Journal | None = None) -> list[Outcome[T]]:
    """Run programs to their ends, in step.

    In each round every program has one request open. Requests for the same reader, of the same kind and with the same
    options, become one call, so that the reader shares what their prompts share and decodes them together; greedy
    requests with the same prompt are decoded once. A call that raises is repeated for each program alone, so that only
    those it fails for end with the error.

    Args:
        programs: with the readers of each; programs may be of different methods.
        journal: keeps replies as they come.

    Returns:
        An outcome for each program, in order.
    """
    running = [_Running(i, program, readers, Outcome()) for i, (program, readers) in enumerate(programs)]
    for one in running:
        one.advance(None)
    while live := [one for one in running if one.pending is not None]:
        if journal is not None and (recalled := [one for one in live if _recall(one, journal)]):
            live = [one for one in live if one not in recalled]
        calls: dict[Any, list[_Running[T]]] = {}
        for one in live:
            calls.setdefault(_kind(one), []).append(one)
        for members in calls.values():
            _call(members, journal)
    return [one.outcome for one in running]


def _recall(one: _Running[T], journal: Journal) -> bool:
    assert one.pending is not None
    known = journal.recall(one.index, one.step, one.pending)
    if known is not None:
        one.receive(*known)
    return known is not None


def _kind(one: _Running[Any]) -> Any:
    """What calls must agree in to be made together."""
    request = one.pending
    assert request is not None
    reader = id(one.readers.of(request.stage))
    if isinstance(request, Score):
        return reader, "score"
    return reader, request.max_new_tokens, request.n, request.temperature, request.seed, request.stop


def _call(members: list[_Running[T]], journal: Journal | None) -> None:
    requests = [one.pending for one in members if one.pending is not None]
    reader = members[0].readers.of(requests[0].stage)
    try:
        answered = _ask(reader, requests, [one.index for one in members])
    except FastreaderError as error:
        if len(members) == 1:
            members[0].advance(None, error)
            return
        for one in members:
            _call([one], journal)
        return
    for one, request, (replies, cost) in zip(members, requests, answered, strict=True):
        if journal is not None:
            journal.record(one.index, one.step, request, replies, cost)
        one.receive(replies, cost)


def _ask(
    reader: ReaderProtocol, requests: Sequence[Request], indices: Sequence[int]
) -> list[tuple[Replies, StageCost]]:
    """One call for all requests, which are of one kind, of programs of these indices; each one's replies and cost."""
    places: dict[Any, int] = {}  # of what is asked, in the call
    order: list[list[int]] = []
    asked: list[Any] = []
    sampled = any(isinstance(request, Write) and request.temperature > 0 for request in requests)
    for request in requests:
        row = []
        for item in request.pairs if isinstance(request, Score) else request.prompts:
            key = len(asked) if sampled else _key(item)
            if key not in places:
                places[key] = len(asked)
                asked.append(item)
            row.append(places[key])
        order.append(row)
    first = requests[0]
    results: Any
    if isinstance(first, Score):
        results = reader.loglikelihood(asked)
    else:
        results = reader.generate(
            asked,
            max_new_tokens=first.max_new_tokens,
            n=first.n,
            temperature=first.temperature,
            seed=first.seed,
            stop=first.stop,
            progress=False,
        )
    kept = reader if isinstance(reader, KeptReader) else None
    answered = []
    for index, request, row in zip(indices, requests, order, strict=True):
        replies = [results[place] for place in row]
        if kept is None and len(requests) == 1 and len(asked) == len(row):
            cost = stage_cost(request, replies, results.stats, results.seconds)
        else:
            known = None if kept is None else functools.partial(kept.known, index)
            cost = packed_cost(request, replies, results.stats, results.seconds, known)
        answered.append((replies, cost))
    return answered


def _key(item: TextOrTokens | tuple[TextOrTokens, TextOrTokens]) -> Any:
    """`item` as something equal items share."""
    if isinstance(item, str):
        return item
    return tuple(_key(part) if isinstance(part, (str, list, tuple)) else part for part in item)
