"""dry_run: its tokens are a run's own, methods that answer nothing, and the command line."""

import json
import subprocess
import sys
import warnings
from dataclasses import replace
from unittest import mock

import pytest
from helpers.support import PACKAGED, QUESTIONS, byte_tokenizer, shorter_questions, tiny_llama
from typer.testing import CliRunner

from fastreader import Template, cli
from fastreader.moi import PositionBias
from fastreader.moi.calibration.store import SHIPPED, keep
from fastreader.reader.prompts.encoder import TextEncoder
from fastreader.reader.reader import Reader
from fastreader.study import RunFolder, Study, dry_run, run_study
from fastreader.study.dry_reader import DryReader

# Those whose reader is not the study's, and those that read a few-shot file or need a calibration.
METHODS = [
    *("base", "closed_book", "rerank", "rerank:yes_no", "moi", "moi:paper", "arrange", "self-consistency", "marginal"),
    *("order:oracle", "order:random", "order:qg-matched", "order:bayes-saliency-plus", "order:pairwise"),
    *("order:first-token", "order:rankgpt", "order:permutation-self-consistency", "sure", "sure:summaries"),
    *("sure:multiple_choice", "sure:chain_of_thought", "sure:selection_inference", "sure:top1_reader", "sure:rerank"),
    *("sure:oracle", "eor", "noise:gold", "noise:closed_book", "noise:random:2:near", "noise:retrieved:2+random:1"),
]
# Prompts that hold passages which scores choose: made-up scores choose others, of another length.
CHOSEN = {"order:bayes-saliency-plus", "sure:selection_inference", "sure:top1_reader"}


@pytest.fixture(scope="module")
def counted(tmp_path_factory, tiny_reader):
    """The rows of a study of every method with a random reader, and the costs of its dry run."""
    folder = tmp_path_factory.mktemp("counted")
    file = shorter_questions(folder / "q.jsonl", words=8, limit=2)
    bias = folder / "bias.json"
    shipped = PositionBias.load(str(next(SHIPPED.glob("*-n3.json"))))
    replace(shipped, reader=tiny_reader.describe()).save(bias)
    study = Study.of({
        "data": str(file),
        "methods": METHODS,
        "readers": ["tiny"],
        "passages": 3,
        "max_new_tokens": 6,
        "batch_size": 2,
        "moi": {"bias": str(bias)},
        "sure": {"max_summary_tokens": 9, "max_candidate_tokens": 40, "max_reasoning_tokens": 9},
        "eor": {"retrievers": ["R@1", "R@2", "R", "ReFree"]},
    })  # fmt: skip
    dry = DryReader(TextEncoder(byte_tokenizer(chat=True)), tiny_reader.describe(), tiny_reader.max_length)
    with mock.patch.object(Reader, "load", side_effect=AssertionError("weights")):
        costs = {cost.method: cost for cost in dry_run(study, load=lambda name: dry)}
    run_study(study, folder / "run", load=lambda name: tiny_reader, progress=False)
    return costs, RunFolder(folder / "run").rows()


@pytest.mark.parametrize("method", METHODS)
def test_tokens_are_those_of_the_run(counted, method):
    costs, rows = counted
    cost, own = costs[method], [row for row in rows if row["method"] == method]
    assert (cost.answers, cost.left_out, cost.failed) == tuple(
        sum(row[key] is not None for row in own) for key in ("answer", "left_out", "error")
    )
    spent = {key: sum(row["tokens"][key] for row in own) for key in own[0]["tokens"]}
    # a random model's bytes are no characters, and what a reply holds instead has more tokens in the next prompt
    ranged = cost.total_tokens[0] < cost.total_tokens[1]
    slack = 0.03 if method in CHOSEN or ranged else 0
    for key, bounds in (("total_tokens", cost.total_tokens), ("computed_tokens", cost.computed_tokens)):
        read = spent[key] - spent["new_tokens"]
        assert bounds[0] * (1 - slack) <= read <= bounds[1] * (1 + slack), key
    assert cost.new_tokens[0] <= spent["new_tokens"] <= cost.new_tokens[1]


def test_only_methods_whose_prompts_hold_replies_have_bounds(counted):
    costs, _ = counted
    ranged = {name for name, cost in costs.items() if cost.total_tokens[0] < cost.total_tokens[1]}
    assert {"marginal", "sure", "sure:chain_of_thought"} <= ranged
    assert not ranged & {"base", "moi", "moi:paper", "order:qg", "self-consistency", "sure:base", "noise:gold"}


def test_a_reader_from_files_writes_the_same_prompts(model):
    reader = Reader.load(model, check="off")
    with mock.patch.object(Reader, "load", side_effect=AssertionError("weights")):
        dry = DryReader.load(model)
    pieces = ["Read this.\n", "Passage.", " Question?"]
    assert dry.prompt(pieces, lead="A:") == reader.prompt(pieces, lead="A:")
    assert (dry.max_length, dry.name) == (reader.max_length, reader.name)
    own = tiny_llama()
    layers = sum(each.numel() for name, each in own.named_parameters() if "embed" not in name and "head" not in name)
    assert dry.speed is None or dry.speed.flops_per_token == 2 * layers  # None without the extension


