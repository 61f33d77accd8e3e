"""Options that several commands take."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


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
