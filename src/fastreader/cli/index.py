"""fastreader index."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from fastreader.cli.screen import say
from fastreader.core.checks import require


def quiet_bm25s() -> None:
    """Import bm25s, if it is installed, and set its logger to warnings: importing it sets DEBUG."""
    with suppress(ImportError):  # whoever needs it names the extra
        import bm25s  # noqa: F401
    logging.getLogger("bm25s").setLevel(logging.WARNING)


def index(
    corpus: Annotated[
        Path, typer.Argument(help="Passages: JSON lines, or a table separated by tabs (.tsv), plain or gzipped.")
    ],
    folder: Annotated[Path, typer.Argument(help="Folder of the index.")],
    *,
    language: Annotated[
        str, typer.Option(help="Language of the stop words to remove; '' keeps all words.")
    ] = "english",
    force: Annotated[bool, typer.Option("--force", help="Replace an index in FOLDER.")] = False,
) -> None:
    """Index a corpus for BM25 on disk, which may be larger than memory.

    Examples:

      fastreader index psgs_w100.tsv.gz wiki-index

      fastreader eor questions.jsonl --source Wiki=wiki-index -r Wiki@5 -r ReFree
    """
    from fastreader.eor.index import build_index, index_about

    quiet_bm25s()
    require(corpus.is_file(), f"{corpus}: no such file")
    require(force or not folder.exists(), f"{folder}: exists; --force replaces an index")
    build_index(corpus, folder, language=language, replace=force)
    say(f"indexed {index_about(folder)['passages']:,} passages in {folder}")
