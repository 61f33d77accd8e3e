"""Recorded passes on a stand-in for CUDA graphs, with Triton's kernels in the interpreter."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.support import one_by_one, tiny_llama
from recorded import Graphs

from fastreader.core.tree import PrefixTree
from fastreader.models.passes import cuda_graphs, pass_graphs
from fastreader.models.passes.packed_keys import PreparedPass
from fastreader.models.passes.pass_graphs import PassGraphs, fill
from fastreader.models.tree_model import TreeModel
from fastreader.ops import upload
from fastreader.ops.linear_logprob import LogprobStats
from fastreader.ops.upload import Uploaded

pytestmark = pytest.mark.interpreter
sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "gpu"))


def sequences_of(seed: int, tokens: int = 40) -> list[tuple[list[int], list[int]]]:
    """Return a few prompts of random lengths, about `tokens` in all, with three answers each."""
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.choice(np.arange(3, tokens - 3), int(rng.integers(2, 5)), replace=False))
    lengths = np.diff([0, *cuts.tolist(), tokens + int(rng.integers(0, 6))])
    prompts = [rng.integers(5, 250, int(length)).tolist() for length in lengths]
    return [(prompt, rng.integers(5, 250, 3).tolist()) for prompt in prompts for _ in range(3)]


def tree_of(seed: int, tokens: int = 40) -> PrefixTree:
    return PrefixTree.build(sequences_of(seed, tokens))


@pytest.fixture
def model() -> Iterator[TreeModel]:
    from pretended import pretended

    with pretended():
        made = TreeModel(tiny_llama(num_key_value_heads=1), "tiny", "exact", "torch", own=True)
    with pretended(kernels=None):
        yield made


def same(got: LogprobStats | None, want: LogprobStats) -> None:
    assert got is not None
    count = len(got.logprob)
    for mine, eager in zip(got, want, strict=True):
        assert (mine is None) == (eager is None)
        assert mine is None or torch.equal(mine, eager[:count])


def test_a_recorded_pass_gives_the_digits_of_an_eager_one_for_another_tree(
    model: TreeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorded pass knows one tree only. Tiles that another tree lacks are empty."""
    from fastreader.ops.tree_attention.plan import AttentionPlan

    monkeypatch.setattr(upload, "with_room", lambda rows: rows + 2)  # empty tiles take the interpreter long
    record = Graphs()
    graphs = PassGraphs(model.device, model._shapes, model.scored, 1, record=record)
    first, second, third = (tree_of(seed) for seed in (1, 2, 4))
    assert len({fill(tree)[1] for tree in (first, second, third)}) == 1 < len({len(t) for t in (second, third)})
    assert graphs.score(first) is None
    same(graphs.score(second), model.score(fill(second)[0]))
    (recording,) = record.recordings
    places = [each.data_ptr() for each in recording.result if each is not None]
    buffer = next(iter(graphs._graphs.values()))._upload.buffer
    assert buffer is not None
    address = buffer.data_ptr()
    got = graphs.score(third)
    same(got, model.score(fill(third)[0]))
    assert recording.replays == 1 and len(record.recordings) == 1
    assert [each.data_ptr() for each in recording.result if each is not None] == places
    assert buffer.data_ptr() == address
    (shape, _), *_ = model._shapes
    grids = {grid[0] for name, grid in recording.grids if name == "tree_attention_kernel"}
    assert len(shape.schedule(AttentionPlan(fill(third)[0].subtree_end), model.device).tile_start) < max(grids)
    want = np.concatenate(one_by_one(tiny_llama(num_key_value_heads=1), sequences_of(4)))
    assert got is not None
    assert np.abs(got.logprob.double().numpy()[third.pairs] - want).max() <= 2e-5


