"""The layout holds: no import circles, few root entries, names that exist, torch only where a reader is needed."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))

import english  # noqa: E402
import house  # noqa: E402

from fastreader.errors import MissingExtraError  # noqa: E402

MODULES = house.files_of_modules(ROOT / "src")
FRAMEWORKS = {f"fastreader.integrations.{name}" for name in ("dspy", "pyterrier")}  # of the extra `frameworks`
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITHOUT_TORCH = [
    "fastreader", "fastreader.cli", "fastreader.core.checks", "fastreader.core.protocol", "fastreader.core.tree",
    "fastreader.data", "fastreader.eor", "fastreader.errors", "fastreader.moi", "fastreader.moi.solve.joint",
    "fastreader.noise", "fastreader.permutations", "fastreader.reader.programs.requests",
    "fastreader.reader.prompts.template", "fastreader.scoring.results", "fastreader.statistics", "fastreader.sure",
]  # fmt: skip


def modules(package="fastreader"):
    return sorted(name for name in MODULES if not name.endswith("__main__"))


def test_the_structure_keeps_its_bars():
    figures, notes = house.structure(ROOT / "src")
    assert {name: value for name, value in figures.items() if value > house.BARS[name]} == {}, notes


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, [["a", "b"]]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"e"}, "e": {"d"}}, [["a", "b", "c"], ["d", "e"]]),
    ],
)
def test_circles_are_found(graph, found):
    assert sorted(house.circles(graph)) == found


def test_hand_written_checks_are_counted(tmp_path):
    (tmp_path / "fastreader").mkdir()
    (tmp_path / "fastreader" / "a.py").write_text(
        "def check_it(x):\n    pass\n\ndef f(x):\n    if x:\n        raise InputError('x')\n    return x\n"
    )
    assert house.check_lines(tmp_path) == 4


@pytest.mark.parametrize("name", modules())
def test_public_names_exist_and_examples_run(name):
    try:
        module = importlib.import_module(name)
    except MissingExtraError as error:
        if name not in FRAMEWORKS:
            raise
        pytest.skip(f"{error}, or run make test-integrations")
    for public in getattr(module, "__all__", []):
        assert hasattr(module, public), f"{name}.{public}"
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_import_paths_on_pages_exist(page):
    text = page.read_text(encoding="utf-8")
    paths = set(re.findall(r"\bfastreader(?:\.[A-Za-z_]\w*)+", text))
    paths |= {
        f"{module}.{name.split(' as ')[0].strip()}"
        for module, names in re.findall(r"^ *from (fastreader[\w.]*) import ([\w, ]+)$", text, re.MULTILINE)
        for name in names.split(",")
    }
    for path in paths - {"fastreader.egg"}:
        resolve(path)


def resolve(path):
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except MissingExtraError:
            if not any(".".join(parts[:end]) in FRAMEWORKS for end in range(count + 1)):
                raise
            return None  # the module is there, and what it needs is in make test-integrations
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            value = getattr(value, name)
        return value
    raise AssertionError(path)


def test_modules_without_a_reader_import_no_torch():
    code = f"import sys, {', '.join(WITHOUT_TORCH)}; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_linter_of_english_finds_its_words(tmp_path):
    """`make lint` runs it over all pages and code."""
    assert english.PATTERN.search(" ".join(["it", "is", "said"])) and not english.PATTERN.search("as it says")
    assert english.METAPHOR.search("As for `x`.") and english.METAPHOR.search("a block " + "beside the other")
    assert not english.METAPHOR.search("x.strip() of the Eiffel Tower, besides")
    page = tmp_path / "page.py"
    page.write_text('"""Return x; raise\n\nit."""\ny = "text"  # why\n')
    assert list(english.summaries(page)) == [(1, "Return x; raise")]
    assert [text for _, text in english.prose(page, data=True)] == ['"""Return x; raise', "", 'it."""', "# why"]


def test_one_version():
    import fastreader

    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^version: {re.escape(fastreader.__version__)}$", citation, re.MULTILINE)
    assert fastreader.__version__ in (ROOT / "CHANGELOG.md").read_text()
