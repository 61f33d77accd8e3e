"""Options that several commands share: types of single ones, and dataclasses of those that go together."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_type_hints

import typer

from fastreader.core.checks import check_text, require
from fastreader.core.progress import busy
from fastreader.data import Example, Passage
from fastreader.data.fingerprints import model_digest
from fastreader.data.named import is_named
from fastreader.data.read import NamedExample, iter_named
from fastreader.data.types import PlacedExample

if TYPE_CHECKING:
    from fastreader.integrations.ray import ActorPool
    from fastreader.models.passage_cache.cache import PassageCache
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.reader import Reader
    from fastreader.study.dry_reader import DryReader


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each field of the dataclasses among its parameters.

    Typer reads a command's options from its signature, so the result has a signature in which every field is a
    parameter. Called with these, it builds the dataclasses and calls the command. `--help` shows the fields of a
    dataclass in a panel, which the class names as `panel`.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind):
            groups[parameter.name] = kind
            parameters += _parameters(kind)
        else:
            parameters.append(parameter.replace(annotation=kind))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        built = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)}) for name, kind in groups.items()
        }
        command(**built, **given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(kind: Any) -> list[inspect.Parameter]:
    """Return a keyword parameter for each field of a dataclass, in its panel."""
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for field in fields(kind):
        plain, option = get_args(hints[field.name])
        option = copy.copy(option)
        option.rich_help_panel = option.rich_help_panel or kind.panel
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        annotation = Annotated[plain, option]  # type: ignore[valid-type]
        found.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    return found


class Format(StrEnum):
    """Formats of results on standard output."""

    table = "table"
    json = "json"
    jsonl = "jsonl"


class RankFormat(StrEnum):
    """Formats of rankings on standard output."""

    table = "table"
    json = "json"
    jsonl = "jsonl"
    trec = "trec"


CacheOption = Annotated[
    Path | None,
    typer.Option("--cache-dir", help="Folder of pulled models.", envvar="FASTREADER_CACHE", show_default=False),
]
ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="Packaged name, folder, GGUF file or hub id.", envvar="FASTREADER_MODEL")
]
AdapterOption = Annotated[
    str | None,
    typer.Option(help="Folder or hub id of a PEFT adapter (LoRA), merged into the model.", show_default=False),
]
TemplateOption = Annotated[Path | None, typer.Option(help="Prompt texts, a TOML or JSON file.", show_default=False)]
LimitOption = Annotated[int | None, typer.Option(help="Process at most N questions.", min=1, show_default=False)]
CandidateOption = Annotated[
    list[str] | None,
    typer.Option("--candidate", "-c", help="A candidate answer; repeat. Replaces the file's candidates."),
]
SeedOption = Annotated[int, typer.Option(help="Seed of whatever is drawn at random.")]
MaxBatchTokensOption = Annotated[
    int | None,
    typer.Option(help="At most this many tokens in one pass; by default from free memory.", min=1, show_default=False),
]
BatchSizeOption = Annotated[int, typer.Option(help="Number of questions processed together.", min=1)]
CostOption = Annotated[
    bool,
    typer.Option(
        "--cost",
        help="Load the model, and print the tokens it would take (with --resume, what is left) without running.",
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Print the prompts and tokens that each method would take; no weights are loaded."),
]
FormatOption = Annotated[Format | None, typer.Option("--format", "-f", help="Output format.", show_default="table")]
ProgressOption = Annotated[
    bool | None,
    typer.Option("--progress/--no-progress", help="Show progress.", show_default="on a terminal"),
]


def use_cache(folder: Path | None) -> None:
    """Use `folder`, unless it is None, as the folder of pulled models from now on."""
    if folder is not None:
        os.environ["FASTREADER_CACHE"] = str(folder)


@dataclass(frozen=True)
class ReaderArguments:
    """Name a reader, and say how it is loaded."""

    panel: ClassVar[str] = "Reader"
    model: ModelOption = "smollm2-135m"
    adapter: AdapterOption = None
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto"
    dtype: Annotated[
        str,
        typer.Option(
            help="How weights are stored: auto, bfloat16, float16, float32, float64, or file (a quantised GGUF as it "
            "is)."
        ),
    ] = "auto"
    precision: Annotated[
        str, typer.Option(help="fast (bfloat16 operands), high (split in two, near float32) or exact (float32).")
    ] = "fast"
    cache_dir: CacheOption = None

    def __post_init__(self) -> None:
        use_cache(self.cache_dir)  # before anything looks for a model or a calibration

    @property
    def loading(self) -> dict[str, Any]:
        """The arguments of `Reader.load` except the model."""
        return {"device": self.device, "dtype": self.dtype, "precision": self.precision, "adapter": self.adapter}

    def load(self) -> Reader:
        """Load the reader, and say so meanwhile on a terminal."""
        with busy(f"loading {self.model}"):
            from fastreader.reader.reader import Reader

            return Reader.load(self.model, **self.loading)

    def load_dry(self) -> DryReader:
        """Load the reader's tokenizer and config alone."""
        from fastreader.study.dry_reader import DryReader

        return DryReader.load(self.model, **self.loading)

    def settings(self) -> dict[str, str]:
        """Return the settings that identify the model and its adapter, without loading them."""
        return model_settings(self.model, self.dtype, self.precision, self.adapter)


