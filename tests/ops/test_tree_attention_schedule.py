"""The block schedule against a dense mask, and its efficiency on its workloads."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
from cpu_cases import forest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastreader.core.tree import PrefixTree
from fastreader.errors import InputError
from fastreader.ops import extension
from fastreader.ops.tree_attention import AttentionPlan, Schedule
from fastreader.ops.tree_attention.cpu import query_block

W1 = Path(os.environ.get("FASTREADER_W1_TOKENS", "w1-tokens.json"))  # real token ids, not shipped


def dense(subtree_end, query_node, query_positions, key_positions, window):
    keys = np.arange(len(subtree_end))
    mask = (keys[None] <= query_node[:, None]) & (query_node[:, None] < subtree_end[None])
    if window is not None:
        mask &= query_positions[:, None] - key_positions[None] < window
    return mask


def check(
    schedule: Schedule, mask: np.ndarray, windowed: bool, nodes: np.ndarray, slots: np.ndarray | None = None
) -> None:
    """Hold a schedule against the mask of visible keys, or of visible slots if blocks are runs of slots."""
    mask = mask if slots is None else slots
    covered = np.zeros_like(mask)
    assert np.array_equal(schedule.tile_start[1:], schedule.tile_stop[:-1])
    assert list(schedule.tile_start[:1]) == [0] * min(len(mask), 1)
    assert list(schedule.tile_stop[-1:]) == [len(mask)] * min(len(mask), 1)
    assert (schedule.tile_stop - schedule.tile_start <= schedule.query_block).all()
    assert (schedule.block_stop - schedule.block_start <= schedule.key_block).all()
    for tile, (first, last) in enumerate(itertools.pairwise(schedule.block_ptr)):
        rows = slice(schedule.tile_start[tile], schedule.tile_stop[tile])
        end = 0
        for block in range(first, last):
            start, stop = int(schedule.block_start[block]), int(schedule.block_stop[block])
            assert end <= start < stop
            end = stop
            covered[rows, start:stop] = True
            seen = mask[rows, start:stop]
            if slots is not None:
                assert start % 32 == stop % 32 == 0
            if windowed or slots is not None:
                assert not schedule.block_full[block] or seen.all()
            else:
                assert seen.any(axis=0).all()
                assert bool(schedule.block_full[block]) == bool(seen.all())
            if schedule.block_limited[block]:
                assert slots is None and not windowed
                assert np.array_equal(seen, np.arange(start, stop)[None] <= nodes[rows, None])
    assert not (mask & ~covered).any()


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["self", "ascending", "any"]), st.booleans(), st.booleans())
def test_covers_what_is_visible_and_no_more(seed, query_nodes, windowed, arbitrary):
    rng = np.random.default_rng(seed)
    tree = forest(rng, int(rng.integers(1, 8)), 30, int(rng.integers(1, 4)))
    subtree_end, positions, count = tree.subtree_end, tree.positions, len(tree)
    if arbitrary:
        subtree_end = rng.integers(-1, count + 2, count).astype(np.int32)
        positions = rng.integers(0, 30, count).astype(np.int32)
    query_node = np.arange(count) if query_nodes == "self" else rng.integers(0, count, int(rng.integers(0, 40)))
    if query_nodes == "ascending":
        query_node = np.sort(query_node)
    window = int(rng.integers(1, 12)) if windowed else None
    align = int(rng.choice([1, 2, 4]))
    plan = AttentionPlan(subtree_end, query_node, positions[query_node], positions)
    schedule = plan.schedule(window, int(rng.integers(1, 12)), align * int(rng.integers(1, 6)), align)
    check(schedule, dense(subtree_end, query_node, positions[query_node], positions, window), windowed, query_node)


@pytest.mark.skipif(extension.why_missing() is not None, reason=str(extension.why_missing()))
@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["self", "ascending", "any"]), st.booleans(), st.booleans())
def test_slots_hold_each_visible_key_once_in_order(seed, query_nodes, windowed, long):
    rng = np.random.default_rng(seed)
    tree = forest(rng, int(rng.integers(1, 12)), 700 if long else 60, int(rng.integers(1, 4)))
    subtree_end, positions, count = tree.subtree_end, tree.positions, len(tree)
    query_node = np.arange(count) if query_nodes == "self" else rng.integers(0, count, int(rng.integers(0, 40)))
    if query_nodes == "ascending":
        query_node = np.sort(query_node)
    window = int(rng.integers(1, 40)) if windowed else None
    plan = AttentionPlan(subtree_end, query_node, positions[query_node], positions)
    slots = plan.slots
    seen = (slots.birth[None] <= query_node[:, None]) & (query_node[:, None] < slots.end[None])
    mask = dense(subtree_end, query_node, None, None, None)
    for row, places in enumerate(seen):
        visible = np.flatnonzero(places)
        keys = slots.key[visible]
        assert np.array_equal(keys, np.flatnonzero(mask[row]))
        depth = positions[keys]
        level = slots.chunks[visible // 32, 0]
        assert np.array_equal(level, depth // 32)
        assert (np.diff(visible // 32)[np.diff(depth // 32) == 0] == 0).all()  # a level is in one chunk,
        assert np.array_equal(visible % 2, depth % 2)
        assert (np.diff(visible)[depth[1:] % 2 == 1] == 1).all()  # a pair side by side
    if window is not None:
        mask = dense(subtree_end, query_node, positions[query_node], positions, window)
        near = positions[query_node][:, None] - np.where(slots.key >= 0, positions[slots.key], 0)[None] < window
        seen &= near
    schedule = plan.schedule(window, int(rng.integers(1, 12)), 32 * int(rng.integers(1, 6)), None)
    check(schedule, mask, windowed, query_node, seen)


@pytest.mark.skipif(extension.why_missing() is not None, reason=str(extension.why_missing()))
def test_slots_by_hand():
    # A root of 3 keys with three leaves of 2: they share its chunk, with a copy of key 2 before each but the first.
    slots = AttentionPlan(np.array([9, 9, 9, 5, 5, 7, 7, 9, 9], dtype=np.int32)).slots
    assert slots.key[:14].tolist() == [0, 1, 2, 3, 4, -1, 2, 5, 6, -1, 2, 7, 8, -1]
    assert slots.birth[:14].tolist()[:5] == [0, 1, 2, 3, 4]
    assert slots.end[[0, 2, 6, 10]].tolist() == [9, 5, 7, 9]
    assert slots.chunks.tolist() == [[0, 0, 2**31 - 1, 0, 9]]


def test_by_hand():
    # A root of 4 keys with two children of 2 keys each: 0 1 2 3 | 4 5 | 6 7.
    subtree_end = np.array([8, 8, 8, 8, 6, 6, 8, 8], dtype=np.int32)
    schedule = AttentionPlan(subtree_end).schedule(None, 4, 4)
    assert schedule.tile_start.tolist() == [0, 4]
    assert schedule.block_ptr.tolist() == [0, 1, 3]
    assert schedule.block_start.tolist() == [0, 0, 4]
    assert schedule.block_stop.tolist() == [4, 4, 8]
    assert schedule.block_full.tolist() == [False, True, False]
    assert schedule.block_limited.tolist() == [True, True, False]


def test_empty():
    nothing = np.zeros(0, dtype=np.int32)
    schedule = AttentionPlan(nothing).schedule(None, 4, 4)
    assert len(schedule.tile_start) == len(schedule.block_start) == 0


def test_plan_keeps_schedules_and_wants_positions_for_a_window():
    plan = AttentionPlan(np.array([2, 2], dtype=np.int32))
    assert plan.schedule(None, 4, 4) is plan.schedule(None, 4, 4)
    for key_align in (1, None):
        with pytest.raises(InputError, match="a window needs query_positions"):
            plan.schedule(3, 4, 64, key_align)


def test_efficiency_on_short_leaves():
    rng = np.random.default_rng(0)
    body = rng.integers(0, 1000, 1000).tolist()
    tree = PrefixTree.build([(body, rng.integers(0, 1000, int(rng.integers(2, 13))).tolist()) for _ in range(512)])
    efficiencies(tree, cpu=0.85, gpu=0.85)


@pytest.mark.skipif(not W1.exists(), reason=f"FASTREADER_W1_TOKENS names no file of W1's token ids (looked at {W1})")
def test_efficiency_on_w1():
    data = json.loads(W1.read_text())
    tree = PrefixTree.build([(data["header"] + b, c) for b in data["bodies"] for c in data["continuations"]])
    efficiencies(tree, cpu=0.95, gpu=0.80)


def efficiencies(tree: PrefixTree, cpu: float, gpu: float) -> None:
    plan = AttentionPlan(tree.subtree_end)
    if extension.why_missing() is None:
        schedule = plan.schedule(None, query_block(3), 64, None)
    else:
        schedule = plan.schedule(None, query_block(3), 64, 32)
    useful = int((tree.positions + 1).sum())  # a query sees its path
    # The CPU kernel runs the ends of tiles and blocks only up to multiples of 32 rows and keys.
    rows = -(-(schedule.tile_stop - schedule.tile_start).astype(np.int64) * 3 // 32) * 32
    columns = -(-schedule.block_stop // 32) * 32 - schedule.block_start // 32 * 32
    executed = int((np.repeat(rows, np.diff(schedule.block_ptr)) * columns).sum())
    assert 3 * useful / executed >= cpu
    schedule = plan.schedule(None, 42, 64)
    assert 3 * useful / (len(schedule.block_start) * 128 * 64) >= gpu  # 128 rows hold 42 tokens of 3 heads
