"""Peers in separate environments: the message without one, the request to one, and the use of an answer.

The peers here are stand-ins for an interpreter that print what a script would.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def interpreter(tmp_path):
    """Make a program that takes python's place: it keeps what it was asked and prints `printed`."""

    def make(printed: str, status: int = 0) -> str:
        path = tmp_path / "python"
        (tmp_path / "printed").write_text(printed)
        path.write_text(
            f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\nenv > {tmp_path}/environment\n'
            f'[ "$1" = -c ] || cat > {tmp_path}/asked\ncat {tmp_path}/printed\nexit {status}\n'
        )
        path.chmod(0o755)
        return str(path)

    return make


def test_a_missing_peer_names_the_commands(script):
    apart = script("apart")
    for name in ("llamacpp", "openvino", "vllm"):
        peer = apart.PEERS[name]
        assert (BENCHMARKS / f"peer_{name}.py").is_file()
        for python in ("/nowhere/python", sys.executable):
            said = apart.missing(name, python)
            assert f"{peer.title} does not run under {python}" in said
            assert f"    python -m venv build/peers/{name}\n" in said
            assert f"    build/peers/{name}/bin/pip install {peer.install}" in said
            assert f"--{name}-python build/peers/{name}/bin/python" in said
    assert "No such file or directory" in apart.missing("llamacpp", "/nowhere/python")
    assert "ModuleNotFoundError" in apart.missing("llamacpp", sys.executable)


def test_a_peer_that_is_there(script, interpreter):
    assert script("apart").missing("openvino", interpreter("")) is None


def test_asking_a_peer(script, interpreter, tmp_path, monkeypatch):
    apart, workloads = script("apart"), script("workloads")
    monkeypatch.setenv("PYTHONPATH", "/ours")
    python = interpreter('a log\n{"seconds": 2, "logprobs": [-1.5, -2.0]}\n[a log that looks odd]\n')
    groups = [workloads.Group([1, 2], [[3], [4, 5]])]
    told = apart.llamacpp(python, Path("x.Q4_1.gguf"), workloads.Workload("w", groups))
    assert told == {"seconds": 2, "logprobs": [-1.5, -2.0]}
    asked = json.loads((tmp_path / "asked").read_text())
    assert asked["groups"] == [{"context": [1, 2], "continuations": [[3], [4, 5]], "scored_from": None}]
    assert asked["file"] == "x.Q4_1.gguf"
    assert asked["threads"] >= 1
    assert (tmp_path / "arguments").read_text().strip() == str(BENCHMARKS / "peer_llamacpp.py")
    assert "PYTHONPATH" not in (tmp_path / "environment").read_text()


def test_no_answer(script):
    with pytest.raises(RuntimeError, match=r"peer_openvino\.py printed no answer"):
        script("apart").answer("openvino", "only logs\n")


def test_files_of_llamacpp(script, tmp_path, monkeypatch):
    gguf_file = script("gguf_file")
    given = tmp_path / "Some-model.q8_0.gguf"
    given.touch()
    assert gguf_file.find("anything", "Q8_0", [given]) == given
    with pytest.raises(FileNotFoundError, match=r"--convert BF16 FILE\.gguf"):
        gguf_file.find("anything", "BF16", [given])
    with pytest.raises(FileNotFoundError, match="no such file"):
        gguf_file.find("anything", "BF16", [tmp_path / "x.BF16.gguf"])

    def extract(model, scratch):
        (scratch / "folder").mkdir()
        file = scratch / "folder" / "unpacked"
        file.write_text(model.wheels[0].version)
        return file

    monkeypatch.setattr(gguf_file, "cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr(gguf_file, "extract", extract)
    for _ in range(2):
        path = gguf_file.find("smollm2-135m", "Q4_1", [])
        assert (path.name, path.read_text()) == ("SmolLM2-135M-Instruct.Q4_1.gguf", "0.1.2")
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    with pytest.raises(FileNotFoundError, match=f"--convert Q8_0 {path}"):
        gguf_file.find("smollm2-135m", "Q8_0", [])


def test_peers_apart_are_asked_for_by_name_only(script):
    side, generation = script("side_by_side"), script("generation")
    assert not any(side.WAYS[way][0] in ("vllm", "llamacpp", "openvino", "harness") for way in side.USUAL)
    assert "transformers, prefix cache, fp32" in side.USUAL
    assert "transformers, padded by 8, fp32" in side.USUAL
    assert not any(generation.WAYS[way][0] == "llamacpp" for way in generation.USUAL)


@pytest.mark.parametrize(
    ("name", "way"),
    [("side_by_side", "llama.cpp, prefix cache, Q4_1"), ("generation", "llama.cpp, Q4_1")],
)
def test_a_run_without_the_peer_stops_at_once(script, monkeypatch, capsys, name, way):
    module = script(name)
    monkeypatch.setattr(module, "run", lambda *_: pytest.fail("it went on"))
    for more, said in ((["--device", "cuda"], "run on the CPU"), ([], "bin/pip install llama-cpp-python")):
        options = ["--llamacpp-python", sys.executable, "--ways", way, *more]
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *options])
        with pytest.raises(SystemExit) as stopped:
            module.main()
        assert stopped.value.code == 2
        assert said in capsys.readouterr().err


