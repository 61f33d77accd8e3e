"""Time passes and steps on random weights, and compare them with float32: device_passes.py --seconds N

Rows go to $OUT/rows.jsonl, what a device did in a pass to $OUT/profile_MODEL.txt.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import bench_pass
import gpu_device
import numpy as np
import torch
from device_rows import OUT, DeviceRows
from gpu_rows import Rates, Row
from gpu_workloads import SEQUENCES

from fastreader.core.tree import PrefixTree
from fastreader.models.tree_model import TreeModel


class Passes:
    """Timed passes and steps of one model.

    Args:
        rows: where results go.
        name: one of `gpu_workloads.SHAPES`.
        rates: of the device.
    """

    def __init__(self, rows: DeviceRows, name: str, rates: Rates) -> None:
        self.rows, self.name, self.rates = rows, name, rates
        self.own = bench_pass.random_model(name)

    def add(self, row: Row) -> None:
        """Write a row of `bench_pass`."""
        self.rows.write(**asdict(row))

    def model(self, precision: str) -> TreeModel:
        """Return the model as a reader holds it, and write which path it takes."""
        model = TreeModel(self.own, self.name, precision, bench_pass.PRODUCTS[precision], own=True)  # type: ignore[arg-type]
        # What the trials at loading accepted on this device.
        case = f"{precision}, {self.name}"
        self.rows.write(suite="path", case=case, way=model.forward_path, why=model.why_not_graphs)
        return model

    def passes(self, model: TreeModel, workload: str, rounds: int) -> None:
        """Time the ways of a workload."""
        sequences = SEQUENCES[workload]()
        floor = bench_pass.pass_floor(PrefixTree.build(sequences), self.own.config, self.rates)
        case = f"{workload}, {model.precision}"
        for way, call in bench_pass.ways_of(model, self.own, sequences, beside=False).items():

            def go(way: str = way, call: Callable[[], Any] = call) -> None:
                seconds = self.seconds_of(call, rounds)
                self.add(bench_pass.row("passes", self.name, case, way, seconds, floor))

            self.rows.attempt(f"{case}, {self.name}: {way}", go)

    def seconds_of(self, call: Callable[[], Any], rounds: int) -> list[float]:
        """Return the seconds of calls after two others."""
        taken: list[float] = []
        for _ in range(rounds + 2):
            torch.cuda.synchronize()
            started = time.perf_counter()
            call()
            torch.cuda.synchronize()
            taken.append(time.perf_counter() - started)
            if len(taken) > 2 and not self.rows.left():
                break
        return taken[2:]

    def accuracy(self, models: dict[str, TreeModel]) -> None:
        """Write how far a few sequences are from transformers in float32, and how far it is itself in bfloat16."""
        sequences = [(context[:400], answer) for context, answer in SEQUENCES["W1"]()[:12]]
        tree = PrefixTree.build(sequences)
        wide = copy.deepcopy(self.own).float()
        truth, plain = (self.one_by_one(net, sequences) for net in (wide, self.own))
        del wide
        found = {"transformers, bfloat16": plain}
        for precision, model in models.items():
            found[precision] = model.score(tree).logprob.double().cpu().numpy()[tree.pairs]
        for way, logprobs in found.items():
            error = np.abs(logprobs - truth)
            mean, largest = float(error.mean()), float(error.max())
            self.rows.write(suite="accuracy", case=self.name, way=way, mean=mean, largest=largest)

    @torch.inference_mode()
    def one_by_one(self, net: Any, sequences: list[tuple[list[int], list[int]]]) -> Any:
        """Return the log-probabilities of answers by a model's own forward."""
        found = []
        for context, answer in sequences:
            ids = torch.tensor([context + answer], device="cuda")
            logs = net(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
            found.append(logs[len(context) - 1 : -1].gather(1, ids[0, len(context) :, None])[:, 0].cpu())
        return torch.cat(found).double().numpy()

    def all(self, workloads: tuple[str, ...], rounds: int) -> None:
        """Time everything of a model."""
        fast = self.rows.attempt(f"fast, {self.name}", lambda: self.model("fast"))
        if fast is not None:
            for workload in workloads:
                self.passes(fast, workload, rounds)
            for count in (1, 24):
                step = lambda n=count: bench_pass.bench_steps(self, fast, self.own, self.name, n, self.rates)  # noqa: E731
                self.rows.attempt(f"steps of {count}, {self.name}", step)
            self.rows.attempt("profile", lambda: self.profile(fast))
        high = self.rows.attempt(f"high, {self.name}", lambda: self.model("high"))
        if high is not None:
            self.passes(high, workloads[0], max(2, rounds // 2))
        models = {name: model for name, model in (("fast", fast), ("high", high)) if model is not None}
        self.rows.attempt("accuracy", lambda: self.accuracy(models))

    def profile(self, model: TreeModel) -> None:
        """Write what the device did in a pass."""
        packed = bench_pass.ways_of(model, self.own, SEQUENCES["W1"](), beside=False)["packed"]
        (OUT / f"profile_{self.name}.txt").write_text(bench_pass.profiled(packed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=130.0, help="begin nothing after these")
    a = parser.parse_args()
    rows, rates = DeviceRows(a.seconds), gpu_device.rates()
    rows.write(suite="device", **gpu_device.about(), flops=rates.flops, bandwidth=rates.bandwidth)
    for name, workloads, rounds in (("smollm2-135m", ("W1", "W2"), 9), ("llama-3.1-8b", ("W1",), 4)):
        made = rows.attempt(name, lambda name=name: Passes(rows, name, rates))  # type: ignore[misc]
        if made is not None:
            made.all(workloads, rounds)
        del made
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
