"""Recorders of CUDA graphs: memory, streams and replays when others, or graphs of the same one, are gone."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from helpers.families import tiny
from helpers.support import byte_tokenizer
from torch import Tensor

from fastreader import Reader
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


def test_a_capture_that_fails_leaves_the_stream_and_later_captures() -> None:
    device = torch.device("cuda", 0)
    x, y = operand(0), operand(1)
    run, record = product(x, y), recorder(device)
    own = torch.cuda.Stream(device)

    def fail() -> Tensor:
        run()
        raise torch.OutOfMemoryError("none is left")

    with torch.cuda.stream(own):
        with pytest.warns(UserWarning, match="no memory is left to record CUDA graphs"):
            assert record(fail) is None
        assert torch.cuda.current_stream(device) == own
    assert torch.cuda.current_stream(device) == torch.cuda.default_stream(device)
    assert record(run) is None  # it is full
    another = recorder(device)(run)
    assert another is not None
    another.replay()
    assert close(another.result, x, y)


def test_recorders_of_one_device_in_threads() -> None:
    """Each thread records, replays and forgets its own graphs, as two readers do."""
    device = torch.device("cuda", 0)
    operands = [operand(seed) for seed in range(4)]
    runs = {(i, j): product(operands[i], operands[j]) for i in range(4) for j in range(4)}

    def work(first: int) -> bool:
        record, right = recorder(device), []
        with torch.cuda.stream(torch.cuda.Stream(device)):
            for second in range(4):
                graph = record(runs[first, second])
                assert graph is not None
                for _ in range(3):
                    graph.replay()
                torch.cuda.current_stream(device).synchronize()
                right.append(close(graph.result, operands[first], operands[second]))
        return all(right)

    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_a_reader_that_goes_while_another_is_recorded() -> None:
    """Two in one thread, the first of which is gone before the second one replays."""
    rng = np.random.default_rng(0)
    calls = [[(rng.integers(5, 250, 40).tolist(), [7, 9, i])] * 2 for i in range(3)]
    first, second = (Reader.load((tiny("Llama").cuda(), byte_tokenizer()), precision="exact") for _ in range(2))
    want = [second.score(call).logprob for call in calls]
    for reader in (first, second):
        for call in calls:
            reader.score(call)
    del first, reader
    collect()
    for call, scores in zip(calls, want, strict=True):
        np.testing.assert_allclose(second.score(call).logprob, scores, atol=1e-3)
