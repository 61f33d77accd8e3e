"""fastreader convert."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastreader.cli import options
from fastreader.cli.inputs import Skipped, check_writable
from fastreader.cli.screen import say
from fastreader.core.checks import expect, require

if TYPE_CHECKING:
    from fastreader.data import Example
    from fastreader.data.read import NamedExample


class ExampleFormat(StrEnum):
    """Formats of files of questions."""

    dpr = "dpr"
    flashrag = "flashrag"
    trec = "trec"


class _Converted:
    """Counts what a conversion reads."""

    def __init__(self) -> None:
        self.formats: Counter[str] = Counter()
        self.passages = self.unanswered = self.alone = 0

    def add(self, name: str, example: Example) -> Example:
        """Count an example of the format `name`, and return it."""
        self.formats[name] += 1
        self.passages += len(example.passages)
        self.unanswered += not example.answers
        self.alone += not example.passages
        return example

    def lines(self) -> Iterator[str]:
        """Yield what was read, and what was not kept, as lines for people."""
        from fastreader.data.formats import dropped_keys

        for name, count in self.formats.items():
            yield f"{name}: {count:,} question{'s' * (count != 1)}"
        yield f"passages: {self.passages:,}"
        for count, what in ((self.unanswered, "right answers"), (self.alone, "passages")):
            if count:
                yield f"without {what}: {count:,} question{'s' * (count != 1)}"
        for key, why in dropped_keys(self.formats).items():
            yield f"not kept: {key}, {why}"


def _of_split(rows: Iterator[NamedExample], split: str) -> Iterator[NamedExample]:
    """Yield the rows of a split."""
    splits: dict[str, int] = {}
    for row in rows:
        name = str(row.example.metadata.get("split", ""))
        splits[name] = splits.get(name, 0) + 1
        if name == split:
            yield row
    held = ", ".join(name or "rows without a split" for name in splits) or "no rows"
    expect(split in splits, "--split", f"one of the file's ({held})", split)


def convert(
    file: Annotated[Path, typer.Argument(metavar="IN", help="A data set's file, plain or gzipped; - is stdin.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="File to write; gzipped if it ends in .gz.")],
    *,
    format: Annotated[ExampleFormat, typer.Option("--format", "-f", help="Format to write.")] = ExampleFormat.dpr,
    limit: options.LimitOption = None,
    split: Annotated[str | None, typer.Option(help="Only rows of this split, of a file that holds several.")] = None,
    skip_errors: Annotated[bool, typer.Option(help="Report rows that cannot be read, and continue.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
) -> None:
    """Convert a data set's file to the format that every command reads.

    The format of IN is recognised by its keys. Standard error says which it is, and what is not kept.

    Examples:

      fastreader convert hotpot_dev_distractor_v1.json hotpot.jsonl

      fastreader convert ASQA.json asqa.jsonl --split dev

      fastreader convert popQA.tsv popqa.jsonl.gz --limit 500

      fastreader convert datasets:OWNER/NAME/CONFIG:validation questions.jsonl
    """
    from fastreader.data import save_examples
    from fastreader.data.named import is_named
    from fastreader.data.read import iter_named

    source = options.standard_input(file)
    require(is_named(source) or source.exists(), f"{source}: no such file")
    require(force or not output.exists(), f"{output}: exists; --force replaces it")
    check_writable("OUT", output)
    skipped, counts = Skipped(skip_errors), _Converted()
    rows = iter_named(source, None if split else limit, skipped.on_error)
    if split:
        rows = itertools.islice(_of_split(rows, split), limit)
    save_examples((counts.add(row.format, row.example) for row in rows), output, format.value)
    for line in counts.lines():
        say(line)
    say(f"written: {output}")
    skipped.finish()
