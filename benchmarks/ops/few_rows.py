"""Time one linear layer of few rows from a GGUF file's integers, as a ratio to reading the same bytes.

    python benchmarks/ops/few_rows.py --formats Q4_0 Q4_K --rows 1 4 16 --products bf16 int16

The weights have the shapes of one decoder layer of 1B (Llama's), several times over, so that no cache holds them. In
one thread, every way runs alternately with a sum of as many bytes; each figure is the fastest call by CPU time, since
other work on the machine only delays. The same layer in bfloat16 runs next to them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from fastreader.ops import extension
from fastreader.ops.linear import BlockTensor, BlockWeight, PackedWeight, linear, prepare
from fastreader.ops.linear.blocks import FORMATS

SHAPES = ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192))  # queries to values, output, gate and up, down
# First bytes of scales; 0 for the other formats.
HALVES = {"Q6_K": [208], "Q3_K": [108], **{name: [0, 2] for name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K")}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", default=["Q4_0", "Q4_K", "Q8_0", "Q6_K"], choices=list(FORMATS))
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--products", nargs="+", default=["bf16", "int16"])
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6, help="of each row of the table")
    options = parser.parse_args()
    if (missing := extension.why_missing()) is not None:
        parser.error(missing)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    print(f"{extension.used_instruction_set()}; ms (times of reading the bytes)")
    for name in options.formats:
        integers = [integers_of(name, *shape, generator) for _ in range(options.layers) for shape in SHAPES]
        layers = {way: [prepare(BlockTensor(weight), way) for weight in integers] for way in options.products}
        plain = [torch.randn(*shape, generator=generator).bfloat16() for _ in range(options.layers) for shape in SHAPES]
        layers["bf16 weights"] = [prepare(weight, "bf16") for weight in plain]
        size = sum(weight.data.numel() for weight in integers)
        for rows in options.rows:
            best = measure(layers, size, rows, options.seconds, generator)
            read = best.pop("read")
            times = ", ".join(f"{way} {1e3 * best[way]:.2f} ({best[way] / read:.2f})" for way in best)
            print(f"{name}, {rows} rows: {times}; read {1e3 * read:.2f}, {size / read / 1e9:.0f} GB/s", flush=True)


def integers_of(name: str, width: int, depth: int, generator: torch.Generator) -> BlockWeight:
    """Random integers with the same scale everywhere."""
    values, size = FORMATS[name]
    rows = torch.randint(0, 255, (width, depth // values, size), dtype=torch.uint8, generator=generator)
    for at in HALVES.get(name, [0]):
        rows[:, :, at : at + 2] = torch.from_numpy(np.array([0.01], np.float16).view(np.uint8).copy())
    return BlockWeight.pack(rows.reshape(width, -1).contiguous(), name, depth)


def measure(
    layers: dict[str, list[PackedWeight]], size: int, rows: int, seconds: float, generator: torch.Generator
) -> dict[str, float]:
    """The fastest time of each way and of reading `size` bytes, in s."""
    inputs = {depth: torch.randn(rows, depth, generator=generator) for _, depth in SHAPES}
    bytes_ = torch.ones(size // 4)
    ways: dict[str, Callable[[], object]] = {"read": bytes_.sum}
    for way, weights in layers.items():
        precision = "bf16" if way == "bf16 weights" else way
        ways[way] = lambda weights=weights, precision=precision: [
            linear(inputs[weight.depth], weight, precision=precision) for weight in weights
        ]
    best, end = dict.fromkeys(ways, float("inf")), time.monotonic() + seconds
    while time.monotonic() < end:
        for way, run in ways.items():
            started = time.thread_time()
            run()
            best[way] = min(best[way], time.thread_time() - started)
    return best


if __name__ == "__main__":
    main()
