"""Measure what one packed pass gains on this machine and your model.

One question of the given size (random token ids) is scored by fastreader, by transformers with a prefix cache
for each order, and by transformers in padded batches.

    python benchmarks/packing_gain.py
    python benchmarks/packing_gain.py --model HuggingFaceTB/SmolLM2-360M-Instruct --num-passages 10
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import peers
import torch
from groups import cyclic_groups

from fastreader import Reader
from fastreader.cli.demo import plain_model
from fastreader.core.checks import check_int


@dataclass(frozen=True)
class Way:
    """One way to the scores.

    Attributes:
        name: what ran.
        seconds: median over the rounds.
        spread: fastest and slowest round, seconds.
        computed: tokens that went through the model.
        error: largest difference from the first way, nats; on random token ids, so only its size says something.
    """

    name: str
    seconds: float
    spread: tuple[float, float]
    computed: int
    error: float


@dataclass(frozen=True)
class Comparison:
    """All ways on one machine and model, the packed tree first.

    Attributes:
        reader: name, device, dtype, precision and path of the reader.
        sequences: how many were scored.
        given: their tokens, nothing shared.
        ways: what each took.
    """

    reader: dict[str, str]
    sequences: int
    given: int
    ways: list[Way]

    @property
    def gains(self) -> dict[str, float]:
        """How many times longer each other way took."""
        return {way.name: way.seconds / self.ways[0].seconds for way in self.ways[1:]}


def compare(
    model: str | os.PathLike[str],
    *,
    device: str = "auto",
    dtype: str = "auto",
    precision: str = "fast",
    passages: int = 5,
    passage_tokens: int = 100,
    candidates: int = 2,
    rounds: int = 3,
    show: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Time one question's scores by a packed tree and by transformers, alternating, on random token ids.

    Args:
        model, device, dtype, precision: arguments of `Reader.load`; the others run the weights as stored.
        passages: N, in N cyclic orders.
        passage_tokens: tokens of each passage.
        candidates: K.
        rounds: every way runs so often, after one run that does not count.
        show: is given a line about what runs now.

    Raises:
        InputError: a size is below 1, or the model cannot hold so long a prompt.
    """
    sizes = {"passages": passages, "candidates": candidates, "rounds": rounds, "passage_tokens": passage_tokens}
    for name, value in sizes.items():
        check_int(name, value)
    show("loading")
    reader = Reader.load(model, device=device, dtype=dtype, precision=precision)
    own = plain_model(reader, model)
    groups = cyclic_groups(own.get_input_embeddings().weight.shape[0], passages, passage_tokens, candidates, 6)
    sequences = [pair for group in groups for pair in group.sequences()]
    given = sum(len(context) + len(continuation) for context, continuation in sequences)
    cached = sum(len(g.context) + sum(len(k) - 1 for k in g.continuations) for g in groups)
    runs: list[tuple[str, Callable[[], Sequence[float]], int]] = [
        (f"fastreader, {precision}", lambda: reader.score(sequences).logprob.tolist(), 0),
        ("transformers, prefix cache", lambda: peers.prefix_cached(own, groups), cached),
        ("transformers, padded by 8", lambda: peers.padded(own, groups), given),
    ]
    runs[0] = (*runs[0][:2], sum(map(len, reader.plan(sequences))))
    first: dict[str, Sequence[float]] = {}
    seconds: dict[str, list[float]] = {name: [] for name, _, _ in runs}
    for round_ in range(rounds + 1):
        for name, run, _ in runs:
            show(f"round {round_} of {rounds}: {name}" if round_ else f"warming up: {name}")
            started = time.perf_counter()
            values = run()
            _finish(own)
            if round_:
                seconds[name].append(time.perf_counter() - started)
            else:
                first[name] = values
    ours = first[runs[0][0]]
    ways = [
        Way(
            name,
            statistics.median(seconds[name]),
            (min(seconds[name]), max(seconds[name])),
            computed,
            max(abs(a - b) for a, b in zip(first[name], ours, strict=True)),
        )
        for name, _, computed in runs
    ]
    return Comparison(reader.describe(), len(sequences), given, ways)


def report(result: Comparison) -> str:
    """Return a comparison as a table, with what one packed pass gains below it."""
    lines = [f"{result.sequences} sequences, {result.given:,} tokens given"]
    heads = f"{'seconds':>8} {'min .. max':>14} {'computed':>9} {'times ours':>11} {'off by (nats)':>14}"
    lines.append(f"{'way':28} {heads}")
    for way in result.ways:
        spread, gain = f"{way.spread[0]:.2f} .. {way.spread[1]:.2f}", result.gains.get(way.name, 1.0)
        lines.append(f"{way.name:28} {way.seconds:8.2f} {spread:>14} {way.computed:9,} {gain:11.1f} {way.error:14.3f}")
    gains = [f"{gain:.1f} times as fast as {name}" for name, gain in result.gains.items()]
    return "\n".join([*lines, f"On this machine one packed pass is {' and '.join(gains)}."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="packaged name, folder, GGUF file or hub id")
    parser.add_argument("--num-passages", type=int, default=5, help="N, read in N cyclic orders")
    parser.add_argument("--passage-tokens", type=int, default=100, help="number of tokens of each passage")
    parser.add_argument("--num-candidates", type=int, default=2, help="K, the answers scored after each order")
    parser.add_argument("--rounds", type=int, default=3, help="runs of every way; the median is reported")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--precision", default="fast")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    arguments = parser.parse_args()
    result = compare(
        arguments.model,
        device=arguments.device,
        dtype=arguments.dtype,
        precision=arguments.precision,
        passages=arguments.num_passages,
        passage_tokens=arguments.passage_tokens,
        candidates=arguments.num_candidates,
        rounds=arguments.rounds,
        show=lambda text: print(text, file=sys.stderr),
    )
    print(json.dumps({**asdict(result), "gains": result.gains}, allow_nan=False) if arguments.json else report(result))


def _finish(model: Any) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


if __name__ == "__main__":
    main()
