"""Recorders of CUDA graphs: memory, streams and replays when others, or graphs of the same one, are gone."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fastreader.models.passes.cuda_graphs import recorder

pytestmark = pytest.mark.gpu


def operand(seed: int) -> Tensor:
    return torch.randn(64, 64, generator=torch.Generator().manual_seed(seed)).to("cuda", torch.bfloat16)


def product(left: Tensor, right: Tensor) -> Callable[[], Tensor]:
    """A cuBLAS product, which takes a workspace of its stream."""

    def run() -> Tensor:
        return torch.mm(left, right, out_dtype=torch.float32)

    run()  # compiled and allocated before it is recorded
    return run


def close(got: Tensor, left: Tensor, right: Tensor) -> bool:
    return torch.allclose(got.cpu(), (left.float() @ right.float()).cpu(), atol=1e-3)


def collect() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def test_a_recorder_outlives_another() -> None:
    """The first product's workspace may be in the pool of the first recorder, whose memory is released."""
    x, y = operand(0), operand(1)
    run, device = product(x, y), torch.device("cuda", 0)
    first, second = recorder(device), recorder(device)
    gone, kept = first(run), second(run)
    assert gone is not None and kept is not None
    kept.replay()
    assert close(kept.result, x, y)
    del gone, first
    collect()
    kept.result.zero_()
    kept.replay()
    assert close(kept.result, x, y)


def test_a_graph_outlives_another_of_its_recorder() -> None:
    x, y = operand(0), operand(1)
    record = recorder(torch.device("cuda", 0))
    gone, kept = record(product(x, y)), record(product(y, y))
    del gone
    collect()
    later = record(product(x, x))
    assert kept is not None and later is not None
    for _ in range(2):
        kept.replay()
        assert close(kept.result, y, y)
        later.replay()
        assert close(later.result, x, x)


def test_recording_again_after_all_graphs_are_gone() -> None:
    x, y = operand(0), operand(1)
    record = recorder(torch.device("cuda", 0))
    for left, right in ((x, y), (y, x), (x, x)):
        graph = record(product(left, right))
        assert graph is not None
        graph.replay()
        assert close(graph.result, left, right)
        del graph
        collect()
