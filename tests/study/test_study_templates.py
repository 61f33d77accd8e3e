"""Templates in a paper's shape, from files: every prompt of a study has their words, in the class's order."""

from pathlib import Path

import pytest
from helpers.scripted import ScriptedReader

from fastreader.errors import InputError
from fastreader.reader.prompts.template import Template
from fastreader.study import RunFolder
from studies import run, study_of, write

FOLDER = Path(__file__).parents[2] / "examples" / "templates"


def prompts(tmp_path, methods, **tables):
    reader = ScriptedReader(write)
    study = study_of(tmp_path, methods, count=1, **tables)
    assert run(study, tmp_path / "run", reader).failed == 0
    return study, reader.prompts + [context for context, _ in reader.requests]


@pytest.mark.parametrize(
    ("methods", "table", "key", "words"),
    [
        (
            ["sure"],
            "sure",
            "template",
            ["answer the question after them with two candidates", "[True, False]"],
        ),
        (["noise:gold"], "noise", "template", ["or reply NO-RES if it is not there", "Document [1](Title: T00)"]),
        (
            ["eor"],
            "eor",
            "texts",
            ["These paragraphs are true:", "with one or a few words: Question 0?"],
        ),
    ],
)
def test_words_of_a_file_are_in_the_prompts(tmp_path, methods, table, key, words):
    more = {"retrievers": ["R@1", "R", "ReFree"]} if table == "eor" else {}
    _, read = prompts(tmp_path, methods, **{table: {key: str(FOLDER / f"{table}.toml"), **more}})
    for text in words:
        assert any(text in prompt for prompt in read), text


def test_a_run_keeps_the_words_even_if_the_file_changes(tmp_path):
    file = tmp_path / "words.toml"
    file.write_text('validity_question = "Ask: {question}"')
    study, read = prompts(tmp_path, [{"method": "sure", "template": str(file)}])
    assert any("Ask: Question 0?" in prompt for prompt in read)
    file.write_text("")
    assert RunFolder(tmp_path / "run").study() == study


@pytest.mark.parametrize("table", ["sure", "noise"])
def test_a_wrong_text_is_named_before_anything_runs(tmp_path, table):
    file = tmp_path / "words.toml"
    file.write_text('documents_lead = "x"')
    method = {"sure": "sure", "noise": "noise:gold"}[table]
    with pytest.raises(InputError, match="documents_lead"):
        prompts(tmp_path, [method], **{table: {"template": str(file)}})
    with pytest.raises(InputError, match=f"{table}.template: .*no such file"):
        study_of(tmp_path, [method], **{table: {"template": "nowhere.toml"}})


@pytest.mark.parametrize("name", ["moi", "citations"])
def test_templates_of_readings_load(name):
    template = Template.load(FOLDER / f"{name}.toml")
    assert "{number}" in template.passage and template.digest() != Template().digest()
