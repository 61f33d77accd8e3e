"""CUDA graphs: launches that are recorded once and started together, which takes the host microseconds."""

from __future__ import annotations

import os
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
Record = Callable[[Callable[[], Any]], Recorded[Any]]


class CudaGraph(Generic[T]):
    """A function's launches as a CUDA graph, see `Recorded`.

    Args:
        function: launches on the current stream, and neither waits for the device nor copies from or to the host.
        device: where it launches.
        pool: of the memory of graphs that never run at one time.
    """

    def __init__(self, function: Callable[[], T], device: torch.device, pool: Any) -> None:
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self.result = function()

    def replay(self) -> None:
        """Launch all again, on the same memory."""
        self._graph.replay()


def recorder(device: torch.device) -> Record:
    """Return what records CUDA graphs on a device, all in one pool of memory."""
    pool = torch.cuda.graph_pool_handle()
    return lambda function: CudaGraph(function, device, pool)


def graphs_wanted() -> bool:
    """Return whether FASTREADER_CUDA_GRAPHS is 1."""
    return os.environ.get(VARIABLE) == "1"
