"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


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


ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="Packaged name, folder, GGUF file or hub id.", envvar="FASTREADER_MODEL")
]
AdapterOption = Annotated[
    str | None,
    typer.Option(help="Folder or hub id of a PEFT adapter (LoRA), merged into the model.", show_default=False),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
DtypeOption = Annotated[
    str,
    typer.Option(
        help="How weights are stored: auto, bfloat16, float16, float32, float64, or file (a quantised GGUF as it is)."
    ),
]
PrecisionOption = Annotated[
    str, typer.Option(help="fast (bfloat16 operands), high (split in two, near float32) or exact (float32).")
]
CacheOption = Annotated[
    Path | None,
    typer.Option("--cache-dir", help="Folder of pulled models.", envvar="FASTREADER_CACHE", show_default=False),
]
FileArgument = Annotated[
    Path | None,
    typer.Argument(
        help="Questions with passages: .json or .jsonl, also gzipped; - for standard input.", show_default=False
    ),
]
QuestionOption = Annotated[str | None, typer.Option("--question", "-q", help="One question, instead of a file.")]
PassageOption = Annotated[
    list[str] | None, typer.Option("--passage", "-p", help="A passage; repeat, in the retriever's order.")
]
PruneOption = Annotated[
    int | None, typer.Option(help="Read only this many places of each ordering.", min=1, show_default=False)
]
PruneMassOption = Annotated[
    float | None,
    typer.Option(
        help="Read the shortest beginning that holds this share of the retriever's softmaxed scores.",
        show_default=False,
    ),
]
TemplateOption = Annotated[Path | None, typer.Option(help="Prompt texts, a TOML or JSON file.", show_default=False)]
LimitOption = Annotated[int | None, typer.Option(help="Process at most N questions.", min=1, show_default=False)]
SeedOption = Annotated[int, typer.Option(help="Seed of whatever is drawn at random.")]
MaxBatchTokensOption = Annotated[
    int | None,
    typer.Option(help="At most this many tokens in one pass; by default from free memory.", min=1, show_default=False),
]
BatchSizeOption = Annotated[int, typer.Option(help="Number of questions processed together.", min=1)]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Append results to this .jsonl file, not to standard output.", show_default=False
    ),
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Continue --output where it stopped.")]
SkipErrorsOption = Annotated[
    bool, typer.Option(help="Report questions that cannot be read or scored, and continue with the next.")
]
CostOption = Annotated[
    bool, typer.Option("--cost", help="Print the tokens it would take (with --resume, what is left), without running.")
]
FormatOption = Annotated[Format | None, typer.Option("--format", "-f", help="Output format.", show_default="table")]
RankFormatOption = Annotated[
    RankFormat | None, typer.Option("--format", "-f", help="Output format.", show_default="table")
]
ProgressOption = Annotated[
    bool | None,
    typer.Option("--progress/--no-progress", help="Show progress.", show_default="on a terminal"),
]
