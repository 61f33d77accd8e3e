"""Find phrases in code and docs that read translated, and commit titles that do not follow the form.

    python tools/english.py              docstrings, comments, messages and pages of the repository
    python tools/english.py --titles 20  also the last 20 commit titles

The words come from the house rules in CONTRIBUTING.md. A line that must contain one of them, such as a quotation, ends
with the comment ``english: ok``. Strings in tests are data, so only comments and docstrings are checked there.
"""

from __future__ import annotations

import argparse
import ast
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
METAPHORS = {
    "those of": "repeat the noun",
    "of its own": 'write "its own" before the noun, or "separate"',
    "of their own": 'write "their own" before the noun, or "separate"',
    "lies": "use is, or is stored",
    "lie": "use are, or are stored",
    "as for `": "say what the argument is",
    "at hand": "use available",
    "in turn": "use alternating, or one after another",
    "beside": "use next to, compared with, or besides",
    "company": "say what else is in the pass",
    "door": "name the function",
    "tower": "use encoder",
    "towers": "use encoders",
    "strip": "use block of rows, or remove",
    "strips": "use blocks of rows, or removes",
    "silence": "use suppress",
    "silences": "use suppresses",
}
PROPER = {"tower", "towers", "company", "door"}  # capitalised, they are parts of names
STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}  # f-strings since Python 3.12
FOLDERS = (
    "src",
    "tests",
    "benchmarks",
    "studies",
    "tools",
    "examples",
    "docs",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)
SUMMARY_END = re.compile(r"\.(?=\s|$)")
TITLE = re.compile(r"[a-zA-Z0-9_./, -]+: \S.*")
LONGEST_TITLE = 72


def pattern(words: dict[str, str]) -> re.Pattern[str]:
    """Compile a pattern that matches each word as it is and, unless it is then a name, capitalised."""
    forms = {form for word in words for form in (word, *([] if word in PROPER else [word.capitalize()]))}
    alternatives = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
    return re.compile(rf"(?<![\w.])({alternatives})(?:(?<=`)|(?![\w(]))")


PATTERN, METAPHOR = pattern(WORDS), pattern(METAPHORS)


def prose(file: Path, data: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of what a person reads: comments and strings of code, all of a page.

    Args:
        file: a file of the repository.
        data: True leaves out strings that are not docstrings.
    """
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    before = tokenize.NEWLINE
    starts = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        string = token.type in STRINGS and (not data or before in starts)
        if token.type == tokenize.COMMENT or string:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before = token.type


def summaries(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of the first sentence of each docstring of a Python file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, SUMMARY_END.split(text.partition("\n\n")[0], maxsplit=1)[0]


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
        whole = file.read_text(encoding="utf-8")
        lines = whole.splitlines()
        suspect = PATTERN.search(whole) or METAPHOR.search(whole)  # in most files not even in the code
        for number, text in prose(file, data=name.startswith("tests")) if suspect else ():
            if "english: ok" in lines[number - 1]:
                continue
            for words, expression in ((WORDS, PATTERN), (METAPHORS, METAPHOR)):
                matches = expression.finditer(text)
                found += [f"{name}:{number}: {match[0]!r}: {words[match[0].lower()]}" for match in matches]
        if file.suffix == ".py" and ";" in whole:
            found += [f"{name}:{at}: a summary line has no semicolon" for at, text in summaries(file) if ";" in text]
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
