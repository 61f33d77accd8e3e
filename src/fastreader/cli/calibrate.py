"""fastreader calibrate."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fastreader.cli.inputs import examples, model_name, remaining, use_cache
from fastreader.cli.options import CacheOption, DeviceOption, DtypeOption, ModelOption, PrecisionOption
from fastreader.errors import InputError
from fastreader.jsonl import ResultLog, iter_results


def calibrate(
    file: Annotated[Path, typer.Argument(help="Questions with passages: .json or .jsonl, also gzipped; 30 or more.")],
    scores: Annotated[
        Path, typer.Option("--scores", "-s", help="Keep the scores in this .jsonl file; an interrupted run continues.")
    ],
    passages: Annotated[int, typer.Option("--passages", "-n", help="N: so many of each question.", min=3)] = 5,
    model: ModelOption = "smollm2-135m",
    permutations: Annotated[
        str, typer.Option(help="Orderings of each question; 3N in balance by default.", show_default=False)
    ] = "latin:3",
    seed: Annotated[int, typer.Option(help="Of designs and bootstrap.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the calibration here.", show_default=False)
    ] = None,
    keep: Annotated[bool, typer.Option(help="Keep it in the cache folder, where rerank and ask find it.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the bias into this file.", show_default=False)] = None,
    template: Annotated[
        Path | None, typer.Option(help="Prompt texts, a TOML or JSON file.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Only the first so many questions.", min=1, show_default=False)
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Tokens in one pass at most; from free memory by default.", show_default=False)
    ] = None,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="Default: on a terminal.", show_default=False)
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    precision: PrecisionOption = "fast",
    cache_dir: CacheOption = None,
) -> None:
    """How much each place in the prompt counts for this reader (MoI's position bias).

    Questions with fewer than N passages are left out.

    Example:

      fastreader calibrate questions.jsonl -n 5 --limit 40 --scores scores.jsonl --keep
    """
    from dataclasses import replace

    from fastreader.moi import calibrate as run
    from fastreader.moi.shipped import keep as keep_in_cache
    from fastreader.permutations import resolve
    from fastreader.prompts import Template
    from fastreader.reader import Reader
    from fastreader.report.moi_tables import bias_table
    from fastreader.scores import PermutationScores
    from fastreader.scoring import score_permutations

    use_cache(cache_dir)
    prompts = Template.load(template) if template else Template()
    wanted = "latin:2" if permutations == "latin:3" and passages == 3 else permutations  # N = 3 has two squares
    resolve(wanted, passages, seed)
    chosen = [e for e in examples(file, None, None, None, None, None) if len(e.passages) >= passages][:limit]
    if len(chosen) < 2:
        raise InputError(f"{file}: expected at least 2 questions with {passages} passages, got {len(chosen)}")
    chosen = [replace(e, passages=e.passages[:passages], candidates=[]) for e in chosen]
    with ExitStack() as stack:
        settings = {"permutations": wanted, "seed": seed, "passages": passages, "template": prompts.to_dict()}
        settings |= {"model": model_name(model), "dtype": dtype, "precision": precision}
        log = stack.enter_context(ResultLog(scores, settings=settings, resume=True))
        digests: dict[str, str] = {}
        todo = list(remaining(iter(chosen), None, True, log, digests))
        if todo:
            results = score_permutations(
                Reader.load(model, device=device, dtype=dtype, precision=precision),
                todo,
                permutations=wanted,
                seed=seed,
                template=prompts,
                question_only=True,
                alone=True,
                max_tokens=max_tokens,
                progress=progress,
            )
            for result in results:
                key = result.id
                assert key is not None
                log.append(key, {k: v for k, v in result.to_dict().items() if k != "id"}, example=digests.pop(key))
        used = set(log.done)
    bias = run([PermutationScores.from_dict(row) for row in iter_results(scores) if row["id"] in used], seed=seed)
    bias = replace(bias, measured_on={"file": file.name, "design": wanted, "ids": sorted(used)})
    if output is not None:
        bias.save(output)
    if keep:
        typer.echo(f"kept: {keep_in_cache(bias)}", err=True)
    if plot is not None:
        bias.plot(plot)
    Console().print(bias_table(bias))
