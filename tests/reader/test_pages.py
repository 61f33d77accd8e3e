"""README and pages of the documentation: their Python runs as it stands, block after block."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.support import shorter_questions

pytestmark = pytest.mark.usefixtures("loaded_once")
ROOT = Path(__file__).parents[2]
SHOWN = {
    "README.md": "PermutationScores(2 orderings",
    "docs/attribution.md": "Attribution of 'Charles Darwin' to 3 passages; 8 subsets",
    "docs/conflicts.md": "Conflicts(3 passages x 2 candidates",
    "docs/generation.md": "tokens were not read again",
    "docs/integrations.md": "{RR: 1.0}",
    "docs/passage-cache.md": "tokens computed,",
    "docs/rerank.md": "The Nile is in Cairo.",
    "docs/sure.md": "SureResult('Which river is in Cairo?'",
}
ELSEWHERE = {"eor.md", "moi.md", "moi-baselines.md", "moi-distillation.md", "noise.md"}  # tests of the methods


@pytest.mark.parametrize("name", SHOWN)
def test_page(name, packaged_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shorter_questions(Path("questions.jsonl"), limit=2)
    text = (ROOT / name).read_text(encoding="utf-8")
    names: dict[str, object] = {}
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert blocks
    for block in blocks:
        before = text[: block.start()].count("\n") + 1
        exec(compile("\n" * before + block.group(1), name, "exec"), names)
    assert SHOWN[name] in capsys.readouterr().out


def test_no_page_is_forgotten():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    with_python = {page.name for page in pages if "```python" in page.read_text(encoding="utf-8")}
    assert with_python == {Path(name).name for name in SHOWN} | ELSEWHERE
