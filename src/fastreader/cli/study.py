"""fastreader study."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from fastreader.cli.index import quiet_bm25s
from fastreader.cli.inputs import named_files
from fastreader.cli.options import (
    CacheOption,
    DryRunOption,
    LimitOption,
    MaxBatchTokensOption,
    ProgressOption,
    RayArguments,
    spread,
    use_cache,
)
from fastreader.cli.screen import Screen, say
from fastreader.core.checks import given, require
from fastreader.core.garbage import without_collections

if TYPE_CHECKING:
    from fastreader.study import Study

_WIDTH = 120  # columns if standard output is not a terminal


@dataclass(frozen=True)
class PlanArguments:
    """Say what a study compares, where its file does not."""

    panel: ClassVar[str] = "What to compare"
    data: Annotated[
        Path | None, typer.Option(help="Questions with passages, instead of the file's.", show_default=False)
    ] = None
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", help="A method, instead of the file's; repeat.", show_default=False),
    ] = None
    readers: Annotated[
        list[str] | None,
        typer.Option("--reader", "-m", help="A reader, instead of the file's; repeat.", show_default=False),
    ] = None
    limit: LimitOption = None
    passages: Annotated[
        int | None,
        typer.Option("--num-passages", "-n", help="Number of passages of each question.", min=1, show_default=False),
    ] = None
    seeds: Annotated[
        list[int] | None,
        typer.Option("--seed", help="Seed of methods that draw at random; repeat.", show_default=False),
    ] = None
    metric: Annotated[
        str | None,
        typer.Option(
            help="Metric that methods are compared by: em, f1, contained, or a measure as of --measure.",
            show_default=False,
        ),
    ] = None
    measures: Annotated[
        list[str] | None,
        typer.Option(
            "--measure", help="A further measure, such as rouge_l or preferred:READER; repeat.", show_default=False
        ),
    ] = None
    conflicts: Annotated[
        bool, typer.Option("--conflicts", help="Also compare passages over the answers that methods gave.")
    ] = False
    attribution: Annotated[
        int | None,
        typer.Option(help="Attribute answers to passages for this many questions.", min=0, show_default=False),
    ] = None
    baseline: Annotated[
        str | None, typer.Option(help="Method that the others are compared with.", show_default=False)
    ] = None
    primary: Annotated[
        str | None,
        typer.Option(help="Method whose contrast with the baseline is stated beforehand.", show_default=False),
    ] = None
    num_candidates: Annotated[
        int | None,
        typer.Option("--num-candidates", "-k", help="Number of SuRe's candidates.", min=1, show_default=False),
    ] = None
    sources: Annotated[
        list[str] | None,
        typer.Option("--source", help="A source of eor: NAME=FILE; repeat.", show_default=False),
    ] = None
    data_set: Annotated[
        str | None,
        typer.Option(help="Name of the data set, for published figures next to yours.", show_default=False),
    ] = None
    retriever: Annotated[
        str | None,
        typer.Option(help="Name of what retrieved the passages, for published figures.", show_default=False),
    ] = None
    random: Annotated[
        str | None,
        typer.Option(help="Random passages of noise layouts: a file, others or words.", show_default=False),
    ] = None
    attention: Annotated[
        int | None,
        typer.Option(
            help="Capture attention of noise layouts' answers for this many questions.", min=0, show_default=False
        ),
    ] = None

    def values(self) -> dict[str, Any]:
        """Return the values by their names in a study's file."""
        values = asdict(self)
        values |= {"data": None if self.data is None else str(self.data), "conflicts": self.conflicts or None}
        sources = values.pop("sources")
        values["eor"] = (
            None if sources is None else {"sources": {name: str(file) for name, file in named_files(sources).items()}}
        )
        values["sure"] = _given({"k": values.pop("num_candidates")})
        values["noise"] = _given({name: values.pop(name) for name in ("random", "attention")})
        return values


def _given(values: dict[str, Any]) -> dict[str, Any] | None:
    """Return the values that are not None as a table of the study, or None."""
    return {key: value for key, value in values.items() if value is not None} or None


