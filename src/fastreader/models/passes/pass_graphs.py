"""PassGraphs: passes recorded for trees of about one size and replayed with the tables of other trees.

Nothing of a tree reaches a pass but the numbers in its tables and their lengths. So a tree is filled up with single
tokens to the size of its bucket, and its tables overwrite the recorded pass's tables. Tiles and blocks have some
room: tiles of zeros are empty, and end at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from fastreader.core.tree import PrefixTree
from fastreader.models.passes.cuda_graphs import Record, Recorded, recorder
from fastreader.models.passes.packed_keys import PassTables, PreparedPass, Shapes
from fastreader.ops.linear_logprob import LogprobStats
from fastreader.ops.triton_support import ceil_div, power_of_2
from fastreader.ops.upload import MisfitError, StaticUpload, Uploaded

_MOST_GRAPHS = 8
# Multiply-adds of a layer during which the host launches it: 0.4 ms on a device of 4e14 operations a second.
_HOST_WORK = 8e10
Bucket = tuple[int, int, int]  # tokens, sources and targets, distinct sources
Scored = Callable[[PreparedPass, Uploaded], LogprobStats]


class PassGraphs:
    """Recorded passes of a model that score trees.

    A bucket's first tree runs as any other, the second is recorded. Beyond eight, the graph used least recently is
    dropped.

    Args:
        shapes: of its attention calls, known after a pass.
        scored: computes a prepared pass and the log-probabilities of targets, on the device alone.
        weights_a_layer: number of weights that a token is multiplied by in a layer.
        record: replaces CUDA graphs.
    """

    def __init__(
        self,
        device: torch.device,
        shapes: Shapes,
        scored: Scored,
        weights_a_layer: int,
        record: Record | None = None,
    ) -> None:
        self._device, self._shapes, self._scored = device, shapes, scored
        self._record = record or recorder(device)
        self._most_tokens = int(_HOST_WORK / max(weights_a_layer, 1))
        self._seen: set[Bucket] = set()
        self._graphs: dict[Bucket, _PassGraph] = {}

    @torch.inference_mode()
    def score(self, tree: PrefixTree) -> LogprobStats | None:
        """Return what `TreeModel.score` does, or None if the tree's pass is not to be recorded.

        That is so for a bucket's first tree, and for trees so large that the device is busy while the host launches.
        """
        filled, bucket = fill(tree)
        if len(filled) > self._most_tokens:
            return None
        if bucket not in self._seen:
            self._seen.add(bucket)
            return None
        graph = self._graphs.pop(bucket, None)
        stats = None if graph is None else graph.replay(filled)
        if graph is None or stats is None:  # the second tree, or one with more tiles or blocks than there is room for
            graph = _PassGraph(self._device, dict(self._shapes))
            stats = graph.record(filled, self._scored, self._record)
        if graph.recorded is not None:
            self._graphs[bucket] = graph
        if len(self._graphs) > _MOST_GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        count = len(tree.sources)  # copies, since the next replay writes to the same memory
        return LogprobStats(*(each[:count].clone() for each in stats[:4]))


class _PassGraph:
    """A recorded pass and its tables."""

    def __init__(self, device: torch.device, shapes: Shapes) -> None:
        self._device, self._shapes = device, shapes
        self._upload = StaticUpload(device)
        self.recorded: Recorded[LogprobStats] | None = None

    def record(self, tree: PrefixTree, scored: Scored, record: Record) -> LogprobStats:
        """Compute a tree's pass, then record it."""
        while True:
            known = len(self._shapes)
            prepared, targets = self._prepared(tree)
            stats = scored(prepared, targets)
            if len(self._shapes) == known:
                break
            self._upload = StaticUpload(self._device)  # the schedule of a new shape was not among the tables
        self.recorded = record(lambda: scored(prepared, targets))
        return stats

    def replay(self, tree: PrefixTree) -> LogprobStats | None:
        """Compute another tree's pass, or return None if its tables do not fit."""
        assert self.recorded is not None
        self._upload.again()
        try:
            self._prepared(tree)
            self._upload.send()
        except MisfitError:
            return None
        self.recorded.replay()
        return self.recorded.result

    def _prepared(self, tree: PrefixTree) -> tuple[PreparedPass, Uploaded]:
        targets = self._upload.add(tree.targets)
        tables = PassTables(self._device, self._shapes, self._upload)
        return PreparedPass.of(tree, self._device, tables, rows=tree.sources), targets


def fill(tree: PrefixTree) -> tuple[PrefixTree, Bucket]:
    """Return a tree with single tokens, sources and targets behind its own up to the size of its bucket."""
    distinct = len(np.unique(tree.sources))
    sources_wanted = _up(max(distinct, 1), 64)
    new_sources = sources_wanted - distinct
    tokens = len(tree) + new_sources
    tokens = _up(tokens + 1, max(64, min(512, power_of_2(tokens) // 8)))
    pairs = _up(len(tree.sources) + new_sources, 64)
    added = np.arange(len(tree), tokens)
    # Each of the first new tokens is a source once, the last of them (or the first of all) as often as it takes.
    sources = added[np.minimum(np.arange(pairs - len(tree.sources)), max(new_sources - 1, 0))]
    if not new_sources and len(sources):
        sources = np.full_like(sources, tree.sources[0])
    filled = replace(
        tree,
        token_ids=np.append(tree.token_ids, np.zeros_like(added)),
        positions=np.append(tree.positions, np.zeros_like(added, dtype=np.int32)),
        subtree_end=np.append(tree.subtree_end, (added + 1).astype(np.int32)),
        parent=np.append(tree.parent, np.full_like(added, -1, dtype=np.int32)),
        sources=np.append(tree.sources, sources),
        targets=np.append(tree.targets, np.zeros_like(sources)),
    )
    return filled, (tokens, pairs, sources_wanted)


def _up(number: int, multiple: int) -> int:
    return ceil_div(number, multiple) * multiple
