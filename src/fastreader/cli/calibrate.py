"""fastreader calibrate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastreader.cli import options
from fastreader.cli.inputs import Resumed, check_writable
from fastreader.cli.screen import Screen, say
from fastreader.core.checks import expect, given, require
from fastreader.core.progress import track
from fastreader.data import Example
from fastreader.data.result_log import ResultLog, iter_results

if TYPE_CHECKING:
    from fastreader.moi import CalibrationCost, PositionBias


@options.spread
def calibrate(
    *,
    file: Annotated[
        Path, typer.Argument(help="Questions with passages: .json or .jsonl, also gzipped; 20 or more, better 30.")
    ],
    scores: Annotated[
        Path | None,
        typer.Option(
            "--scores",
            help="Keep the scores in this .jsonl file; an interrupted run resumes from it. Needed with labels.",
            show_default=False,
        ),
    ] = None,
    passages: Annotated[
        int, typer.Option("--num-passages", "-n", help="N, the number of passages of each question.", min=3)
    ] = 5,
    permutations: Annotated[
        str | None,
        typer.Option(
            help="Orderings of each question.",
            show_default="3N, balanced; without labels N, until the bias is settled",
        ),
    ] = None,
    prune: Annotated[
        int | None,
        typer.Option(
            help="L: read only this many places of each ordering, for moi --prune L.", min=2, show_default=False
        ),
    ] = None,
    seed: options.SeedOption = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the calibration to this file.", show_default=False)
    ] = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Also move each question's gold passage through the places: decides the sign; kept next to --scores.",
        ),
    ] = False,
    install: Annotated[
        bool, typer.Option("--install", help="Install it in the cache folder, where rerank and ask find it.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the bias to this file.", show_default=False)] = None,
    limit: options.LimitOption = None,
    cost: options.CostOption = False,
    progress: options.ProgressOption = None,
    prompt: options.PromptArguments,
    reader: options.ReaderArguments,
) -> None:
    """Measure how much each place in the prompt counts for this reader (MoI's position bias).

    Questions with fewer than N passages are skipped. Without labels, 20 questions or more are scored until the bias is
    settled. If passages are marked as gold, or as having an answer, all questions are scored, and P(best) is fitted to
    how often these passages are the best; --permutations asks for this without labels too.

    Examples:

      fastreader calibrate questions.jsonl -n 5 --scores scores.jsonl --install

      fastreader calibrate labelled.jsonl -n 5 --limit 40 --scores scores.jsonl --probe --install
    """
    from functools import cache

    import numpy as np

    from fastreader import moi
    from fastreader.core.drawing import new_figure
    from fastreader.moi.calibration.probe import gold_of, right_answers
    from fastreader.moi.calibration.store import keep as install_bias
    from fastreader.permutations import resolve
    from fastreader.scoring.api import permutation_cost, score_permutations
    from fastreader.scoring.results import PermutationScores

    for option, path in (("--output", output), ("--plot", plot), ("--scores", scores)):
        if path is not None:
            check_writable(option, path)
    _check_apart(file, scores, output, plot)
    if plot is not None:  # fail before the scoring, not after it
        formats = new_figure(1, 1).canvas.get_supported_filetypes()
        ending = plot.suffix.removeprefix(".") in formats
        expect(ending, "--plot", f"a file ending in one of {', '.join(sorted(formats))}", str(plot))
    expect(prune is None or prune < passages, "--prune", f"fewer places than the {passages} passages", prune)
    whole = prune is None or not probe
    require(whole, "--probe: moves gold passages through all places of whole orderings; leave out --prune")
    prompts = prompt.texts()
    wanted = permutations or ("latin:2" if passages == 3 else "latin:3")  # N = 3 has two squares
    resolve(wanted, passages, seed)
    chosen = [e for e in options.QuestionArguments(file).read() if len(e.passages) >= passages][:limit]
    expect(len(chosen) >= 2, str(file), f"at least 2 questions with {passages} passages", len(chosen))
    chosen = [replace(e, passages=e.passages[:passages], candidates=[]) for e in chosen]
    chosen = list(Resumed(None).left(iter(chosen)))  # each with a distinct id
    gold = {_key(e): gold_of(e.passages) for e in chosen}
    settings = {"permutations": wanted, "seed": seed, "passages": passages, "template": prompts.to_dict()}
    settings |= reader.settings() | ({} if prune is None else {"prune": prune})
    load = cache(reader.load)
    known = sum(place is not None for place in gold.values())
    if known < 2 and permutations is None and prune is None and not probe:
        measured: dict[str, Any] = {"num_passages": passages, "template": prompts, "seed": seed}
        measured |= {"max_batch_tokens": prompt.max_batch_tokens} | ({} if limit is None else {"most": limit})
        first: CalibrationCost = moi.calibration_cost(load(), chosen, **measured)
        say(
            f"no labels: {first.first_tokens:,} tokens to compute for the first look at 20 questions, "
            f"{first.all_tokens:,} if all {first.questions} are needed"
        )
        if not cost:
            bias = moi.calibrate_reader(load(), chosen, output=scores, keep=install, progress=progress, **measured)
            count = bias.measured_on["questions"]
            if not bias.measured_on["settled"]:
                say(f"not settled after {count} questions, and not installed: {bias.reason}")
            else:
                say(f"settled by {count} questions{', and installed' if install else ''}")
            _show(bias, file, output, plot)
        return
    scoring: dict[str, Any] = {"permutations": wanted, "prune": prune, "seed": seed, "template": prompts}
    scoring |= {"question_only": True, "query_likelihood": True, "max_batch_tokens": prompt.max_batch_tokens}
    if cost:
        tokens = sum(permutation_cost(load(), e, **scoring).computed_tokens for e in chosen)
        typer.echo(f"{len(chosen)} questions: {tokens:,} tokens to compute")
        return
    kept = given(scores, "--scores: questions with labels need it, the file that keeps their scores")

    def score(todo: list[Example]) -> Iterator[tuple[str, dict[str, Any]]]:
        for result in score_permutations(load(), todo, progress=progress, **scoring):
            yield str(result.id), result.to_dict()

    def move(todo: list[Example]) -> Iterator[tuple[str, dict[str, Any]]]:
        with track("probing", len(todo), "questions", progress) as advance:
            for e in todo:
                place = gold[_key(e)]
                assert place is not None
                most = prompt.max_batch_tokens
                found = moi.probe(load(), [e], [place], template=prompts, max_batch_tokens=most, progress=False)
                yield _key(e), found.to_dict()
                advance(1)

    rows = _rows(kept, settings, chosen, score)
    contrast = None
    if probe:
        # The digest of a row covers its answers and the place of its gold passage too.
        probed = [
            replace(e, candidates=[*e.answers, f"gold: {gold[_key(e)]}"])
            for e in chosen
            if gold[_key(e)] is not None and right_answers(e)
        ]
        expect(len(probed) >= 2, "--probe", "at least 2 questions with gold passage and answers", len(probed))
        moved = _rows(kept.with_suffix(".probe.jsonl"), settings, probed, move)
        contrast = moi.Probe(
            np.array([row["effects"][0] for row in moved]),
            [row["id"] for row in moved],
            moved[0]["reader"],
            moved[0]["template"],
        )
    bias = moi.calibrate(
        [PermutationScores.from_dict(row) for row in rows],
        contrast=contrast,
        gold=list(gold.values()) if known >= 2 else None,
        seed=seed,
    )
    bias = replace(bias, measured_on={"file": file.name, "design": wanted, "ids": list(gold), "gold": known})
    if install:
        say(f"installed: {install_bias(bias)}")
    _show(bias, file, output, plot)


def _show(bias: PositionBias, file: Path, output: Path | None, plot: Path | None) -> None:
    """Write a calibration to the outputs, and print it."""
    from fastreader.cli.tables.passages import bias_table

    if output is not None:
        replace(bias, measured_on={"file": file.name, **bias.measured_on}).save(output)
    if plot is not None:
        bias.plot(plot)
    Screen().print(bias_table(bias))


def _check_apart(file: Path, scores: Path | None, output: Path | None, plot: Path | None) -> None:
    """Raise InputError if an output would overwrite the questions, the scores or another output."""
    named = {"FILE": file}
    if scores is not None:
        require(scores.resolve() != file.resolve(), f"--scores: {scores} is the file of the questions")
        named |= {"--scores": scores, "the probe's scores": scores.with_suffix(".probe.jsonl")}
    for option, path in (("--output", output), ("--plot", plot)):
        if path is not None:
            for other, taken in named.items():
                require(path.resolve() != taken.resolve(), f"{option}: {path} is also {other}; name another file")
            named[option] = path


def _key(example: Example) -> str:
    assert example.id is not None
    return example.id


def _rows(
    path: Path,
    settings: dict[str, Any],
    examples: list[Example],
    make: Callable[[list[Example]], Iterator[tuple[str, dict[str, Any]]]],
) -> list[dict[str, Any]]:
    """Return a row for each example, in order, after adding the rows that the file lacks."""
    with ResultLog(path, settings=settings, resume=True) as log:
        kept = Resumed(log)
        if todo := list(kept.left(iter(examples), question_only=False)):
            for key, result in make(todo):
                kept.append(key, result)
    rows = {row["id"]: row for row in iter_results(path)}
    return [rows[_key(e)] for e in examples]
