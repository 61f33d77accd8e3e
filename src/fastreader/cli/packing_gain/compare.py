"""A short run of the same scores in three ways: one packed tree, a prefix cache a context, padded batches."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastreader.cli.packing_gain import peers
from fastreader.cli.packing_gain.groups import cyclic_groups
from fastreader.core.checks import check_int
from fastreader.reader.reader import Reader


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
    """Time one question's scores by a packed tree and by transformers, in turn, on random token ids.

    Args:
        model, device, dtype, precision: as `Reader.load`; the others run the weights as stored.
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
    own = peers.model_beside(reader, model)
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


def _finish(model: Any) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
