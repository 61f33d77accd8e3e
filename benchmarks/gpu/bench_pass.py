"""Time whole passes and generation steps on a CUDA device, with random weights, compared with transformers.

    python benchmarks/gpu/bench_pass.py [--model smollm2-135m] [--workload W1] [--precision fast] [--seconds 240]
        [--profile] [--results FILE]

A pass covers everything from token ids to log-likelihoods, packing and launching included. Each way runs twice before
it is timed (CUDA graphs are recorded at their second pass), and the ways of a workload alternate. The floor of each
figure is the least time of the useful operations and bytes at the rates of a bf16 product and of a copy, measured
first. Rows are written as they are measured. `--profile` reports what the device did in a pass.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gpu_device
import numpy as np
import torch
import transformers
from gpu_rows import Rates, Row, Rows
from gpu_workloads import SEQUENCES, SHAPES, Sequences
from torch.profiler import ProfilerActivity, profile

from fastreader.core.options import StepOptions
from fastreader.core.tree import PrefixTree
from fastreader.models.passes.cuda_graphs import VARIABLE, recorder
from fastreader.models.passes.pass_graphs import PassGraphs
from fastreader.models.passes.row_keys import RowKeys
from fastreader.models.tree_model import TreeModel
from fastreader.reader.generation.gpu_decoding import DeviceTexts
from fastreader.reader.generation.text_so_far import DecodedText

os.environ[VARIABLE] = "0"  # so that "packed" and "launched" are launched one by one
sys.path.insert(0, str(Path(__file__).parents[1]))

import peers
import work
from groups import Group

PRODUCTS = {"fast": "bf16", "high": "bf16x3", "exact": "torch"}
ROUNDS, SECONDS = 5, 6.0  # of a way, whichever ends first
PROMPT, STEPS = 700, 40  # tokens of the prompts of texts to write, and steps that are timed
DEFAULT = {"smollm2-135m": ("W1", "W2", "W3", "W4"), "llama-3.1-8b": ("W1", "W2", "W4"), "qwen3-4b": ("W1", "W2", "W4")}


def random_model(name: str) -> Any:
    """Return a bfloat16 model of transformers with random weights on the device."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return transformers.AutoModelForCausalLM.from_config(SHAPES[name].config()).eval()
    finally:
        torch.set_default_dtype(torch.float32)


def groups_of(sequences: Sequences) -> list[Group]:
    """Return the sequences by their context, as the usual ways want them."""
    contexts: dict[tuple[int, ...], list[list[int]]] = {}
    for context, continuation in sequences:
        contexts.setdefault(tuple(context), []).append(continuation)
    return [Group(list(context), continuations) for context, continuations in contexts.items()]


def pass_floor(tree: PrefixTree, config: Any, rates: Rates) -> float:
    """Return the least milliseconds of a pass: its products and attention, or reading the weights once."""
    weights = 2.0 * (work.linear_parameters(config) + config.hidden_size * config.vocab_size)
    return rates.floor(sum(work.flops([tree], config).values()), weights)


def ways_of(model: TreeModel, own: Any, sequences: Sequences, beside: bool) -> dict[str, Callable[[], Any]]:
    """Return ways to the log-likelihoods of sequences."""
    graphs = PassGraphs(model.device, model._shapes, model.scored, 0)

    def packed() -> Any:
        return model.score(PrefixTree.build(sequences)).logprob.cpu()

    def graph() -> Any:
        tree = PrefixTree.build(sequences)
        return (graphs.score(tree) or model.score(tree)).logprob.cpu()

    ways: dict[str, Callable[[], Any]] = {"packed": packed, "packed, CUDA graph": graph}
    if model.products == "bf16":
        ways["packed, flash"] = lambda: model.score(PrefixTree.build(sequences), "flash").logprob.cpu()
    if beside:
        groups = groups_of(sequences)
        ways["transformers, prefix cache"] = lambda: peers.prefix_cached(own, groups)
        ways["transformers, padded by 8"] = lambda: peers.padded(own, groups)
    return ways


