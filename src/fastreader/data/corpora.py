"""Read corpora: passages that belong to no question, one by one, so that a corpus need not fit in memory."""

from __future__ import annotations

import itertools
import logging
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, located, random_generator, require
from fastreader.data.containers import PathLike, is_tsv, lines, parse_json, table_row, tsv_rows
from fastreader.data.rows import DocumentRow, check
from fastreader.data.types import Passage

Item = TypeVar("Item")
logger = logging.getLogger(__name__)


@checked
def iter_passages(path: PathLike) -> Iterator[Passage]:
    """Read the passages of a corpus one by one.

    - JSON lines: ``text`` (or ``contents``, whose first line is the title if there is no ``title``), ``title``, ``id``
      (or ``_id``, ``docid``); others are kept in `metadata`.
    - A table separated by tabs, named .tsv: with a header that names ``text``, as DPR's Wikipedia (``id, text,
      title``), or of two columns without a header, an identifier and a text, as MS MARCO's collection.

    A passage without text gets its title as its text.

    Args:
        path: the file, plain or gzipped.

    Raises:
        InputError: if a row is invalid or has no text, naming the file and the line; or if the file cannot be read or
            holds no passage.
    """
    for place, row in _rows(path):
        yield _passage(place, row)


@checked
def load_passages(path: PathLike) -> list[Passage]:
    """Read all passages of a corpus, with the formats and errors of `iter_passages`."""
    return list(iter_passages(path))


@checked
def sample_passages(path: PathLike, count: int, *, seed: int = 0) -> list[Passage]:
    """Draw passages of a corpus without replacement, each equally likely, in one pass and the memory of the sample.

    The same file, count and seed give the same passages. Rows that are not drawn are not checked.

    Args:
        path: a file for `iter_passages`.
        count: number of passages to draw.
        seed: seed of the draw.

    Returns:
        The passages in their order in the file; all of them if there are at most `count`.

    Raises:
        InputError: as `iter_passages`, for rows that are drawn; or if `count` < 1.
    """
    check_int("count", count)
    drawn, total = reservoir(_rows(path), min(count, sys.maxsize), random_generator(seed))
    if total > count:
        logger.info("%s: drew %s of %s passages (seed %s)", path, f"{count:,}", f"{total:,}", seed)
    return [_passage(place, row) for place, row in drawn]


def reservoir(items: Iterable[Item], count: int, generator: np.random.Generator) -> tuple[list[Item], int]:
    """Return `count` items drawn without replacement, in their order, and the number of items.

    Algorithm L of Li (1994), "Reservoir-sampling algorithms of time complexity O(n(1+log(N/n)))".
    """
    source = enumerate(items)
    kept = [*itertools.islice(source, count)]
    following, weight = count - 1, 1.0
    total = len(kept)
    for place, item in source:
        total = place + 1
        while following < place:  # the place of the next item to keep
            weight *= math.exp(math.log(1 - generator.random()) / count)
            following += 1 + int(math.log(1 - generator.random()) / math.log1p(-weight))
        if place == following:
            kept[int(generator.integers(count))] = (place, item)
    return [item for _, item in sorted(kept, key=lambda pair: pair[0])], total


def _rows(path: PathLike) -> Iterator[tuple[str, bytes | dict[str, str]]]:
    """Yield rows that are not decoded, with their places."""
    empty = True
    for place, row in _table(Path(path)) if is_tsv(Path(path)) else _json_lines(path):
        empty = False
        yield place, row
    require(not empty, f"{path}: expected at least one passage, got an empty file")


def _json_lines(path: PathLike) -> Iterator[tuple[str, bytes]]:
    return ((f"{path}, line {number}", line) for number, line in lines(path) if line.strip())


def _table(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    first, header = next(tsv_rows(path, quoted=False), ("", []))
    named = "text" in header or "contents" in header
    require(named or len(header) in (0, 2), f"{first}: expected a header line with text, got {header[:8]!r}")
    rows = tsv_rows(path, quoted=named)
    for place, cells in itertools.islice(rows, int(named), None):
        yield place, table_row(place, header if named else ["id", "text"], cells)


def _passage(place: str, row: bytes | dict[str, str]) -> Passage:
    with located(place):
        return check(DocumentRow, parse_json(row) if isinstance(row, bytes) else row).passage()
