"""The examples of docs/eor.md run."""

import json
import re
import shlex
import sys
from pathlib import Path
from unittest import mock

import pytest
from eor_cases import WEB, WIKI, passage_file

from fastreader import cli
from fastreader.eor import Voter

pytestmark = pytest.mark.usefixtures("loaded_once")

PAGE = Path(__file__).parents[2] / "docs" / "eor.md"


def test_examples_run(packaged_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    assert names["vote"].winner is not None and len(names["answers"].texts) == 4
    assert names["voter"].score(names["texts"], names["right"]) >= 2 / 3
    assert (tmp_path / "voter.json").exists()


def test_commands_run(packaged_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    passage_file(tmp_path / "web.jsonl", [(i, t, " ".join(x.split()[:20])) for i, t, x in WEB])
    passage_file(tmp_path / "wiki.jsonl", WIKI)
    (tmp_path / "questions.jsonl").write_text('{"question": "Which river is in Cairo?", "answers": ["Nile"]}\n')
    *_, block = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)  # the first one indexes a corpus
    commands = [shlex.split(line) for line in block.splitlines()]
    assert [command[1] for command in commands] == ["eor", "vote", "vote"]
    for command in commands:
        capsys.readouterr()
        with mock.patch.object(sys, "argv", command):
            try:
                cli.main()
            except SystemExit as stop:
                assert not stop.code, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["retrievers"] == ["SE@2&Wiki@5", "PK"]
    assert Voter.load(tmp_path / "voter.json").retrievers_ == ["SE@2&Wiki@5", "PK"]
