"""Find phrases in code and docs that read translated, and commit titles that do not follow the form.

    python tools/english.py              docstrings, comments, messages and pages of the repository
    python tools/english.py --titles 20  also the last 20 commit titles

The words come from the house rules in CONTRIBUTING.md. A line that must hold one of them, such as a quotation, ends
with the comment ``english: ok``.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS = {
    "told": "use raise, report, pass or show",
    "is said": "use report, state or name",
    "are said": "use report, state or name",
    "so many": 'write "number of" or "at most N"',
    "the first so": 'write "the first N"',
    "goes on": "use continue or resume",
    "go on": "use continue or resume",
    "are none": 'say what is missing: "if there is no ..."',
    "is none": 'say what is wrong: "is not a ..."',
    "anew": "use again",
    "takes none": 'write "accepts no ..."',
    "no use for": 'write "does not use"',
    "stands for": "use means, represents or replaces",
    "in place of": "use instead of",
    "what of": "name the noun",
    "as it is told": "name the noun",
    "at the most": "use at most",
    "is refused": "use is rejected, or raises",
    "are refused": "use are rejected, or raise",
    "is asked": "name who calls what",
    "read anew": "use read again",
}
PATTERN = re.compile(rf"\b({'|'.join(re.escape(form) for word in WORDS for form in (word, word.capitalize()))})\b")
FOLDERS = ("src", "tests", "benchmarks", "studies", "tools", "examples", "docs", "README.md", "CONTRIBUTING.md")
TITLE = re.compile(r"[a-zA-Z0-9_./ -]+: \S.*")
LONGEST_TITLE = 72


def prose(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of what a person reads: comments and strings of code, all of a page."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def findings(folders: tuple[str, ...] = FOLDERS) -> list[str]:
    """Return one line for each phrase found: where it is, and what to write."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = []
    for name in listed:
        file = ROOT / name
        skipped = "/results/" in name or file == Path(__file__) or not file.exists()
        if file.suffix not in (".py", ".md") or skipped:
            continue
        lines = file.read_text(encoding="utf-8").splitlines()
        for number, text in prose(file):
            if "english: ok" in lines[number - 1]:
                continue
            matches = PATTERN.finditer(text)
            found += [f"{name}:{number}: {match[0]!r}: {WORDS[match[0].lower()]}" for match in matches]
    return found


def bad_titles(count: int) -> list[str]:
    """Return the last `count` commit titles that are not ``area: imperative`` or are too long."""
    log = subprocess.run(
        ["git", "log", f"-{count}", "--format=%s"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [title for title in log if len(title) > LONGEST_TITLE or not TITLE.fullmatch(title)]


def main() -> None:
    """Print what was found; exit with 1 if anything was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--titles", type=int, default=0, help="Also check this many commit titles.")
    arguments = parser.parse_args()
    found = findings() + [f"commit title: {title}" for title in bad_titles(arguments.titles)]
    print("\n".join(found))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