class Counted:
    """Takes the place of a model: its scores are the targets."""

    def __init__(self) -> None:
        self.record = Graphs()
        self.passes = 0

    def graphs(self, weights: int = 1) -> PassGraphs:
        return PassGraphs(torch.device("cpu"), {}, self.scored, weights, record=self.record)

    def scored(self, prepared: PreparedPass, targets: Uploaded) -> LogprobStats:
        self.passes += 1
        prepared.tokens.get()
        scores = targets.get().float()
        return LogprobStats(scores, scores + 1, scores[:0], targets.get() + 2, None)


def test_results_are_copies_of_the_tree_s_own_rows() -> None:
    counted = Counted()
    graphs = counted.graphs()
    trees = [tree_of(seed) for seed in (1, 2, 4, 5)]
    results = [graphs.score(tree) for tree in trees]
    assert results[0] is None and counted.passes == 2 and len(counted.record.recordings) == 1
    for tree, stats in zip(trees[1:], results[1:], strict=True):
        assert stats is not None
        assert np.array_equal(stats.logprob.numpy(), tree.targets.astype(np.float32))
        assert np.array_equal(stats.argmax.numpy(), tree.targets + 2) and stats.label_logprob is None


def test_a_tree_that_does_not_fit_is_recorded_again() -> None:
    counted = Counted()
    graphs = counted.graphs()
    for seed in (1, 2):
        graphs.score(tree_of(seed))
    (graph,) = graphs._graphs.values()
    graph._upload._layout[-1] = (np.dtype(np.int64), (1,))
    for seed in (4, 5):
        stats = graphs.score(tree_of(seed))
        assert stats is not None
        assert np.array_equal(stats.logprob.numpy(), tree_of(seed).targets.astype(np.float32))
    assert len(counted.record.recordings) == 2


def test_the_graph_used_least_recently_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_graphs, "_MOST_GRAPHS", 2)
    counted = Counted()
    graphs = counted.graphs()
    small, middle, large = tree_of(1), tree_of(1, 200), tree_of(1, 400)
    for tree in (small, middle, large):
        assert graphs.score(tree) is None
    for tree in (small, middle, small, large, small):
        assert graphs.score(tree) is not None
    assert list(graphs._graphs) == [fill(large)[1], fill(small)[1]]
    assert len(counted.record.recordings) == 3
    graphs.score(middle)
    assert len(counted.record.recordings) == 4


def test_a_pass_that_keeps_the_device_busy_is_not_recorded() -> None:
    graphs = Counted().graphs(weights=10**12)
    assert [graphs.score(tree_of(1)) for _ in range(3)] == [None] * 3


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 300, 4096, 5000, 12_701])
def test_filled_trees(tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    tree = PrefixTree.build([(rng.integers(0, 9, tokens).tolist(), rng.integers(0, 9, 2).tolist()) for _ in range(3)])
    filled, (count, pairs, sources) = fill(tree)
    assert len(filled) == count and len(filled.targets) == len(filled.sources) == pairs
    assert len(np.unique(filled.sources)) == sources and sources % 64 == pairs % 64 == 0
    assert count % 64 == 0 and (count % 512 == 0 or count <= 4096) and count - len(tree) <= 64 + max(64, count // 4)
    for name in ("token_ids", "positions", "subtree_end", "parent", "sources", "targets"):
        old, new = getattr(tree, name), getattr(filled, name)
        assert new.dtype == old.dtype and np.array_equal(new[: len(old)], old)
    assert (filled.parent[len(tree) :] == -1).all()
    assert np.array_equal(filled.subtree_end[len(tree) :], np.arange(len(tree), count) + 1)


def test_without_memory_to_record_passes_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = cuda_graphs.recorder(torch.device("cuda"))

    def full(self: object, function: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(type(recorder), "_captured", full)
    counted = Counted()
    graphs = PassGraphs(torch.device("cpu"), {}, counted.scored, 1, recorder)
    tree = tree_of(1)
    assert graphs.score(tree) is None
    with pytest.warns(UserWarning, match="no memory is left to record CUDA graphs"):
        stats = graphs.score(tree)
    assert stats is not None and np.array_equal(stats.logprob.numpy(), tree.targets.astype(np.float32))
    assert graphs.score(tree) is not None and not graphs._graphs
