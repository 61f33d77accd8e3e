"""Run many questions' programs together: in each round, requests of one kind become one call of the reader."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Generic, TypeVar

from fastreader.core.halving import by_halves
from fastreader.errors import FastreaderError
from fastreader.reader.programs.checkpoint import Answered, Checkpoint, Replies
from fastreader.reader.programs.prefix_reader import PrefixReader
from fastreader.reader.programs.readers import Readers
from fastreader.reader.programs.requests import Program, Request, Score, StageCost, Write, request_cost

T = TypeVar("T")


@dataclass
class ProgramOutcome(Generic[T]):
    """The value of a program or the error that one of its calls raised, with its costs by stage."""

    value: T | None = None
    error: FastreaderError | None = None
    costs: dict[str, StageCost] = field(default_factory=dict)


@dataclass
class _Running(Generic[T]):
    index: int
    program: Program[T]
    readers: Readers
    outcome: ProgramOutcome[T] = field(default_factory=ProgramOutcome)
    step: int = 0
    request: Request | None = None

    def advance(
        self, replies: Replies | None = None, cost: StageCost | None = None, error: FastreaderError | None = None
    ) -> None:
        """Send replies to the program, or raise `error` inside it, and take its next request.

        Without either, the program starts.
        """
        if self.request is not None and cost is not None:
            stage, costs = self.request.stage, self.outcome.costs
            costs[stage] = costs[stage] + cost if stage in costs else cost
            self.step += 1
        try:
            self.request = self.program.throw(error) if error else self.program.send(replies)
        except StopIteration as end:
            self.request, self.outcome.value = None, end.value
        except FastreaderError as raised:
            self.request, self.outcome.error = None, raised


def run(
    programs: Sequence[tuple[Program[T], Readers]], checkpoint: Checkpoint | None = None
) -> list[ProgramOutcome[T]]:
    """Run programs to their ends, in lockstep.

    In each round every program has one open request. Requests for the same reader, of the same kind and with the same
    options, become one call, so that the reader shares common prefixes and decodes the prompts together; equal greedy
    prompts are decoded once. If a call raises, it is repeated by halves of its programs, so that only the programs
    whose own call fails end with the error.

    Args:
        programs: each with its readers; programs may belong to different methods.
        checkpoint: saves replies as they come, and supplies those that it has.

    Returns:
        An outcome for each program, in order.
    """
    running: list[_Running[T]] = []
    for index, program in enumerate(programs):
        running.append(_Running(index, *program))
        running[-1].advance()
    while live := list(filter(attrgetter("request"), running)):
        calls: dict[Hashable, list[_Running[T]]] = {}
        for one in live:
            request: Any = one.request
            # At most one recalled reply a round keeps a resumed run's calls in step with the calls of the first run.
            if checkpoint is not None and (known := checkpoint.recall(one.index, one.step, request)):
                one.advance(*known)
                continue
            kind: Hashable = "score"
            if isinstance(request, Write):
                kind = tuple(request.options.items())
            calls.setdefault((id(one.readers.of(request.stage)), kind), []).append(one)
        for members in calls.values():
            answers = by_halves(members, functools.partial(_call, checkpoint=checkpoint), FastreaderError)
            for one, answer in zip(members, answers, strict=True):
                if isinstance(answer, FastreaderError):
                    one.advance(error=answer)
                else:
                    one.advance(*answer)
    return list(map(attrgetter("outcome"), running))


def _call(members: Sequence[_Running[T]], checkpoint: Checkpoint | None) -> list[tuple[Replies, StageCost]]:
    """Send the requests of all members, which are of one kind, in one call, and save and return the replies to each."""
    first: Any = members[0].request
    reader = members[0].readers.of(first.stage)
    greedy = isinstance(first, Score) or first.temperature == 0
    places: dict[Hashable, int] = {}  # of each distinct item in the call
    items: list[Any] = []
    rows: list[list[int]] = []
    for one in members:
        rows.append([])
        request: Any = one.request
        listed: Any = request.pairs if isinstance(request, Score) else request.prompts
        for item in listed:
            key: tuple[Any, ...] = (len(items),)
            if greedy:
                key = ()
                for part in item if isinstance(request, Score) else (item,):
                    key += (part if isinstance(part, str) else tuple(part),)
            if key not in places:
                places[key] = len(items)
                items.append(item)
            rows[-1].append(places[key])
    results: Any
    if isinstance(first, Score):
        results = reader.loglikelihood(items)
    else:
        results = reader.generate(items, **first.options, progress=False)
    separate = len(members) == 1 and len(items) == len(rows[0]) and not isinstance(reader, PrefixReader)
    answers: list[Answered] = []
    outcomes = []
    for one, row in zip(members, rows, strict=True):
        request = one.request
        replies = list(map(results.__getitem__, row))
        cached = functools.partial(reader.cached, one.index) if isinstance(reader, PrefixReader) else None
        cost = request_cost(request, replies, results.seconds, results.stats if separate else None, cached)
        answers.append((one.index, one.step, request, replies, cost))
        outcomes.append((replies, cost))
    if checkpoint is not None:
        checkpoint.record(answers)
    return outcomes
