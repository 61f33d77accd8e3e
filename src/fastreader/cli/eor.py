"""fastreader eor."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastreader.cli import options
from fastreader.cli.index import quiet_bm25s
from fastreader.cli.inputs import Resumed, check_output, named_files
from fastreader.cli.screen import Screen, say
from fastreader.cli.voting import VoterArguments, check_right, fit_voter, show
from fastreader.core.checks import expect, require
from fastreader.core.progress import track
from fastreader.data.result_log import ResultLog, iter_results
from fastreader.errors import InputError

if TYPE_CHECKING:
    from fastreader.data import Example
    from fastreader.eor import Answers, Retrievers
    from fastreader.study.cached_reader import CachedReader
    from fastreader.study.dry_reader import DryReader


@options.spread
def eor(
    *,
    file: Annotated[Path, typer.Argument(help="Lines {question, answers}; passages in it are ignored.")],
    source: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=FILE: passages or their index, to search by BM25, or questions with hits; repeat.",
            show_default=False,
        ),
    ] = None,
    retriever: Annotated[
        list[str] | None,
        typer.Option(
            "--retriever",
            "-r",
            help="A specification such as SE@RR@5&Wiki@5@CP; repeat.",
            show_default="NAME@5 of every source, and ReFree",
        ),
    ] = None,
    depth: Annotated[int, typer.Option(help="A source returns at most this many passages.", min=1)] = 20,
    texts: Annotated[
        str,
        typer.Option(
            help="Prompt texts: default, short (with examples of short answers, for small models), or a .toml or "
            ".json file with some attributes of eor.Texts."
        ),
    ] = "default",
    max_new_tokens: Annotated[int, typer.Option(help="At most this many tokens of an answer.", min=1)] = 32,
    voter: VoterArguments,
    keep_documents: Annotated[
        bool, typer.Option(help="Also write the documents that were read, for the error analysis.")
    ] = False,
    limit: options.LimitOption = None,
    batch_size: options.BatchSizeOption = 8,
    dry_run: options.DryRunOption = False,
    output: options.OutputArguments,
    reader: options.ReaderArguments,
) -> None:
    """Answer questions from several retrievers and let the answers vote.

    With --fit the weights are learned from the answers to all questions in the file. Standard output then shows the
    fitted voter's votes; --output holds the votes before the fit.

    Examples:

      fastreader eor questions.jsonl --source SE=web.jsonl --source Wiki=wiki.jsonl -r Wiki@10 -r "SE@2&Wiki@5" -r PK

      fastreader eor questions.jsonl --source Wiki=wiki.jsonl -r Wiki@10 -r PK --dry-run

      fastreader eor train.jsonl --source Wiki=wiki.jsonl -o answers.jsonl --resume --fit --save voter.json
    """
    from fastreader.data import load_questions
    from fastreader.eor import Answers, Retrievers, answer, load_texts
    from fastreader.eor.sources import source_digest
    from fastreader.eor.spec import Expressions

    check_output(output, file)
    voting = voter.check()
    words = load_texts(texts)
    examples = load_questions(file, limit=limit)
    if voter.fit:
        check_right(examples)
    files = named_files(source or [])
    specs = list(retriever or [*(f"{name}@5" for name in files), "ReFree"])
    require(
        len(specs) > 1 or bool(retriever),
        "--source: expected at least one NAME=FILE, or --retriever at least twice; without them ReFree votes alone",
    )
    expect(len(specs) >= 2, "--retriever", "at least 2 to vote", ", ".join(specs))
    Expressions(specs, files, reader=True)
    voting.check_retrievers(specs)

    def run(retrievers: Retrievers, reader: Any, examples: list[Example]) -> list[Answers]:
        retrieved = retrievers.retrieve(examples)
        return answer(reader, retrieved, texts=words, max_new_tokens=max_new_tokens, keep_documents=keep_documents)

    def groups(examples: list[Example]) -> list[list[Example]]:
        return [examples[start : start + batch_size] for start in range(0, len(examples), batch_size)]

    if dry_run:
        sources = _sources(files, depth)

        def dry(each: Any) -> None:
            retrievers = Retrievers(specs, sources, reader=each, texts=words)
            for part in groups(examples):
                run(retrievers, each, part)

        _dry_run(reader.load_dry(), dry, len(examples))
        return
    settings: dict[str, Any] = {
        **reader.settings(),
        "retrievers": specs,
        "sources": {name: source_digest(path) for name, path in files.items()},
        "depth": depth,
        "max_new_tokens": max_new_tokens,
        "texts": words.to_dict(),
        "voter": voting.settings(),
        "keep_documents": keep_documents,
    }
    with ExitStack() as stack:

        def open_log(path: Path) -> ResultLog:
            return stack.enter_context(ResultLog(path, settings=settings, resume=output.resume))

        # An existing file is checked before the model is loaded; a new one is created after, when it will be used.
        path = output.output
        if path is not None and output.resume and path.is_file():
            _check_sources(path, files, settings["sources"])
        log = open_log(path) if path is not None and path.exists() else None
        sources = _sources(files, depth)
        loaded = reader.load()
        fitted = voting.voter(loaded)
        retrievers = Retrievers(specs, sources, reader=loaded, texts=words)
        if path is not None and log is None:
            log = open_log(path)
        kept = Resumed(log)
        todo = list(kept.left(iter(examples), answers=True))
        found: list[Answers] = []
        with track("answering", len(todo), "questions", output.progress) as advance:
            for part in groups(todo):
                rows = run(retrievers, loaded, part)
                for row, vote in zip(rows, fitted.vote(rows), strict=True):
                    kept.append(row.id, {**row.to_dict(), "vote": vote.to_dict()})
                found += rows
                advance(len(part))
        if log is not None:
            assert path is not None
            say(f"{len(found)} answered now, {len(log)} in {path}")
            found = [Answers.from_dict(row) for row in iter_results(path)]
    if voter.fit:
        fit_voter(fitted, found, voting)
    if path is None:
        show(list(zip(found, fitted.vote(found), strict=True)), output.format or options.Format.table, voter.metric)


def _dry_run(reader: DryReader, run: Callable[[CachedReader], None], questions: int) -> None:
    """Print what a run over all questions would cost."""
    from fastreader.cli.tables.dry_run import dry_table
    from fastreader.study.dry_run import dry_call

    cost = replace(dry_call(reader, run), method="eor", answers=questions)
    Screen().print(dry_table([cost], {reader.name: reader.speed}))
    say("not counted: replies written again because they began with an empty line, and votes by a model")


def _check_sources(output: Path, files: dict[str, Path], digests: dict[str, str]) -> None:
    """Raise InputError if a source holds other passages than when the output was started."""
    first = next(iter_results(output), {}).get("settings")
    theirs = first.get("sources") if isinstance(first, dict) else None
    for name, before in theirs.items() if isinstance(theirs, dict) else ():
        if name not in files or before == digests[name]:
            continue
        if re.fullmatch("[0-9a-f]{64}", str(before)):
            problem = f"{files[name]} holds other passages than when {output} was started"
        else:
            problem = (
                f"{output} records only the path of its passages ({before}), so it is unknown whether {files[name]} "
                "holds the same; name another --output"
            )
        raise InputError(f"--source: {name}: {problem}")


def _sources(files: dict[str, Path], depth: int) -> dict[str, Any]:
    from fastreader.eor import open_source

    quiet_bm25s()
    return {name: open_source(path, depth=depth) for name, path in files.items()}