@dataclass(frozen=True)
class KeepingReaderArguments(ReaderArguments):
    """Name a reader that keeps what it reads of passages, and say how it is loaded."""

    passage_folder: Annotated[
        Path | None,
        typer.Option(
            help="Keep keys and values of passages as files here, and use what is there; see fastreader passages.",
            show_default=False,
        ),
    ] = None

    def passage_cache(self) -> PassageCache | None:
        """Return the cache of the folder, or None without one."""
        if self.passage_folder is None:
            return None
        from fastreader.models.passage_cache.cache import PassageCache

        return PassageCache(folder=self.passage_folder)


@dataclass(frozen=True)
class QuestionArguments:
    """Name a file of questions, or give one question with its passages."""

    panel: ClassVar[str] = "Questions"
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Questions with passages: .json or .jsonl, also gzipped; datasets:NAME; - for standard input.",
            show_default=False,
            rich_help_panel="Arguments",
        ),
    ] = None
    question: Annotated[str | None, typer.Option("--question", "-q", help="One question, instead of a file.")] = None
    passage: Annotated[
        list[str] | None, typer.Option("--passage", "-p", help="A passage; repeat, in the retriever's order.")
    ] = None
    limit: LimitOption = None

    def read(
        self, candidates: list[str] | None = None, on_error: Callable[..., object] | None = None
    ) -> Iterator[Example]:
        """Return the questions of the file (- is standard input), or the one of --question and --passage.

        The first one is read at once, so that a file of another format is an error before a model is loaded.

        Raises:
            InputError: if both or neither are given, the file does not exist, or a text is not valid Unicode.
        """
        require((self.file is None) != (self.question is None), "expected a file or --question, one of the two")
        for text in candidates or []:
            check_text("--candidate", text, empty=True)
        if self.file is None:
            assert self.question is not None
            check_text("--question", self.question, empty=True)
            passages = self.passage or []
            for text in passages:
                check_text("--passage", text, empty=True)
            return iter([Example(self.question, [Passage(p) for p in passages], candidates=candidates or [])])
        file = standard_input(self.file)
        require(not self.passage, "--passage: goes with --question; a file brings its own passages")
        require(is_named(file) or file.exists(), f"{file}: no such file")
        examples = _placed(iter_named(file, self.limit, on_error))
        return chain(list(islice(examples, 1)), examples)


def _placed(rows: Iterable[NamedExample]) -> Iterator[Example]:
    for row in rows:
        plain = {field.name: getattr(row.example, field.name) for field in fields(Example)}
        yield PlacedExample(**plain, place=row.place) if row.example.id is None else row.example


def standard_input(file: Path) -> Path:
    """Return the path of standard input for -, and any other path as it is."""
    return Path("/dev/stdin") if file == Path("-") else file


