"""The pages on generation and SuRe: their Python runs as it stands, block after block."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import QUESTIONS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["generation", "sure"])
def test_page(name, packaged_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines(keepends=True)
    Path("questions.jsonl").write_text("".join(lines[:2]), encoding="utf-8")
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert len(blocks) == 2
    for block in blocks:
        before = text[: block.start()].count("\n") + 1
        exec(compile("\n" * before + block.group(1), f"{name}.md", "exec"), names)
    shown = capsys.readouterr().out
    assert {"generation": "tokens were not read again", "sure": "SureResult('Which river is in Cairo?'"}[name] in shown
