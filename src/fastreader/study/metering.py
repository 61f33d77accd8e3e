"""Costs of a method's program."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from fastreader.errors import FastreaderError
from fastreader.reader.programs.costs import StageCost, request_cost
from fastreader.reader.programs.requests import Program
from fastreader.study.cached_reader import CachedReader
from fastreader.study.method import Answered

NO_COST = StageCost(0, 0, 0, 0, 0.0)
Done = Callable[[Answered | FastreaderError, StageCost], None]


def metered(program: Program[Answered], reader: CachedReader, done: Done) -> Program[None]:
    """Run a program and call `done` with its answer or error, and with its cost.

    Tokens are counted as if the program had run alone. Seconds are its share, by tokens, of the calls that its
    requests were packed in, and all of the calls that it made itself; replies from the cache take none.
    """
    cost = NO_COST
    own: float | None = None
    started = time.perf_counter()
    try:
        request = next(program)
        own = time.perf_counter() - started
        while True:
            try:
                replies = yield request
            except FastreaderError as error:
                request = program.throw(error)
                continue
            tokens, seconds = reader.last
            added = request_cost(request, replies, 0.0)
            share = added.total_tokens / tokens if added.total_tokens and tokens else 0.0
            cost += replace(added, seconds=seconds * share)
            request = program.send(replies)
    except StopIteration as end:
        answered: Answered = end.value
        done(answered, cost + direct_cost(answered, time.perf_counter() - started if own is None else own))
    except FastreaderError as error:
        done(error, cost)


def direct_cost(answered: Answered, seconds: float = 0.0) -> StageCost:
    """Return the cost of the calls that a method made itself, with `seconds` if the answer has no time."""
    stats, taken = answered.direct, seconds if answered.seconds is None else answered.seconds
    return StageCost(0, stats.total_tokens, stats.computed_tokens, answered.new_tokens, taken)
