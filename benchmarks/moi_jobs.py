"""The questions of a study in several processes, each with a reader of its own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from types import TracebackType
from typing import Any

_worker: Any = None  # what a process of the pool does its questions with


class Jobs:
    """Runs a method of an object for many questions; a context manager.

    Args:
        count: processes; 1 does everything in this one, with `own`.
        own: the object.
        make: makes its like from `arguments`, once a process; at a module's top level.
        arguments: what it is made of.
    """

    def __init__(self, count: int, own: Any, make: Callable[[Any], Any], arguments: Any) -> None:
        if count < 1:
            raise SystemExit(f"--jobs: expected at least 1, got {count}")
        self._own = own
        self._pool: ProcessPoolExecutor | None = None
        if count > 1:
            threads = max(1, (os.cpu_count() or 1) // count)
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
        """(key, ``what(key, *given)``) of each task, as they are done."""
        if self._pool is None:
            yield from ((key, getattr(self._own, what)(key, *given)) for key, given in tasks.items())
            return
        waiting = {self._pool.submit(_do, what, key, given): key for key, given in tasks.items()}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def _begin(make: Callable[[Any], Any], arguments: Any, threads: int) -> None:
    global _worker
    import torch

    torch.set_num_threads(threads)
    _worker = make(arguments)


def _do(what: str, key: int, given: tuple[Any, ...]) -> Any:
    return getattr(_worker, what)(key, *given)
