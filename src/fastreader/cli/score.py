"""fastreader score."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from fastreader.cli import options
from fastreader.cli.cluster import RayActorsOption, RayGpusOption, RayOption, pool_of
from fastreader.cli.inputs import Skipped, check_output, examples, model_settings, remaining, use_cache
from fastreader.cli.output import Writer
from fastreader.cli.screen import Screen, say
from fastreader.core.checks import require
from fastreader.data import Example
from fastreader.data.result_log import ResultLog
from fastreader.errors import InputError, OutOfBudgetError

if TYPE_CHECKING:
    from fastreader.core.tree import TreeStats
    from fastreader.scoring.results import PermutationScores


def score(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Questions with passages and candidates: .json or .jsonl, also gzipped; - for standard input.",
            show_default=False,
        ),
    ] = None,
    question: options.QuestionOption = None,
    passage: options.PassageOption = None,
    candidate: Annotated[
        list[str] | None, typer.Option("--candidate", "-c", help="An answer to score; repeat. Overrides the file's.")
    ] = None,
    model: options.ModelOption = "smollm2-135m",
    permutations: Annotated[
        str, typer.Option(help="identity, cyclic, cyclic_reversed, random[:M], latin[:SQUARES], prefix_sharing[:M].")
    ] = "cyclic",
    seed: options.SeedOption = 0,
    prune: options.PruneOption = None,
    prune_mass: options.PruneMassOption = None,
    template: options.TemplateOption = None,
    question_only: Annotated[bool, typer.Option(help="Score the question without candidates.")] = False,
    score_passages: Annotated[
        bool, typer.Option(help="Also score log P(passages); costs the LM head at every token.")
    ] = False,
    closed_book: Annotated[bool, typer.Option(help="Also score the candidates without passages.")] = False,
    query_likelihood: Annotated[
        bool, typer.Option(help="Also score the question after each passage alone (query likelihood).")
    ] = False,
    token_logprobs: Annotated[bool, typer.Option(help="Keep every token's log-probability (json and jsonl).")] = False,
    on_overflow: Annotated[
        str, typer.Option(help="If a prompt is too long: error, drop_passages or truncate.")
    ] = "error",
    max_batch_tokens: options.MaxBatchTokensOption = None,
    output: options.OutputOption = None,
    resume: options.ResumeOption = False,
    limit: options.LimitOption = None,
    skip_errors: options.SkipErrorsOption = False,
    cost: options.CostOption = False,
    format: options.FormatOption = None,
    progress: options.ProgressOption = None,
    adapter: options.AdapterOption = None,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    precision: options.PrecisionOption = "fast",
    cache_dir: options.CacheOption = None,
    ray: RayOption = None,
    ray_actors: RayActorsOption = None,
    ray_gpus: RayGpusOption = None,
) -> None:
    """Score candidate answers (log-likelihoods) under many orderings of the passages.

    Examples:

      fastreader score questions.jsonl --limit 3

      fastreader score questions.jsonl.gz -o scores.jsonl --resume

      fastreader score -q "Which river is in Cairo?" -p "The Nile is in Egypt." -p "The Seine is in Paris." -c Nile
    """
    from fastreader.cli.tables.scores import UNLIMITED
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.reader import Reader
    from fastreader.scoring.api import permutation_cost, score_permutations
    from fastreader.scoring.results import PermutationScores

    use_cache(cache_dir)
    skip = Skipped()
    check_output(output, file, resume, format, cost=cost)
    questions = examples(file, question, passage, candidate, limit, skip if skip_errors else None)
    prompts = Template.load(template) if template else Template()
    what: dict[str, Any] = {
        "permutations": permutations,
        "seed": seed,
        "prune": prune,
        "prune_mass": prune_mass,
        "template": prompts,
        "question_only": question_only,
        "score_passages": score_passages,
        "closed_book": closed_book,
        "query_likelihood": query_likelihood,
        "on_overflow": on_overflow,
    }
    pool = pool_of(ray, ray_actors, ray_gpus)
    require(pool is None or not cost, "--cost: is counted on this machine; leave out --ray")
    loading: dict[str, Any] = {"device": device, "dtype": dtype, "precision": precision, "adapter": adapter}
    with ExitStack() as stack:

        def open_log(path: Path) -> ResultLog:
            settings = {**what, "template": prompts.to_dict(), "token_logprobs": token_logprobs}
            settings |= model_settings(model, dtype, precision, adapter)
            return stack.enter_context(ResultLog(path, settings=settings, resume=resume, read_only=cost))

        # An existing file is checked before the model is loaded; a new one is created after, when it will be used.
        # The cost of what a resumed run would still score needs only an existing file.
        wanted = output if not cost or (resume and output is not None and output.exists()) else None
        log = open_log(wanted) if wanted is not None and wanted.exists() else None
        reader: Any = Reader.load(model, **loading) if pool is None else None  # actors load their own
        if wanted is not None and log is None:
            log = open_log(wanted)
        digests: dict[str, str] = {}
        todo = remaining(questions, candidate, question_only, log, digests, scores=prune_mass is not None)
        if cost:
            _print_costs(
                todo,
                lambda example: permutation_cost(reader, example, candidates=candidate, **what),
                skip if skip_errors else None,
            )
        else:
            run: dict[str, Any] = {
                "candidates": candidate,
                "token_logprobs": token_logprobs,
                "max_batch_tokens": max_batch_tokens,
                **what,
            }
            on_error = (lambda *failed: skip(str(failed[-1]))) if skip_errors else None
            if pool is None:
                results = score_permutations(reader, todo, progress=progress, on_error=on_error, **run)
            else:
                from fastreader.integrations import ray as actors

                source = actors.ReaderReference.of(model, **loading)
                results = actors.score(source, todo, pool=pool, ordered=log is None, on_error=on_error, **run)
            done = 0
            shown = None if output is not None else (format or options.Format.table).value
            with Writer(shown, _table, PermutationScores.to_dict, width=UNLIMITED) as writer:
                for result in results:
                    if log is not None:
                        assert result.id is not None
                        log.append(result.id, result.to_dict(), example=digests.pop(result.id))
                    writer.write(result)
                    done += 1
            if log is not None:
                say(f"{done} scored now, {len(log)} in {output}")
    skip.finish()


def _table(result: PermutationScores) -> RenderableType:
    from fastreader.cli.tables.scores import scores_table

    screen = Screen()
    return scores_table(result, screen.width if screen.is_terminal else None)


def _print_costs(
    examples: Iterator[Example], cost: Callable[[Example], TreeStats], skip: Callable[[str], None] | None
) -> None:
    given = computed = count = 0
    for example in examples:
        try:
            stats = cost(example)
        except (InputError, OutOfBudgetError) as error:
            located = f"id {example.id}: {error}"
            if skip is None:
                raise type(error)(located) from error
            skip(located)
            continue
        given, computed, count = given + stats.total_tokens, computed + stats.computed_tokens, count + 1
    saved = 1 - computed / given if given else 0.0
    typer.echo(f"{count} questions: {given:,} tokens in total, {computed:,} to compute, {saved:.0%} saved")
