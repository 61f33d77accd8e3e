"""studies/fill_docs.py: it writes a run's table and changes nothing else of the page."""

import importlib.util
import sys
from pathlib import Path

import pytest
from made_up_run import make_run

from fastreader.report import Report

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fill(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "studies"))
    spec = importlib.util.spec_from_file_location("fill_docs", ROOT / "studies" / "fill_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def fill(*arguments):
        monkeypatch.setattr(sys, "argv", ["fill_docs.py", *map(str, arguments)])
        module.main()

    return fill


@pytest.mark.parametrize("name", ["noise.md", "which-method.md"])
def test_the_pages_have_the_two_lines(fill, tmp_path, name):
    make_run(tmp_path / "run", questions=8, methods=["base", "moi"])
    page = tmp_path / name
    page.write_text((ROOT / "docs" / name).read_text(encoding="utf-8"), encoding="utf-8")
    before = page.read_text(encoding="utf-8")
    fill(tmp_path / "run", page)
    once = page.read_text(encoding="utf-8")
    row = {row["method"]: row for row in Report.of(tmp_path / "run").summary}["moi"]
    assert f"| `moi` | 8 | {row['contained']:.3f} [" in once and f"| {row['difference']:+.3f} [" in once
    fill(tmp_path / "run", page)
    assert page.read_text(encoding="utf-8") == once
    assert once.startswith(before[: before.index("<!-- measured -->")])
    assert once.endswith(before[before.index("<!-- /measured -->") :])


def test_a_page_without_the_two_lines(fill, tmp_path):
    (tmp_path / "page.md").write_text("Nothing.")
    with pytest.raises(SystemExit, match="no <!-- measured --> lines"):
        fill(tmp_path / "run", tmp_path / "page.md")
