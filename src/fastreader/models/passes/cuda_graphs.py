"""CUDA graphs: launches that are recorded once and started together, which takes the host microseconds."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import torch

T = TypeVar("T")
VARIABLE = "FASTREADER_CUDA_GRAPHS"


class Recorded(Protocol[T]):
    """A function's launches, and what it returned: tensors that each replay writes again."""

    result: T

    def replay(self) -> None:
        """Launch all again, on the same memory."""


# Runs a function and records what it launches; called with a function that ran before, so that nothing is compiled.
# None if there is no memory for it.
Record = Callable[[Callable[[], Any]], Recorded[Any] | None]


# `torch.cuda.graph` alone captures all graphs of a process on one stream, of the device that captured first; elsewhere
# it records nothing. On a stream cuBLAS has one workspace, in the pool of the first graph that needs it. torch 2.9 to
# 2.11 keep it for ever, and refuse a pool that holds memory but no graph (pytorch #189126); 2.12 and 2.13 release it
# with any graph of the stream (#193402). So each recorder has a stream, and another pool when its graphs are all gone.
_CAPTURING = threading.Lock()  # PyTorch wants one capture at a time
_IDLE: dict[torch.device, list[torch.cuda.Stream]] = {}  # streams of recorders that are gone


class CudaGraph(Generic[T]):
    """A function's launches as a CUDA graph, see `Recorded`.

    Args:
        function: launches on the current stream, and neither waits for the device nor copies from or to the host.
        recorder: whose memory and stream it takes, as long as it lives.
    """

    def __init__(self, function: Callable[[], T], recorder: _Recorder) -> None:
        self._recorder = recorder  # before the graph, so that it goes later
        self._graph = torch.cuda.CUDAGraph()
        device, stream = recorder.device, recorder.stream
        # The outer stream is the current one again even after a capture that failed.
        current = torch.cuda.stream(torch.cuda.current_stream(device))
        recording = torch.cuda.graph(self._graph, recorder.pool, stream, capture_error_mode="thread_local")
        with torch.cuda.device(device), current, recording:
            self.result = function()

    def replay(self) -> None:
        """Launch all again, on the same memory."""
        self._graph.replay()


class _Recorder:
    """Records CUDA graphs that never run at one time, all in one pool of memory.

    Attributes:
        device: where they launch.
        pool: the memory of the graphs that are alive; None before the first.
        stream: on which they are captured, and no graph of another living recorder; None before the first.
        full: whether memory ran out, after which nothing is recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool: Any = None
        self.stream: torch.cuda.Stream | None = None
        self.full = False
        self._alive: weakref.WeakSet[CudaGraph[Any]] = weakref.WeakSet()

    def __call__(self, function: Callable[[], Any]) -> CudaGraph[Any] | None:
        if self.full:
            return None
        try:
            return self._captured(function)
        except torch.OutOfMemoryError:
            self.full = True
            warnings.warn(
                "no memory is left to record CUDA graphs, so that launches take the host longer; "
                f"{VARIABLE}=0 records none from the start",
                stacklevel=2,
            )
            return None

    def _captured(self, function: Callable[[], Any]) -> CudaGraph[Any]:
        with _CAPTURING:
            if self.stream is None:
                idle = _IDLE.setdefault(self.device, [])
                self.stream = idle.pop() if idle else torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
                weakref.finalize(self, idle.append, self.stream)
            if not self._alive:
                self.pool = torch.cuda.graph_pool_handle()
            recorded: CudaGraph[Any] = CudaGraph(function, self)
        self._alive.add(recorded)
        return recorded


def recorder(device: torch.device) -> Record:
    """Return what records CUDA graphs on a device, all in one pool of memory."""
    return _Recorder(device)


def graphs_wanted() -> bool:
    """Return whether passes and steps may be recorded: unless FASTREADER_CUDA_GRAPHS is 0."""
    return os.environ.get(VARIABLE) != "0"
