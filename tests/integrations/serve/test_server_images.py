"""The Dockerfile and compose file name what exists. Building an image is left to those who have an engine."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fastreader.cli.commands import app

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "serve"


@pytest.fixture(scope="module")
def steps():
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    return re.findall(r"^([A-Z]+) (.*(?:\\\n.*)*)", text, re.MULTILINE)


def test_copied_paths_and_extras_exist(steps):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    copied = [path for name, rest in steps if name == "COPY" and "--from" not in rest for path in rest.split()[:-1]]
    assert copied and all((ROOT / path).exists() for path in copied)
    installed = re.findall(r"\.\[([a-z,-]+)\]", " ".join(rest for _, rest in steps))
    assert installed and set(installed[0].split(",")) <= set(extras)


def test_the_command_is_one_that_exists(steps):
    (entry,) = [json.loads(rest) for name, rest in steps if name == "ENTRYPOINT"]
    (rest,) = [json.loads(rest) for name, rest in steps if name == "CMD"]
    assert entry[:2] == ["fastreader", "serve"]
    told = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["serve", "--help"]).output
    assert all(word in told for word in [*entry[2:], *rest] if word.startswith("--"))


def test_the_compose_file_uses_the_image_and_a_key():
    service = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["services"]["fastreader"]
    assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert set(service["environment"]) == {"FASTREADER_SERVE_KEY"} and service["ports"] == ["127.0.0.1:8000:8000"]
    told = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["serve", "--help"]).output
    assert "FASTREADER_SERVE_KEY" in told