def timed(way: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    way()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def bench_pass(rows: Rows, model: TreeModel, own: Any, name: str, workload: str, precision: str, rates: Rates) -> None:
    """Time the ways of one workload, alternating. A way for which memory or time does not suffice is left out."""
    sequences = SEQUENCES[workload]()
    floor = pass_floor(PrefixTree.build(sequences), own.config, rates)
    ways = ways_of(model, own, sequences, beside=precision == "fast" and workload in ("W1", "W2"))
    seconds: dict[str, list[float]] = {}
    for way, call in ways.items():
        if not rows.left(20 * floor / 1e3):
            print(f"{name}, {workload}, {precision}: {way}: left out, no time", flush=True)
            continue
        try:
            timed(call)
            timed(call)
        except torch.OutOfMemoryError:
            print(f"{name}, {workload}, {precision}: {way}: out of memory", flush=True)
            continue
        seconds[way] = []
    for _ in range(ROUNDS):
        for way, taken in seconds.items():
            if rows.left(2 * max(taken, default=0.0)) and sum(taken) < SECONDS:
                taken.append(timed(ways[way]))
    for way, taken in seconds.items():
        if taken:
            rows.add(row("passes", name, f"{workload}, {precision}", way, taken, floor))


def bench_steps(rows: Rows, model: TreeModel, own: Any, name: str, count: int, rates: Rates) -> None:
    """Time steps of generating `count` texts after separate prompts, launched one by one and as a CUDA graph."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 49_152, PROMPT).tolist() for _ in range(count)]
    tree = PrefixTree.build([(prompt, []) for prompt in prompts])
    key_values = model.new_key_values(tree, leaves_only=True)
    model.hidden(tree, key_values=key_values, rows=tree.leaves)
    leaves, options = np.sort(tree.leaves), StepOptions(max_new_tokens=STEPS + 8)
    weights = 2.0 * (work.linear_parameters(own.config) + own.config.hidden_size * own.config.vocab_size)
    floor = rates.floor(0.0, weights + count * PROMPT * model.key_value_bytes)
    for way, record in (("launched", None), ("CUDA graph", recorder(model.device))):
        texts = [DecodedText(prompt, STEPS + 8, None, None, tokens=[1]) for prompt in prompts]
        cache = RowKeys(tree, key_values, leaves, STEPS + 8)
        written = DeviceTexts(model, cache, texts, options, frozenset(), record=record)
        for _ in range(4):
            written.step().get()
        step = written.step
        taken = [timed(lambda step=step: step().get()) for _ in range(STEPS)]
        rows.add(row("steps", name, f"a step of {count} texts", way, taken, floor))


def row(suite: str, model: str, case: str, way: str, seconds: list[float], floor: float) -> Row:
    """Return the row of a way that took these seconds."""
    low, median, high = (1e3 * float(np.percentile(seconds, p)) for p in (10, 50, 90))
    return Row(suite, model, case, way, median, low, high, floor)


def profiled(way: Callable[[], Any]) -> str:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        timed(way)
    table: str = seen.key_averages().table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=50)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, action="append", help=f"{', '.join(DEFAULT)} by default")
    parser.add_argument("--workload", choices=SEQUENCES, action="append", help="by default those that fit the model")
    parser.add_argument("--precision", choices=PRODUCTS, action="append", help="fast and high by default")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin nothing after these")
    parser.add_argument("--profile", action="store_true", help="what the device did in the first pass")
    parser.add_argument("--results", type=Path, help="append rows there")
    a = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench_pass: needs a CUDA device, found none")
    rates = gpu_device.rates()
    about = gpu_device.about() | {"transformers": transformers.__version__, "rates": asdict(rates)}
    rows = Rows(a.results, a.seconds, about)
    for name in a.model or DEFAULT:
        own = random_model(name)
        for precision in a.precision or ("fast", "high"):
            model = TreeModel(own, name, precision, PRODUCTS[precision], own=True)  # type: ignore[arg-type]
            if precision == "fast":
                for count in (1, 24):
                    bench_steps(rows, model, own, name, count, rates)
            for workload in a.workload or DEFAULT.get(name, ("W1", "W2")):
                bench_pass(rows, model, own, name, workload, precision, rates)
                if not rows.left():
                    return
            if a.profile:
                sequences = SEQUENCES["W1"]()
                print(profiled(ways_of(model, own, sequences, beside=False)["packed"]))
            del model
        del own
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
