"""Time the delta rules and linear attention over a tree by our kernels and by fla-core's: beside_fla.py --seconds N

Both have the same bfloat16 operands, and both are compared with our implementation in PyTorch in float32. fla-core
tries dozens of configurations of each kernel at its first call, which takes most of a minute for each rule. So the
rules are compiled first, each in a process; configurations are chosen and times taken when these have ended. Rows go to
$OUT/rows.jsonl. Needs the package fla-core.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import gpu_device
import numpy as np
import torch
import triton
from device_rows import DeviceRows
from gpu_workloads import WORKLOADS
from torch import Tensor

from fastreader.ops.recurrent import ScanPlan, gated_delta_rule, linear_attention
from fastreader.ops.recurrent.fla import level_calls

HEADS = 32  # of keys and of values, as after a layer has repeated its keys
RULES = ("a gate a head", "a gate a channel", "linear attention")
COMPILING = 60.0  # seconds for the processes that compile, together


class Case:
    """A rule over the tree of a workload.

    Args:
        rule: one of `RULES`.
        name: of the workload.
        size: of heads of keys and values.
    """

    def __init__(self, rule: str, name: str, size: int) -> None:
        self.tree = WORKLOADS[name]()
        self.plan = ScanPlan(self.tree.parent, np.zeros(0, dtype=np.int64), torch.device("cuda"))
        self._op: Callable[..., tuple[Tensor, Tensor]] = linear_attention if rule == RULES[2] else gated_delta_rule
        torch.manual_seed(0)
        query, key = (torch.nn.functional.normalize(self._draw(size), dim=-1) for _ in range(2))
        gate = -(self._draw(size) if rule == RULES[1] else self._draw()).abs()
        beta = [] if rule == RULES[2] else [self._draw().sigmoid().bfloat16()]
        self._operands = [query.bfloat16(), key.bfloat16(), self._draw(size).bfloat16(), gate, *beta]

    def _draw(self, *shape: int) -> Tensor:
        return torch.randn(len(self.tree), HEADS, *shape, device="cuda")

    def run(self, impl: str) -> Tensor:
        """Return the outputs of all tokens, [T, H, D], in bfloat16."""
        return self._op(*self._operands, self.plan, impl=impl)[0]

    def golden(self) -> Tensor:
        """Return the outputs of PyTorch's operators in float32."""
        return self._op(*(x.float() for x in self._operands), self.plan, impl="torch")[0]


def busy(call: Callable[[], Any], rounds: int = 10) -> float:
    """Return the milliseconds for which a call keeps the device at work, without the host's launches."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(rounds):
            call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / rounds / 1e3


def compile_all(rows: DeviceRows, name: str, size: int) -> None:
    """Compile fla-core's kernels for every rule, each in a process, whose choices under this load are not kept."""
    environment = os.environ | {"FLA_CACHE_RESULTS": "0"}
    command = [sys.executable, __file__, "--workload", name, "--size", str(size), "--compile"]
    started = {rule: subprocess.Popen([*command, rule], env=environment) for rule in RULES}
    end = time.monotonic() + COMPILING
    for rule, process in started.items():
        try:
            code = process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if code:
            rows.write(suite="failed", case=f"compile {rule}", why=f"exit status {code}")


@torch.inference_mode()
def compare(rows: DeviceRows, rule: str, name: str, size: int) -> None:
    """Write the times and the errors of both over a workload's tree."""
    case, title = Case(rule, name, size), f"{name} {rule}, {HEADS} heads of {size}, bfloat16"
    want = case.golden()
    chains = [len(call.bounds) - 1 for call in level_calls(case.plan)]
    rows.write(suite="tree", case=title, way=f"{len(case.tree)} tokens, chains of levels {chains}")
    for impl in ("triton", "fla"):

        def go(impl: str = impl) -> None:
            error = (case.run(impl).float() - want).abs()
            milliseconds = triton.testing.do_bench(lambda: case.run(impl), warmup=15, rep=100, return_mode="median")
            rows.write(
                suite="kernels", case=title, way=impl, milliseconds=milliseconds, busy=busy(lambda: case.run(impl)),
                largest=float(error.max()), mean=float(error.mean()), scale=float(want.abs().max()),
            )  # fmt: skip

        rows.attempt(f"{title}: {impl}", go)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=100.0, help="begin nothing after these")
    parser.add_argument("--workload", default="W1", help="tree of --compile")
    parser.add_argument("--size", type=int, default=128, help="of heads, for --compile")
    parser.add_argument("--compile", choices=RULES, help="call fla-core once for this rule, and end")
    a = parser.parse_args()
    if a.compile:
        with torch.inference_mode():
            Case(a.compile, a.workload, a.size).run("fla")
        return
    rows = DeviceRows(a.seconds)
    rows.write(suite="device", **gpu_device.about())
    rows.attempt("compile", lambda: compile_all(rows, "W1", 128))
    for name, size in (("W1", 128), ("W1", 64), ("W4", 128)):
        for rule in RULES:
            rows.attempt(f"{name}, {rule}, {size}", lambda r=rule, n=name, s=size: compare(rows, r, n, s))  # type: ignore[misc]


if __name__ == "__main__":
    main()
