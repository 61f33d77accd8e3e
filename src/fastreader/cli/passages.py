"""fastreader passages: build, info, prune."""

from __future__ import annotations

import json
from datetime import datetime
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastreader.cli import options
from fastreader.cli.screen import Screen, say
from fastreader.core.checks import require

if TYPE_CHECKING:
    from fastreader.models.passage_cache.folder import PassageFolder

app = typer.Typer(
    help="Keys and values of passages that were read, in a folder: build, info, prune.", no_args_is_help=True
)
_MB, _GB, _DAY = 10**6, 10**9, 86_400.0


class Stored(StrEnum):
    """How keys and values are kept."""

    exact = "exact"
    int8 = "int8"


StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="Folder of the keys and values.")]


@app.command("build")
@options.spread
def passages_build(
    corpus: Annotated[
        Path, typer.Argument(help="Passages: JSON lines, or a table separated by tabs (.tsv), plain or gzipped.")
    ],
    *,
    store: Annotated[Path, typer.Option(help="Folder that keeps them, made if it does not exist.")],
    max_gb: Annotated[
        float, typer.Option(help="Limit on the folder; the least recently used leave first.", min=0.001)
    ] = 16.0,
    stored: Annotated[Stored, typer.Option(help="int8 takes a half to a quarter of the size.")] = Stored.exact,
    limit: Annotated[int | None, typer.Option(help="Read at most N passages.", min=1, show_default=False)] = None,
    prompt: options.PromptArguments,
    reader: options.ReaderArguments,
) -> None:
    """Read passages once, so that later questions about them compute only what follows them.

    A run that was stopped continues where it ended. Use the model, its options and the template of the later calls.

    Examples:

      fastreader passages build corpus.jsonl --store passages

      fastreader serve --passage-folder passages
    """
    from fastreader.data.corpora import iter_passages
    from fastreader.models.passage_cache.cache import PassageCache
    from fastreader.scoring.known_passages import cache_passages

    require(corpus.is_file(), f"{corpus}: no such file")
    texts = prompt.texts()
    cache = PassageCache(1, store, max_folder_bytes=int(max_gb * _GB), stored=stored.value)
    passages = islice(iter_passages(corpus), limit)
    left_out = cache_passages(reader.load(), passages, cache, template=texts, max_batch_tokens=prompt.max_batch_tokens)
    info = cache.info()
    say(f"{store}: read {info.misses:,} passages, {info.hits:,} were there")
    gone = 0 if cache.entries.folder is None else cache.entries.folder.evicted
    if gone:
        say(f"{gone:,} files, of the least recently used, left for others: --max-gb {max_gb:g} does not hold all")
    if left_out:
        say(f"{left_out:,} passages without text, or longer than the model's context, were left out")


@app.command("info")
def passages_info(
    store: StoreArgument,
    *,
    format: Annotated[options.Format, typer.Option(help="Format on standard output.")] = options.Format.table,
) -> None:
    """Show what a folder holds of each reader: passages and headers, size, last use."""
    from rich.table import Table

    from fastreader.cli.screen import Text

    found = [each for folder in _folders(store) for each in folder.readers()]
    if format is not options.Format.table:
        rows = [each.to_dict() for each in found]
        typer.echo("\n".join(map(json.dumps, rows)) if format is options.Format.jsonl else json.dumps(rows, indent=1))
        return
    table = Table("reader", "precision", "products", "stored", header_style="bold")
    for name in ("entries", "MB", "last used"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in found:
        about = [Text(str(each.about.get(key, ""))) for key in ("name", "precision", "products", "stored")]
        used = datetime.fromtimestamp(each.last_used).isoformat(" ", "minutes")
        table.add_row(*about, f"{each.entries:,}", f"{each.nbytes / _MB:,.1f}", used)
    Screen().print(table)


@app.command("prune")
def passages_prune(
    store: StoreArgument,
    *,
    max_gb: Annotated[
        float | None, typer.Option(help="Remove the least recently used beyond this.", min=0.0, show_default=False)
    ] = None,
    unused_days: Annotated[
        float | None, typer.Option(help="Remove what was not used for N days.", min=0.0, show_default=False)
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="Remove all but this reader's, by the name in `info`.", show_default=False)
    ] = None,
) -> None:
    """Remove files from a folder, which processes may be using: what is gone is read again.

    A server with API keys has a folder for each key, and a limit holds for each.

    Examples:

      fastreader passages prune passages --max-gb 4

      fastreader passages prune passages --unused-days 30 --keep smollm2-135m
    """
    folders = _folders(store)
    wanted = max_gb is not None or unused_days is not None or keep is not None
    require(wanted, "expected --max-gb, --unused-days or --keep; fastreader passages info shows what there is")
    names = sorted({str(each.about.get("name")) for folder in folders for each in folder.readers()})
    require(keep is None or keep in names, f"--keep: expected one of {', '.join(names) or 'no readers'}, got {keep!r}")
    most = None if max_gb is None else int(max_gb * _GB)
    unused_for = None if unused_days is None else unused_days * _DAY
    removed = sum(folder.prune(max_bytes=most, unused_for=unused_for, keep=keep) for folder in folders)
    say(f"{store}: removed {removed:,} files")


def _folders(store: Path) -> list[PassageFolder]:
    """Return a folder of passages, and those in it that a server with API keys made, one for each."""
    from fastreader.models.passage_cache.folder import MARK, PassageFolder

    found = [mark.parent for mark in (store / MARK, *sorted(store.glob(f"*/{MARK}"))) if mark.is_file()]
    require(bool(found), f"{store}: expected a folder of passages, with {MARK}")
    return [PassageFolder(each, max_bytes=2**62) for each in found]