def test_options_reach_the_process_of_a_way(script, monkeypatch):
    side = script("side_by_side")
    seen = []

    def run(command, **_):
        seen.append(command)
        return argparse.Namespace(stdout='{"seconds": 1}\n')

    monkeypatch.setattr(side.subprocess, "run", run)
    options = {f"{peer}_python": f"/{peer}" for peer in side.apart.PEERS}
    arguments = argparse.Namespace(
        model="m",
        share=0.5,
        device="cpu",
        tokens=None,
        gguf=[Path("a"), Path("b")],
        openvino_model=Path("c"),
        **options,
    )
    side.spawn(arguments, "w1", ("llamacpp", "Q8_0"))
    text = " ".join(seen[0])
    assert "--llamacpp-python /llamacpp" in text
    assert text.endswith("--gguf a b --openvino-model c --child w1 llamacpp Q8_0")


def test_what_is_made_of_answers(script):
    side = script("side_by_side")
    common = {"given": 9, "computed": 5, "versions": {"x": "1"}}
    scored = {"seconds": 1.0, "peak_bytes": 2_000_000, "logprobs": [-1.0, -2.0], **common}
    prefilled = {"seconds": 1.0, "peak_bytes": None, "logprobs": None, "first_tokens": [1, 2, 3, 4], **common}
    near, far = side.summary([scored], [-1.1, -2.3]), side.summary([scored], [-9.0, -20.0])
    assert near["error_mean"] == pytest.approx(0.2)
    assert near["versions"] == {"x": "1"}
    long = side.summary([{**scored, "logprobs": [-1.0, -2.0, -900.0]}], [-1.1, -2.3, -904.0])  # of a whole text
    alike = side.summary([prefilled], [-1.0, -2.0], [1, 2, 3, 5])
    apart = side.summary([prefilled], [-1.0, -2.0], [1, 6, 7, 5])
    assert "error_mean" not in alike
    assert alike["first_tokens_like_truth"] == 0.75
    llama, openvino = "llama.cpp, prefix cache, Q4_1", "OpenVINO GenAI, prefill only, int8"
    assert side.others({llama: long}) == []
    assert side.others({llama: near, openvino: alike, "fastreader, fast": far}) == []
    assert side.others({llama: far, openvino: apart}) == [llama, openvino]
    record = {"workload": "w1", "machine": {"processor": "P"}, "loaded": False, "rows": {llama: near, openvino: alike}}
    assert "| 2 MB | 5 | 0.2000 / 0.3000 |" in side.table(record)
    assert "| - | 5 | next tokens 75% alike |" in side.table(record)


def test_milliseconds_a_step(script):
    generation = script("generation")
    told = {"seconds": 2.0, "first_seconds": 0.5, "tokens": [[1, 2, 3, 4]], "peak_bytes": 1}
    row = generation.summary([told, told], [[1, 2, 9, 9]])
    assert row["step_ms"] == pytest.approx(500.0)
    assert row["tokens_like_first"] == 0.5
    plain = generation.summary([{**told, "tokens": [[1]]}], [[1]])
    assert "step_ms" not in plain
    record = {
        "workload": "64x1", "prompts": [3], "new": 4, "machine": {"processor": "P"}, "loaded": False,
        "rows": {"a": row, "b": plain},
    }  # fmt: skip
    lines = generation.table(record).splitlines()
    assert [line.count("|") for line in lines[:4]] == [7, 7, 7, 7]
    assert lines[2].endswith("| 500.0 |")
    assert lines[3].endswith("| - |")


def test_llamacpp_writing_is_a_way_of_generation(script, monkeypatch):
    generation = script("generation")
    transformers = importlib.import_module("transformers")
    from helpers.support import byte_tokenizer

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda _: byte_tokenizer())
    monkeypatch.setattr(generation.gguf_file, "find", lambda *_: Path("f"))
    asked = {}

    def writes(python, file, prompts, new):
        asked.update(python=python, prompts=prompts, new=new)
        return {"seconds": 1.0, "tokens": [[7] * new for _ in prompts]}

    monkeypatch.setattr(generation.apart, "llamacpp_writes", writes)
    arguments = argparse.Namespace(model="m", device="cpu", prompt=60, rows=4, new=3, gguf=[], llamacpp_python="py")
    told = generation.child(arguments, "64x1", "llamacpp", "Q4_1")
    assert told["prompts"] == [60] * 4 == [len(prompt) for prompt in asked["prompts"]]
    assert asked["new"] == 3