@dataclass(frozen=True)
class SkippableArguments(QuestionArguments):
    """Name questions, and say whether those that fail are skipped."""

    skip_errors: Annotated[
        bool, typer.Option(help="Report questions that cannot be read or scored, and continue with the next.")
    ] = False


@dataclass(frozen=True)
class OrderingArguments:
    """Say how much of each ordering is read."""

    panel: ClassVar[str] = "Orderings"
    prune: Annotated[
        int | None, typer.Option(help="Read only this many places of each ordering.", min=1, show_default=False)
    ] = None
    prune_mass: Annotated[
        float | None,
        typer.Option(
            help="Read the shortest beginning that holds this share of the retriever's softmaxed scores.",
            show_default=False,
        ),
    ] = None
    seed: SeedOption = 0


@dataclass(frozen=True)
class PromptArguments:
    """Choose the prompt's texts and the size of a pass."""

    panel: ClassVar[str] = "Prompts and passes"
    template: TemplateOption = None
    max_batch_tokens: MaxBatchTokensOption = None

    def texts(self) -> Template:
        """Return the prompt's texts, the default ones without --template."""
        from fastreader.reader.prompts.template import Template

        return Template.load(self.template) if self.template else Template()


@dataclass(frozen=True)
class _ResultArguments:
    panel: ClassVar[str] = "Results"
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Append results to this .jsonl file, not to standard output.", show_default=False
        ),
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue --output where it stopped.")] = False
    progress: ProgressOption = None


@dataclass(frozen=True)
class OutputArguments(_ResultArguments):
    """Say where results go."""

    format: FormatOption = None


@dataclass(frozen=True)
class RankOutputArguments(_ResultArguments):
    """Say where rankings go."""

    format: Annotated[
        RankFormat | None, typer.Option("--format", "-f", help="Output format.", show_default="table")
    ] = None


@dataclass(frozen=True)
class RayArguments:
    """Name the actors of Ray that a command runs over."""

    panel: ClassVar[str] = "Many machines"
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Run over actors of Ray: local (this machine), auto or HOST:PORT.",
            show_default=False,
        ),
    ] = None
    ray_actors: Annotated[
        int | None, typer.Option(help="Number of actors, each with a reader.", min=1, show_default="1")
    ] = None
    ray_gpus: Annotated[
        float | None, typer.Option(help="Number of GPUs of each actor, may be a fraction.", min=0, show_default="0")
    ] = None

    def pool(self, batch_size: int = 32) -> ActorPool | None:
        """Return the pool of --ray, or None without it.

        Raises:
            InputError: if another option of the group is given without --ray.
            MissingExtraError: if Ray is not installed.
        """
        if self.ray is None:
            require(self.ray_actors is None, "--ray-actors: needs --ray, the address")
            require(self.ray_gpus is None, "--ray-gpus: needs --ray, the address")
            return None
        from fastreader.integrations.ray import ActorPool
        from fastreader.integrations.ray.pool import require_ray

        require_ray()
        logging.getLogger("ray.data").setLevel(logging.WARNING)  # it reports the plan of every dataset
        return ActorPool(self.ray, self.ray_actors or 1, self.ray_gpus or 0, batch_size=batch_size)


def model_settings(model: str, dtype: str, precision: str, adapter: str | None = None) -> dict[str, str]:
    """Return the settings that identify a model and its adapter, without loading them.

    A path is resolved, and a digest of its files or the commit of a hub id distinguishes versions.
    """
    from fastreader.models.loading.find import adapter_commit_of, commit_of

    name, revision = _versioned(model, commit_of)
    named = {"model": name, "dtype": dtype, "precision": precision} | ({"revision": revision} if revision else {})
    if adapter is None:
        return named
    name, revision = _versioned(adapter, adapter_commit_of)
    return named | {"adapter": name} | ({"adapter_revision": revision} if revision else {})


def _versioned(name: str, commit_of: Callable[[str], str]) -> tuple[str, str]:
    """Return the name or the resolved path of a model or an adapter, and its version or ""."""
    path = Path(name).expanduser()
    if path.exists():
        return str(path.resolve()), model_digest(path)
    return name, commit_of(name)
