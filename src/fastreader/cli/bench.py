"""fastreader bench."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated

import typer
from rich.console import Console

from fastreader.cli.inputs import use_cache
from fastreader.cli.options import CacheOption, DeviceOption, DtypeOption, Format, ModelOption, PrecisionOption


def bench(
    model: ModelOption = "smollm2-135m",
    passages: Annotated[int, typer.Option(help="N, read in N cyclic orders.", min=1)] = 5,
    passage_tokens: Annotated[int, typer.Option(help="Tokens of each passage.", min=1)] = 100,
    candidates: Annotated[int, typer.Option(help="K answers scored after each order.", min=1)] = 2,
    rounds: Annotated[int, typer.Option(help="Runs of every way; the median counts.", min=1)] = 3,
    format: Annotated[Format, typer.Option("--format", "-f", help="table or json.")] = Format.table,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    precision: PrecisionOption = "fast",
    cache_dir: CacheOption = None,
) -> None:
    """What one packed pass would gain you, on this machine and your model.

    Scores one question of the given size (random token ids) by fastreader, by transformers with a prefix cache for
    each order, and by transformers in padded batches, in turn.

    Example:

      fastreader bench --model HuggingFaceTB/SmolLM2-360M-Instruct --passages 10
    """
    from fastreader.cli.packing_gain import compare

    use_cache(cache_dir)
    screen = Console(stderr=True)
    tell = (lambda text: screen.print(text, style="dim")) if sys.stderr.isatty() else (lambda text: None)
    result = compare(
        model,
        device=device,
        dtype=dtype,
        precision=precision,
        passages=passages,
        passage_tokens=passage_tokens,
        candidates=candidates,
        rounds=rounds,
        tell=tell,
    )
    if format is not Format.table:
        typer.echo(json.dumps({**dataclasses.asdict(result), "gains": result.gains}, allow_nan=False))
        return
    from fastreader.cli.tables.bench import bench_table
    from fastreader.cli.tables.scores import UNLIMITED

    console = Console()
    (console if console.is_terminal else Console(width=UNLIMITED)).print(bench_table(result))
    gains = [f"{gain:.1f} times as fast as {name}" for name, gain in result.gains.items()]
    typer.echo(f"On this machine one packed pass is {' and '.join(gains)}.")