def test_a_packaged_reader_imports_no_modules_of_models(packaged_folder):
    """They take about two seconds of the five in which a dry run has to end."""
    program = (
        "import sys\n"
        "from fastreader.study.dry_reader import DryReader\n"
        "print(DryReader.load(sys.argv[1]).max_length)\n"
        "print({'torch._dynamo', 'transformers.activations'} & set(sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, PACKAGED], capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout.splitlines() == ["8192", "set()"]


def study_with(folder, model, methods, words=8, **more):
    file = shorter_questions(folder / "q.jsonl", words=words, limit=4)
    return Study.of({"data": str(file), "methods": methods, "readers": [model], "max_new_tokens": 2, **more})


def test_methods_that_cannot_answer_are_named_before_the_run(model, tmp_path):
    methods = ["base", {"method": "moi", "permutations": "random"}, "sure:sure_few_shot", "order:qg-matched"]
    study = study_with(tmp_path, model, methods, passages=2)
    with (
        mock.patch("fastreader.study.run.run_group", side_effect=KeyboardInterrupt),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            run_study(study, tmp_path / "run", progress=False)
    said = [str(each.message) for each in caught if "every question" in str(each.message)]
    assert len(said) == 3
    assert "'moi' fails for every question" in said[0] and "whole orderings need a calibration" in said[0]
    assert "'sure:sure_few_shot' leaves out every question: sure_few_shot needs shots" in said[1]
    assert "'order:qg-matched' fails" in said[2] and "needs a calibration" in said[2]


def test_calibrations_of_a_readers_weights_are_found_by_its_name(model, tmp_path, monkeypatch):
    """Their files name the revision, which a dry run does not know."""
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path / "cache"))
    shipped = PositionBias.load(str(next(SHIPPED.glob("*-n3.json"))))
    measured = replace(shipped, reader=Reader.load(model, check="off").describe(), template=Template().digest())
    assert measured.reader["revision"]
    kept = keep(measured)
    methods = ["moi", "order:qg-matched", {"method": "moi", "name": "given", "bias": str(kept)}]
    study = study_with(tmp_path, model, methods, passages=3, limit=2)
    costs = dry_run(study)
    assert [(cost.answers, cost.failed) for cost in costs] == [(2, 0)] * 3
    run = run_study(study, tmp_path / "run", progress=False)
    for cost in costs:
        rows = [row for row in RunFolder(run.folder).rows() if row["method"] == cost.method]
        computed = sum(row["tokens"]["computed_tokens"] for row in rows)
        assert cost.computed_tokens[0] == pytest.approx(computed, rel=0.03), cost.method  # a run shares more


def test_a_context_that_is_too_small_is_named(model, tmp_path):
    costs = dry_run(study_with(tmp_path, model, ["sure:base", "noise:retrieved:6", "closed_book"], 400))
    assert [(cost.answers, cost.failed) for cost in costs] == [(1, 3), (costs[1].answers, 0), (4, 0)]
    assert costs[1].over_long == costs[1].left_out == 4 - costs[1].answers > 0
    assert "the context of" in costs[0].problem and "no room for a reply" in costs[1].problem
    assert costs[0].prompts == (1, 1)


def test_rankings_keep_the_order_for_the_first_bound(model, tmp_path):
    def counted(*retrievers):
        method = {"method": "eor", "retrievers": list(retrievers)}
        return dry_run(study_with(tmp_path, model, [method], passages=4))[0]

    plain, ranked = counted("R@2", "R@3"), counted("R@2", "R@3", "R@RR@2", "R@RR@3")
    scored = 4 * 4  # questions and passages
    assert plain.prompts == (8, 8) and ranked.prompts[0] == 8 + scored < ranked.prompts[1] <= 16 + scored
    assert ranked.computed_tokens[0] < ranked.computed_tokens[1]


def test_a_range_goes_up_where_the_order_at_random_is_shorter(model, tmp_path):
    # the first passage of a question is longer than the others together, so that any other choice is shorter
    long, short = {"title": "A", "text": "river " * 60}, [{"title": f"B{i}", "text": "lake"} for i in range(5)]
    row = {"question": "which is it", "answers": ["lake"], "ctxs": [long, *short]}
    (tmp_path / "q.jsonl").write_text(json.dumps(row) + "\n")
    method = {"method": "eor", "retrievers": ["R@RR@1"]}
    study = Study.of({"data": str(tmp_path / "q.jsonl"), "methods": [method], "readers": [model]})
    [cost] = dry_run(study)
    assert cost.total_tokens[0] < cost.total_tokens[1] and cost.computed_tokens[0] < cost.computed_tokens[1]


def run(*arguments):
    with mock.patch.object(Reader, "load", side_effect=AssertionError("weights")):
        return CliRunner().invoke(cli.app, list(map(str, arguments)))


def test_dry_runs_of_the_commands(model, tmp_path):
    common = ("--dry-run", "--limit", 2)
    done = run(
        "study", "--data", QUESTIONS, "--method", "base", "--method", "order:oracle", "-m", model, "-n", 3, *common
    )
    assert done.exit_code == 0, done.output
    assert "'order:oracle' fails for every question" in done.stderr and "│ base" in done.stdout
    assert "less than 1 s to read the prompts" in " ".join(done.stdout.split()) and not (tmp_path / "run").exists()
    done = run("ask", QUESTIONS, "--method", "base@3", "-m", model, *common)
    assert done.exit_code == 0 and "base@3" in done.stdout
    row = [cell.strip() for cell in next(line for line in done.stdout.splitlines() if "base@3" in line).split("│")]
    costs = dry_run(
        Study.of({"data": str(QUESTIONS), "methods": ["base"], "readers": [model], "passages": 3, "limit": 2})
    )
    assert row[2:7] == ["2", "2", f"{costs[0].total_tokens[0]:,}", f"{costs[0].computed_tokens[0]:,}", "64"]
    passages = tmp_path / "p.jsonl"
    passages.write_text("".join(json.dumps({"text": f"The Nile is a river {i}."}) + "\n" for i in range(5)))
    done = run("eor", QUESTIONS, "--source", f"W={passages}", "-r", "W@2", "-r", "PK", "-m", model, *common)
    assert done.exit_code == 0, done.output
    assert "2-4" in next(line for line in done.stdout.splitlines() if "eor" in line)
