"""fastreader score."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastreader.cli import options
from fastreader.cli.inputs import Resumed, Skipped, check_output
from fastreader.cli.output import Writer
from fastreader.cli.screen import Screen, say
from fastreader.core.checks import require
from fastreader.data import Example
from fastreader.data.result_log import ResultLog
from fastreader.errors import InputError, OutOfBudgetError

if TYPE_CHECKING:
    from fastreader.core.tree import TreeStats


@options.spread
def score(
    *,
    questions: options.SkippableArguments,
    candidate: options.CandidateOption = None,
    permutations: Annotated[
        str, typer.Option(help="identity, cyclic, cyclic_reversed, random[:M], latin[:SQUARES], prefix_sharing[:M].")
    ] = "cyclic",
    orderings: options.OrderingArguments,
    question_only: Annotated[bool, typer.Option(help="Score the question without candidates.")] = False,
    score_passages: Annotated[
        bool, typer.Option(help="Also score log P(passages), which costs the LM head at every token.")
    ] = False,
    closed_book: Annotated[bool, typer.Option(help="Also score the candidates without passages.")] = False,
    query_likelihood: Annotated[
        bool, typer.Option(help="Also score the question after each passage by itself (query likelihood).")
    ] = False,
    token_logprobs: Annotated[bool, typer.Option(help="Keep every token's log-probability (json and jsonl).")] = False,
    on_overflow: Annotated[
        str, typer.Option(help="If a prompt is too long: error, drop_passages or truncate.")
    ] = "error",
    cost: options.CostOption = False,
    prompt: options.PromptArguments,
    output: options.OutputArguments,
    reader: options.ReaderArguments,
    actors: options.RayArguments,
) -> None:
    """Score candidate answers (log-likelihoods) under many orderings of the passages.

    Questions need passages and, without --question-only, candidates.

    Examples:

      fastreader score questions.jsonl --limit 3

      fastreader score questions.jsonl.gz -o scores.jsonl --resume

      fastreader score -q "Which river is in Cairo?" -p "The Nile is in Egypt." -p "The Seine is in Paris." -c Nile
    """
    from fastreader.cli.tables.scores import UNLIMITED, scores_table
    from fastreader.scoring.api import permutation_cost, score_permutations
    from fastreader.scoring.results import PermutationScores

    skip = Skipped(questions.skip_errors)
    check_output(output, questions.file, cost=cost)
    examples = questions.read(candidate, skip.on_error)
    prompts = prompt.texts()
    what: dict[str, Any] = {
        **asdict(orderings),
        "permutations": permutations,
        "template": prompts,
        "question_only": question_only,
        "score_passages": score_passages,
        "closed_book": closed_book,
        "query_likelihood": query_likelihood,
        "on_overflow": on_overflow,
    }
    pool = actors.pool()
    require(pool is None or not cost, "--cost: is counted on this machine; leave out --ray")
    with ExitStack() as stack:

        def open_log(path: Path) -> ResultLog:
            settings = {**what, "template": prompts.to_dict(), "token_logprobs": token_logprobs, **reader.settings()}
            return stack.enter_context(ResultLog(path, settings=settings, resume=output.resume, read_only=cost))

        # An existing file is checked before the model is loaded; a new one is created after, when it will be used.
        # The cost of what a resumed run would still score needs only an existing file.
        path = output.output
        wanted = path if not cost or (output.resume and path is not None and path.exists()) else None
        log = open_log(wanted) if wanted is not None and wanted.exists() else None
        loaded: Any = reader.load() if pool is None else None  # actors load their own
        if wanted is not None and log is None:
            log = open_log(wanted)
        kept = Resumed(log)
        todo = kept.left(examples, candidate, question_only=question_only, scores=orderings.prune_mass is not None)
        if cost:
            _print_costs(todo, lambda example: permutation_cost(loaded, example, candidates=candidate, **what), skip)
        else:
            run: dict[str, Any] = {
                "candidates": candidate,
                "token_logprobs": token_logprobs,
                "max_batch_tokens": prompt.max_batch_tokens,
                "on_error": skip.on_error,
                **what,
            }
            if pool is None:
                results = score_permutations(loaded, todo, progress=output.progress, **run)
            else:
                from fastreader.integrations import ray

                source = ray.ReaderReference.of(reader.model, **reader.loading)
                results = ray.score(source, todo, pool=pool, ordered=log is None, **run)
            done = 0
            shown = None if path is not None else (output.format or options.Format.table).value
            screen = Screen()
            width = screen.width if screen.is_terminal else None
            table = partial(scores_table, width=width)
            with Writer(shown, table, PermutationScores.to_dict, width=UNLIMITED) as writer:
                for result in results:
                    if log is not None:
                        kept.append(result.id, result.to_dict())
                    writer.write(result)
                    done += 1
            if log is not None:
                say(f"{done} scored now, {len(log)} in {path}")
    skip.finish()


def _print_costs(examples: Iterator[Example], cost: Callable[[Example], TreeStats], skip: Skipped) -> None:
    given = computed = count = 0
    for example in examples:
        try:
            stats = cost(example)
        except (InputError, OutOfBudgetError) as error:
            skip.fail(example, error)
            continue
        given, computed, count = given + stats.total_tokens, computed + stats.computed_tokens, count + 1
    saved = 1 - computed / given if given else 0.0
    typer.echo(f"{count} questions: {given:,} tokens in total, {computed:,} to compute, {saved:.0%} saved")
