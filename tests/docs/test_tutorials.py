"""The tutorials run as they stand: Python and fastreader commands, in their order, in a clone's root."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from helpers.support import shorter_questions
from typer.testing import CliRunner

from fastreader.cli import app

pytestmark = pytest.mark.usefixtures("loaded_once")

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
@pytest.mark.long(keep=1)
def test_tutorial(page, packaged_folder, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shorter_questions(tmp_path / "examples" / "questions.jsonl")
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    ran = 0
    for block in BLOCK.finditer(text):
        kind, code = block.groups()
        line = text[: block.start()].count("\n") + 1
        if kind == "python":
            exec(compile("\n" * line + code, str(page), "exec"), names)
            ran += 1
        elif kind == "sh":
            for command in code.strip().splitlines():
                program, *arguments = shlex.split(command)
                assert program == "fastreader", f"{page}:{line}: {command}"
                done = CliRunner().invoke(app, arguments)
                assert done.exit_code == 0, f"{page}:{line}: {command}\n{done.output}{done.exception!r}"
                ran += 1
    assert ran > 0


def test_each_method_has_one():
    assert {page.stem for page in TUTORIALS} == {"moi", "sure", "eor", "noise", "study"}
