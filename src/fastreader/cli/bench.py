"""fastreader bench."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated

import typer

from fastreader.cli.inputs import use_cache
from fastreader.cli.options import CacheOption, DeviceOption, DtypeOption, Format, ModelOption, PrecisionOption
from fastreader.cli.screen import Screen


def bench(
    model: ModelOption = "smollm2-135m",
    num_passages: Annotated[int, typer.Option(help="N, read in N cyclic orders.", min=1)] = 5,
    passage_tokens: Annotated[int, typer.Option(help="Number of tokens of each passage.", min=1)] = 100,
    num_candidates: Annotated[int, typer.Option(help="K, the answers scored after each order.", min=1)] = 2,
    rounds: Annotated[int, typer.Option(help="Runs of every way; the median is reported.", min=1)] = 3,
    format: Annotated[Format, typer.Option("--format", "-f", help="table or json.")] = Format.table,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    precision: PrecisionOption = "fast",
    cache_dir: CacheOption = None,
) -> None:
    """Measure what one packed pass gains on this machine and your model.

    One question of the given size (random token ids) is scored in turn by fastreader, by transformers with a prefix
    cache for each order, and by transformers in padded batches.

    Example:

      fastreader bench --model HuggingFaceTB/SmolLM2-360M-Instruct --num-passages 10
    """
    from fastreader.cli.packing_gain import compare

    use_cache(cache_dir)
    screen = Screen(stderr=True)
    show = (lambda text: screen.print(text, style="dim")) if sys.stderr.isatty() else (lambda text: None)
    result = compare(
        model,
        device=device,
        dtype=dtype,
        precision=precision,
        passages=num_passages,
        passage_tokens=passage_tokens,
        candidates=num_candidates,
        rounds=rounds,
        show=show,
    )
    if format is not Format.table:
        typer.echo(json.dumps({**dataclasses.asdict(result), "gains": result.gains}, allow_nan=False))
        return
    from fastreader.cli.tables.bench import bench_table
    from fastreader.cli.tables.scores import UNLIMITED

    console = Screen()
    (console if console.is_terminal else Screen(width=UNLIMITED)).print(bench_table(result))
    gains = [f"{gain:.1f} times as fast as {name}" for name, gain in result.gains.items()]
    typer.echo(f"On this machine one packed pass is {' and '.join(gains)}.")
