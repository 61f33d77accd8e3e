"""Count the pairs of places in the package that repeat six lines or more.

    python tools/repeats.py                 the pairs, most shared lines first
    python tools/repeats.py --source DIR    another checkout

Runs of lines count as equal if they have the same tokens once names are numbered in their order and strings and
numbers replaced by their kind. Blank lines, comments, docstrings, lone brackets and imports do not count, nor does a
line that only declares a field or a parameter, a run of few tokens, or one in more than eight places. A pair of files
counts once, however many runs it shares.
"""

from __future__ import annotations

import argparse
import ast
import io
import keyword
import sys
import tokenize
from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
import walk

LINES = 6
TOKENS = 26  # a run of fewer is brackets and the like
PLACES = 8  # a run in more places is a convention, such as the head of every command
_SKIPPED = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)

Place = tuple[Path, int]


def shapes(file: Path) -> list[tuple[int, list[str]]]:
    """Return (line number, tokens) of the lines of a file that count."""
    text = file.read_text(encoding="utf-8")
    skipped: set[int] = set()
    for node in walk.nodes(file):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom) or declares(node):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: dict[int, list[str]] = defaultdict(list)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _SKIPPED or token.start[0] in skipped:
            continue
        kinds = {tokenize.NUMBER: "0", tokenize.STRING: "''"}
        is_name = token.type == tokenize.NAME and not keyword.iskeyword(token.string)
        lines[token.start[0]].append(f"@{token.string}" if is_name else kinds.get(token.type, token.string))
    return [(number, parts) for number, parts in sorted(lines.items()) if any(p[-1].isalnum() for p in parts)]


def declares(node: ast.AST) -> bool:
    """Return whether a node is a field or parameter with its type on one line, of any default but a call."""
    if isinstance(node, ast.arg):
        return node.annotation is not None and node.lineno == node.end_lineno
    if not isinstance(node, ast.AnnAssign) or node.lineno != node.end_lineno:
        return False
    return node.value is None or isinstance(node.value, ast.Constant)


def renamed(run: list[list[str]]) -> tuple[str, ...]:
    """Return a run of lines with its names numbered in their order, so that runs equal but for names are equal."""
    numbers: dict[str, str] = {}
    return tuple(
        " ".join(numbers.setdefault(part, str(len(numbers))) if part[0] == "@" else part for part in line)
        for line in run
    )


def repeats(source: Path) -> list[tuple[Place, Place, int]]:
    """Return the pairs of files that repeat a run of lines: both places of the longest run, and its lines."""
    runs: dict[tuple[str, ...], list[Place]] = defaultdict(list)
    files = {file: shapes(file) for file in sorted(source.rglob("*.py"))}
    index = {}
    for file, lines in files.items():
        for at in range(len(lines) - LINES + 1):
            if sum(len(tokens) for _, tokens in lines[at : at + LINES]) < TOKENS:
                continue
            runs[renamed([parts for _, parts in lines[at : at + LINES]])].append((file, at))
            index[file, at] = lines[at][0]
    shared: dict[tuple[Path, Path], Counter[int]] = defaultdict(Counter)
    starts: dict[tuple[Path, Path, int], tuple[int, int]] = {}
    for places in runs.values():
        if not 2 <= len(places) <= PLACES:
            continue
        for (one, at), (other, there) in combinations(places, 2):
            if one == other and abs(at - there) < LINES:
                continue  # a run of equal lines, not two places
            diagonal = there - at
            shared[one, other][diagonal] += 1
            key = (one, other, diagonal)
            starts[key] = min(starts.get(key, (at, there)), (at, there))
    found = []
    for (one, other), diagonals in shared.items():
        diagonal, count = diagonals.most_common(1)[0]
        at, there = starts[one, other, diagonal]
        found.append(((one, index[one, at]), (other, index[other, there]), count + LINES - 1))
    return sorted(found, key=lambda pair: -pair[2])


def main() -> None:
    """Print the pairs and their number."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "src")
    source = parser.parse_args().source
    found = repeats(source)
    for (one, line), (other, there), count in found:
        print(f"{count:4} lines  {one.relative_to(source)}:{line} ~ {other.relative_to(source)}:{there}")
    print(f"{len(found)} pairs")


if __name__ == "__main__":
    main()
