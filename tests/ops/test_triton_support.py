"""The decisions of the Triton implementations before a launch."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fastreader.ops import triton_support
from fastreader.ops.triton_support import TARGETS, nearest_target, with_near_tiles

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "gpu"))

from gpu_workloads import WORKLOADS
from tile_efficiency import efficiency


def test_every_capability_has_a_target() -> None:
    known = {80: 80, 86: 89, 87: 89, 89: 89, 90: 90, 100: 100, 103: 100, 110: 100, 120: 120, 121: 120}
    assert {capability: nearest_target(capability) for capability in known} == known
    assert set(known.values()) == set(TARGETS)


def test_a_tile_that_spans_more_than_32_bits_is_copied() -> None:
    near = torch.empty((1000, 8, 64), device="meta")
    assert with_near_tiles(near, (64, 1, 64)) is near
    far = torch.empty((64, 32, 2_000_000), device="meta").permute(2, 1, 0)  # head size outermost
    copied = with_near_tiles(far, (64, 1, 64))
    assert copied.is_contiguous()
    assert copied.shape == far.shape


@pytest.mark.parametrize(("workload", "bar"), [("W1", 0.80), ("W2", 0.85)])
def test_tile_efficiency(workload: str, bar: float) -> None:
    assert efficiency(WORKLOADS[workload](), 3, 128, 64)[0] >= bar


@pytest.mark.parametrize(("groups", "block_m"), [(1, 128), (3, 128), (71, 16), (16, 16), (17, 16)])
def test_heads_packed_as_rows_cover_every_head(groups: int, block_m: int) -> None:
    pytest.importorskip("triton")
    from fastreader.ops.tree_attention.triton import pack_heads

    packed, chunks = pack_heads(groups, block_m)
    assert packed <= block_m
    assert (chunks - 1) * packed < groups <= chunks * packed


def test_two_devices_keep_their_own_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    current = 0
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (8 + index, 0))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(multi_processor_count=100 + index)
    )
    for cached in (triton_support._capability, triton_support._processors):
        cached.cache_clear()
    try:
        plain = torch.device("cuda")
        for current in (0, 1, 0):
            assert triton_support.capability(plain) == triton_support.capability(torch.device("cuda", current))
            assert (triton_support.capability(plain), triton_support.processors(plain)) == (
                80 + 10 * current,
                100 + current,
            )
            assert triton_support.target_of(torch.device("cuda", 1 - current)) == 90 - 10 * current
    finally:
        for cached in (triton_support._capability, triton_support._processors):
            cached.cache_clear()
