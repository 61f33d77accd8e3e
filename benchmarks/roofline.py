"""The least time each way needs for a workload, and what bound it is: arithmetic or memory.

For this CPU the rates are measured (matrix product, copy); for A100 and H100 they are the published ones, and the
model's shape is Llama-3-8B's unless another config is named. Counted are useful operations (linear layers, attention's
visible pairs, LM head at scored places) and bytes (weights once a pass, activations in and out of every linear layer,
keys and values); a real pass is slower than either.

    python benchmarks/roofline.py                       all ways on A100 and H100, Llama-3-8B, W1
    python benchmarks/roofline.py --cpu --achieved 5.0  this CPU, the packaged reader, against 5.0 measured seconds
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import machine
import torch
import work
import workloads
from plain_folder import folder_of

from fastreader.core.tree import PrefixTree
from fastreader.reader.prompts.encoder import TextEncoder

LLAMA_3_8B = SimpleNamespace(
    hidden_size=4096,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=14336,
    num_hidden_layers=32,
    vocab_size=128256,
)


@dataclass(frozen=True)
class Device:
    """Peak rates: dense bfloat16 FLOP/s, and bytes/s of memory."""

    name: str
    flops: float
    bandwidth: float


# NVIDIA's data sheets: A100 80GB SXM and H100 SXM, dense bfloat16.
DEVICES = (Device("A100 80GB SXM", 312e12, 2.039e12), Device("H100 SXM", 989e12, 3.35e12))


@dataclass(frozen=True)
class Way:
    """Token counts of one way to a workload's scores."""

    name: str
    given: int
    trees: list[PrefixTree]
    passes: int

    @property
    def computed(self) -> int:
        return sum(map(len, self.trees))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="w1", choices=workloads.NAMES)
    parser.add_argument("--tokens", type=Path, help="W1 as token ids; the bundled text by default")
    parser.add_argument(
        "--tokenizer", default="smollm2-135m", help="packaged reader whose tokenizer makes the workload"
    )
    parser.add_argument("--cpu", action="store_true", help="this CPU and the packaged reader instead of the GPUs")
    parser.add_argument("--achieved", type=float, help="seconds a packed pass took, to compare with its floor")
    arguments = parser.parse_args()
    import transformers

    folder = folder_of(arguments.tokenizer)
    encoder = TextEncoder(transformers.AutoTokenizer.from_pretrained(folder))
    workload = workloads.make(arguments.workload, encoder, arguments.tokens)
    if arguments.cpu:
        config: Any = transformers.AutoConfig.from_pretrained(folder)
        devices: tuple[Device, ...] = (this_cpu(),)
    else:
        config, devices = LLAMA_3_8B, DEVICES
    for device in devices:
        print(table(device, ways(workload), config, arguments.achieved), end="\n\n")


def ways(workload: workloads.Workload) -> list[Way]:
    """A sequence at a time, a prefix cache a context, and one packed tree."""
    sequences = workload.sequences()
    alone = [PrefixTree.build([s]) for s in sequences]
    cached = [PrefixTree.build(group.sequences()) for group in workload.groups]
    packed = PrefixTree.build(sequences)
    return [
        Way("nothing shared", workload.given, alone, -(-len(alone) // 8)),
        Way("prefix cache a context", workload.given, cached, 2 * len(cached)),
        Way("one packed tree", workload.given, [packed], 1),
    ]


def bytes_moved(way: Way, config: Any) -> float:
    """Weights once a pass. Activations into and out of each linear layer, keys and values, 2 bytes each."""
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads, keys = config.num_attention_heads, config.num_key_value_heads
    weights = 2.0 * (work.linear_parameters(config) + config.vocab_size * config.hidden_size)
    token = 4 * config.hidden_size + size * (3 * heads + 4 * keys) + 3 * config.intermediate_size
    return way.passes * weights + 2.0 * token * config.num_hidden_layers * way.computed


def this_cpu() -> Device:
    """Rates as measured: a large bfloat16 product, and a copy of 256 MB."""
    source = torch.zeros(64 << 20)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - started)
    facts = machine.describe()
    name = f"{facts['processor']}, {facts['threads']} threads, as measured"
    return Device(name, machine.gemm_rate(torch.bfloat16), 2 * source.numel() * 4 / best)


def table(device: Device, rows: list[Way], config: Any, achieved: float | None) -> str:
    lines = [
        f"**{device.name}**: {device.flops / 1e12:.2f} TFLOP/s, {device.bandwidth / 1e9:,.0f} GB/s",
        "",
        "| way | tokens given | computed | TFLOP | GB | floor, seconds | bound by | times the tree's floor |",
        "|-|-|-|-|-|-|-|-|",
    ]
    floors = []
    for way in rows:
        flops, moved = sum(work.flops(way.trees, config).values()), bytes_moved(way, config)
        floors.append((max(flops / device.flops, moved / device.bandwidth), flops, moved))
    for way, (floor, flops, moved) in zip(rows, floors, strict=True):
        bound = "arithmetic" if flops / device.flops >= moved / device.bandwidth else "memory"
        lines.append(
            f"| {way.name} | {way.given:,} | {way.computed:,} | {flops / 1e12:.2f} | {moved / 1e9:.1f} "
            f"| {floor:.3f} | {bound} | {floor / floors[-1][0]:.1f} |"
        )
    if achieved:
        lines += ["", f"Achieved: {achieved:.2f} s, {floors[-1][0] / achieved:.0%} of the floor's rate."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
