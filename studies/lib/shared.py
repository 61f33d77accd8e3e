"""Pieces that the study scripts share: parser, fingerprint of a data file, logs that may be compressed, intervals."""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fastreader.data.files import replacing, write_json, write_text
from fastreader.data.fingerprints import file_digest
from fastreader.data.result_log import iter_results


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows a script's docstring as it is written."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def moi_parser(description: str | None, questions: int) -> argparse.ArgumentParser:
    """Return a parser with the arguments of the MoI study and its analyses. `questions` is a default."""
    parser = make_parser(description)
    parser.add_argument("data", type=Path, help="questions with ranked passages, one flagged as gold, and answers")
    parser.add_argument("--output", type=Path, required=True, help="folder of the run")
    parser.add_argument("--passages", type=int, default=5, help="N: read the first N passages of each question")
    parser.add_argument("--questions", type=int, default=questions)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precision", default="fast")
    parser.add_argument("--max-new-tokens", type=int, default=24)
    parser.add_argument("--max-batch-tokens", type=int, help="at most this number of tokens in one pass")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", action="store_true", help="only write the report of the existing rows")
    return parser


def fingerprint(path: Path) -> str:
    """Return 16 digits that distinguish data files. Settings of a run hold them."""
    return file_digest(path)[:16]


def packed(log: Path) -> Path:
    """Return the path of a log's compressed form."""
    return log.with_name(f"{log.name}.gz")


def rows_of(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the results of a log. Without the plain file, read its compressed form."""
    if log.exists() or not packed(log).exists():
        yield from iter_results(log)
        return
    with gzip.open(packed(log), "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def unpack(log: Path) -> Path:
    """Decompress a log of which only the compressed form exists, so that results can be appended. Return its path."""
    if packed(log).exists() and not log.exists():
        with gzip.open(packed(log), "rt", encoding="utf-8", newline="") as lines, replacing(log) as plain:
            shutil.copyfileobj(lines, plain)
        print(f"{log}: unpacked from {packed(log).name}; results are appended to the plain file", file=sys.stderr)
    return log


def write_both(stem: Path, report: dict[str, Any], text: str) -> None:
    """Write a report as STEM.json and STEM.md, and print the latter's path."""
    write_json(stem.with_suffix(".json"), report)
    write_text(stem.with_suffix(".md"), text)
    print(stem.with_suffix(".md"))


def table(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in (columns, *rows)]
    return [lines[0], "|" + "-|" * len(columns), *lines[1:]]


def cell(value: dict[str, Any] | None, digits: int) -> str:
    """Return "estimate [low, high]", or "" for None."""
    if value is None:
        return ""
    return f"{value['estimate']:.{digits}f} [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"


def percent(value: dict[str, float | None], sign: str = "") -> str:
    """Return "estimate [low, high]" in percent, or "-" if one of them is undefined."""
    values = [value[k] for k in ("estimate", "low", "high")]
    if any(v is None for v in values):
        return "-"
    return "{0:{3}.1f} [{1:{3}.1f}, {2:{3}.1f}]".format(*(100 * v for v in values if v is not None), sign)