@dataclass(frozen=True)
class RunningArguments:
    """Say how a study runs, where its file does not."""

    panel: ClassVar[str] = "How to run"
    max_batch_tokens: MaxBatchTokensOption = None
    batch_size: Annotated[
        int | None, typer.Option(help="Number of questions processed together.", min=1, show_default=False)
    ] = None
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.", show_default=False)] = None
    precision: Annotated[str | None, typer.Option(help="fast, high or exact.", show_default=False)] = None


@spread
def study(
    *,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="The study: a .toml, .yaml or .json file; without one, flags define it.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the run.", show_default=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --output.")] = False,
    dry: DryRunOption = False,
    list_methods: Annotated[bool, typer.Option("--list", help="Print all methods and stop.")] = False,
    plan: PlanArguments,
    running: RunningArguments,
    progress: ProgressOption = None,
    cache_dir: CacheOption = None,
    actors: RayArguments,
) -> None:
    """Run many methods over many questions, into a folder that `fastreader report` reads.

    Examples:

      fastreader study examples/study.toml -o runs/first --limit 4

      fastreader study --data questions.jsonl --method base --method moi --method sure -o runs/second

      fastreader study examples/study.toml --dry-run

      fastreader report runs/second -o report.html
    """
    with without_collections():
        from fastreader.study import Study, run_study
        from fastreader.study.registry import FAMILIES, check, names

    if list_methods:
        for name in names():
            family, _, variant = name.partition(":")
            typer.echo(f"{name}\t{FAMILIES[family].variants[variant]}")
        return
    folder = Path() if dry else given(output, "--output: expected the run's folder")
    use_cache(cache_dir)
    quiet_bm25s()
    pool = actors.pool()
    flags = plan.values() | asdict(running)
    if file is not None:
        chosen = Study.load(file, **flags)
        check(chosen, str(file))
    else:
        require(
            plan.data is not None and bool(plan.methods), "expected a study file, or --data and at least one --method"
        )
        values = {key: value for key, value in flags.items() if value is not None}
        chosen = Study.of(values, "the flags")  # paths in it from the working directory
        check(chosen, "the flags")
    if dry:
        _dry_run(chosen)
        return
    if pool is None:
        done = run_study(chosen, folder, resume=resume, progress=progress)
    else:
        from fastreader.integrations import ray

        done = ray.run_study(chosen, folder, pool=pool, resume=resume, progress=progress)
    say(f"{done.rows} rows in {done.folder} ({done.fresh} new)")
    if lacking := done.left_out - done.over_long:
        say(f"{lacking} skipped: their questions lack something that the method needs")
    if done.over_long:
        say(f"{done.over_long} skipped: their prompts exceed the reader's context")
    if done.rows > done.left_out + done.over_long + done.failed:
        from fastreader.cli.tables.study import study_table
        from fastreader.report.study_data import StudyRun

        _screen().print(study_table(StudyRun(folder)))
        say(f"next: fastreader report {folder} -o report.html")
    if done.failed:
        say(f"{done.failed} failed; their rows hold the error")
        raise typer.Exit(3)


def _screen() -> Screen:
    """Return standard output, wide enough for the names of methods if it is not a terminal."""
    return Screen(width=None if Screen().is_terminal else _WIDTH)


def _dry_run(study: Study) -> None:
    """Print what a study would cost, and what is wrong with methods that would answer no question."""
    from fastreader.cli.tables.dry_run import dry_table
    from fastreader.study.dry_run import dry_models, dry_run

    models = dry_models(study)
    costs = dry_run(study, load=models.reader)
    for cost in costs:
        if cost.useless:
            say(f"note: {cost.warning}")
    _screen().print(dry_table(costs, {name: models.reader(name).speed for name in study.readers}))
    if study.measures or study.conflicts or study.attribution or study.noise.attention:
        say("not counted: measures by a model, conflicts, attribution and attention, which come after the answers")
