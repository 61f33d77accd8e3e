"""A method's program with its costs counted, and a row written when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fastreader.errors import FastreaderError
from fastreader.reader.programs.costs import StageCost, request_cost
from fastreader.reader.programs.requests import Program
from fastreader.study.cached_reader import CachedReader
from fastreader.study.method import Answered


@dataclass
class Spent:
    """What one question and method cost; tokens as if it had been alone.

    Attributes:
        calls: prompts continued and texts scored by requests.
        given, computed: tokens; None where the reader's prompts are texts, which only it could count.
        new: tokens written by requests.
        seconds: of the calls it was packed in, its share by tokens given, and all of those it made itself; what came
            out of the cache takes none.
    """

    calls: int = 0
    given: int | None = 0
    computed: int | None = 0
    new: int = 0
    seconds: float = 0.0

    def add(self, cost: StageCost) -> None:
        """Add a request."""
        self.calls += cost.calls
        self.new += cost.new_tokens
        self.seconds += cost.seconds
        self.given = None if self.given is None or cost.total_tokens is None else self.given + cost.total_tokens
        self.computed = (
            None if self.computed is None or cost.computed_tokens is None else self.computed + cost.computed_tokens
        )

    def add_direct(self, answered: Answered, seconds: float) -> None:
        """Add what a method asked by itself, in so many seconds where it does not say."""
        stats = answered.direct
        self.new += answered.new
        self.seconds += seconds if answered.seconds is None else answered.seconds
        self.given = None if self.given is None else self.given + stats.total_tokens
        self.computed = None if self.computed is None else self.computed + stats.computed_tokens


Done = Callable[[Answered | FastreaderError, Spent], None]


def metered(program: Program[Answered], reader: CachedReader, done: Done) -> Program[None]:
    """The program, with `done` called when it ends, by an answer or by an error of ours."""
    spent = Spent()
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
            given, seconds = reader.last
            cost = request_cost(request, replies, 0.0)
            spent.add(cost)
            spent.seconds += seconds * (cost.total_tokens / given if cost.total_tokens and given else 0.0)
            request = program.send(replies)
    except StopIteration as end:
        answered: Answered = end.value
        spent.add_direct(answered, time.perf_counter() - started if own is None else own)
        done(answered, spent)
    except FastreaderError as error:
        done(error, spent)
