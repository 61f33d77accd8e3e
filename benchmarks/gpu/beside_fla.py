"""Time the gated delta rule over a tree beside fla-core's kernels, level by level: beside_fla.py --seconds N

fla-core's `chunk_gated_delta_rule` takes sequences of any lengths and a state for each, so one call computes a level of
chains; its tokens are gathered before it and scattered after it. Both have the same bfloat16 operands, and both are
compared with our reference in float32. Rows go to $OUT/rows.jsonl. Needs the package fla-core.
"""

from __future__ import annotations

import argparse
from typing import Any

import gpu_device
import numpy as np
import torch
import triton
from device_rows import DeviceRows
from gpu_workloads import WORKLOADS
from torch import Tensor

from fastreader.ops.recurrent import ScanPlan, gated_delta_rule
from fastreader.ops.recurrent.chains import chains

HEADS, SIZES = 32, (64, 128)  # equal numbers of heads of keys and values, as after a layer has repeated its keys


class Levels:
    """Tables of a tree for calls of `chunk_gated_delta_rule`.

    Args:
        parent: int64 [T], the token before each token.
    """

    def __init__(self, parent: np.ndarray) -> None:
        found = chains(parent)
        self.levels = []
        place = np.full(len(found), -1)
        for level in range(int(found.levels.max()) + 1):
            members = np.flatnonzero(found.levels == level)
            place[members] = np.arange(len(members))
            tokens = np.concatenate([np.arange(found.starts[m], found.starts[m] + found.lengths[m]) for m in members])
            bounds = np.concatenate([[0], np.cumsum(found.lengths[members])])
            before = place[found.parents[members]] if level else np.zeros(0, dtype=np.int64)
            self.levels.append([torch.from_numpy(x.astype(np.int64)).cuda() for x in (tokens, bounds, before)])
        self.counts = [len(level[1]) - 1 for level in self.levels]

    def run(self, rule: Any, query: Tensor, key: Tensor, value: Tensor, gate: Tensor, beta: Tensor) -> Tensor:
        """Return the outputs of all tokens, [T, H, D]."""
        out, states = torch.empty_like(value), None
        for tokens, bounds, before in self.levels:
            rows = [x.index_select(0, tokens).unsqueeze(0) for x in (query, key, value, gate, beta)]
            first = None if states is None else states.index_select(0, before)
            got, states = rule(*rows, scale=1.0, initial_state=first, output_final_state=True, cu_seqlens=bounds)
            out.index_copy_(0, tokens, got[0])
        return out


def busy(call: Any, rounds: int = 10) -> float:
    """Return the milliseconds for which a call keeps the device at work, without the host's launches."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(rounds):
            call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / rounds / 1e3


@torch.inference_mode()
def compare(rows: DeviceRows, name: str, size: int) -> None:
    """Write the times and the errors of both over a workload's tree."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    tree = WORKLOADS[name]()
    torch.manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(len(tree), HEADS, *shape, device="cuda")

    query, key = (torch.nn.functional.normalize(draw(size), dim=-1) for _ in range(2))
    operands = [x.bfloat16() for x in (query, key, draw(size), -draw().abs(), draw().sigmoid())]
    operands[3] = operands[3].float()  # fla-core's sums of gates are float32, and so are ours
    plan = ScanPlan(tree.parent, np.zeros(0, dtype=np.int64), torch.device("cuda"))
    levels = Levels(np.asarray(tree.parent))
    want = gated_delta_rule(*[x.float() for x in operands], plan, impl="torch")[0]  # type: ignore[misc]
    ways = {
        "triton": lambda: gated_delta_rule(*operands, plan, impl="triton")[0],  # type: ignore[misc]
        "fla-core": lambda: levels.run(chunk_gated_delta_rule, *operands),
    }
    case = f"{name} gated_delta_rule, {HEADS} heads of {size}, bfloat16"
    rows.write(suite="tree", case=case, way=f"{len(tree)} tokens, chains of levels {levels.counts}")
    for way, call in ways.items():

        def go(way: str = way, call: Any = call) -> None:
            error = (call().float() - want).abs()
            milliseconds = triton.testing.do_bench(call, warmup=15, rep=100, return_mode="median")
            rows.write(
                suite="kernels", case=case, way=way, milliseconds=milliseconds, busy=busy(call),
                largest=float(error.max()), mean=float(error.mean()), scale=float(want.abs().max()),
            )  # fmt: skip

        rows.attempt(f"{case}: {way}", go)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=100.0, help="begin nothing after these")
    a = parser.parse_args()
    rows = DeviceRows(a.seconds)
    rows.write(suite="device", **gpu_device.about())
    for name, size in (("W1", 128), ("W1", 64), ("W4", 128)):
        rows.attempt(f"{name}, {size}", lambda n=name, s=size: compare(rows, n, s))  # type: ignore[misc]


if __name__ == "__main__":
    main()
