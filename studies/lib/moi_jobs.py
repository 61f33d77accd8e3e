"""Run the questions of a study in several processes, each with its own reader."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing.connection import wait as wait_for
from types import TracebackType
from typing import Any

_worker: Any = None  # the object of this process of the pool


class Jobs:
    """Runs a method of an object for many questions. A context manager.

    A stop loses the questions in progress, at most one for each process.

    Args:
        count: number of processes, at least 1; 1 runs everything in this process, with `own`.
        own: the object.
        make: function at a module's top level that makes an equal object from `arguments`, once in each process.
        arguments: argument of `make`.
    """

    def __init__(self, count: int, own: Any, make: Callable[[Any], Any], arguments: Any) -> None:
        self._own, self._count = own, count
        self._pool: ProcessPoolExecutor | None = None
        if count > 1:
            import torch

            threads = max(1, torch.get_num_threads() // count)
            start = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
            self._pool = ProcessPoolExecutor(count, start, _begin, (make, arguments, threads))

    def __enter__(self) -> Jobs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def run(self, what: str, tasks: Mapping[int, tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        """Yield (key, ``what(key, *given)``) of each task as it finishes. Raise the first error at the end."""
        if self._pool is None:
            yield from ((key, getattr(self._own, what)(key, *given)) for key, given in tasks.items())
            return
        left = iter(tasks.items())
        waiting: dict[Future[Any], int] = {}
        error: BaseException | None = None
        while True:
            while error is None and len(waiting) < self._count and (task := next(left, None)) is not None:
                waiting[self._pool.submit(_do, what, task[0], task[1])] = task[0]
            if not waiting:
                break
            for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                key = waiting.pop(done)
                if (found := done.exception()) is None:
                    yield key, done.result()
                else:
                    error = error or found
        if error is not None:
            raise error


def _begin(make: Callable[[Any], Any], arguments: Any, threads: int) -> None:
    global _worker
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _worker = make(arguments)


def _end_with_parent() -> None:
    """Exit when the parent ends: a pool's process does not notice a killed parent, and would keep its reader."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for([parent.sentinel])
    os._exit(1)


def _do(what: str, key: int, given: tuple[Any, ...]) -> Any:
    return getattr(_worker, what)(key, *given)
