"""benchmarks/sizes.py: the files that it makes hold one model, what it measures, and what it refuses to measure."""

from __future__ import annotations

import importlib
import io
import json
import re
import shutil
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.gguf_files import keys_of, tensors_of, tiny, write

from fastreader import Reader

pytestmark = pytest.mark.usefixtures("loaded_once")
pytest.importorskip("gguf", reason="needs the extra gguf")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MEMORY = {"resident": 2_000_000_000, "anonymous": 1_000_000_000}


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module


@pytest.fixture(scope="module")
def reader(script, tmp_path_factory):
    module = script("random_readers")
    folder = tmp_path_factory.mktemp("sizes")
    model = tiny("llama")
    donor = write(folder / "donor.gguf", "llama", tensors_of("llama", model), keys_of("llama", model.config))
    return module.RandomReader(module.Shape(256, 3, 4, 2, 128, 512), donor, folder / "1b")


def values_of(parameter):
    return parameter.plain() if hasattr(parameter, "plain") else parameter.detach()


@pytest.mark.parametrize(("kind", "levels"), [("Q4_K", 15), ("Q6_K", 62)])
def test_values_of_k_types_are_the_nearest_ones(script, kind, levels):
    from gguf import GGMLQuantizationType, quants

    generator = torch.Generator().manual_seed(1)
    values = torch.randn(40, 512, generator=generator)
    values[0], values[1], values[2] = 0, values[1].abs() + 3, 1e-3 * values[2]
    coded = script("k_quants").quantise(values, kind)
    found = torch.from_numpy(quants.dequantize(coded.numpy(), GGMLQuantizationType[kind]))
    largest = values.view(-1, 256).abs().amax(-1)
    bound = (2 * 0.5 * 1.15 / levels * 2 * largest)[:, None]  # a range of both signs, scales of 6 bits
    assert ((found - values).view(-1, 256).abs() <= bound).all()
    assert (found[0] == 0).all()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K_M"])
def test_a_gguf_file_holds_the_weights_of_the_checkpoint(reader, kind):
    import transformers

    from fastreader.models.loading.load import load
    from fastreader.models.loading.options import LoadOptions

    checkpoint, file = reader.made("checkpoint"), reader.made(kind)
    plain = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype="auto")
    assert plain.dtype == torch.bfloat16
    loaded = load(LoadOptions(file, "cpu"))
    theirs = dict(plain.named_parameters())
    for name, parameter in loaded.model.named_parameters():
        off = (values_of(parameter).float() - theirs[name].float()).abs().max()
        assert off < 0.01, name  # weights deviate by 0.02, so that rows in another order would be off by 0.1
    wanted = {"Q4_0": ("Q4_0", "Q6_K"), "Q4_K_M": ("Q4_K", "Q6_K")}[kind]
    assert set(loaded.arithmetic.formats) == set(wanted)
    for name in ("head_dim", "num_key_value_heads", "rope_parameters", "tie_word_embeddings"):
        assert getattr(loaded.model.config, name) == getattr(plain.config, name), name
    assert loaded.model.config.rms_norm_eps == pytest.approx(plain.config.rms_norm_eps)  # the file has float32
    assert loaded.tokenizer.get_vocab() == transformers.AutoTokenizer.from_pretrained(checkpoint).get_vocab()


def test_the_bytes_are_known_before_the_files_are_made(reader, script):
    sizes = script("sizes")
    for kind, header in (("checkpoint", 0.02), ("Q4_0", 0.1), ("Q4_K_M", 0.1)):
        size = sizes.bytes_below(reader.made(kind))
        assert reader.bytes(kind) <= size <= (1 + header) * reader.bytes(kind)


@pytest.mark.parametrize(("size", "billions"), [("1b", 1.07), ("4b", 3.75), ("8b", 7.18)])
def test_sizes_are_what_they_are_called(script, size, billions):
    tensors = script("random_readers").SHAPES[size].tensors(49152)
    assert sum(int(np.prod(shape)) for shape in tensors.values()) / 1e9 == pytest.approx(billions, abs=0.01)


def test_ways_read_and_write_the_same(script, reader, monkeypatch, capsys):
    sizes = script("sizes")
    told = {}
    for kind, file in (("fastreader", "checkpoint"), ("transformers", "checkpoint"), ("fastreader", "Q4_K_M")):
        asked = sizes.request(arguments(script, reader.folder / "o.jsonl"), reader)
        asked["groups"] = [{**group, "context": group["context"][-40:]} for group in asked["groups"]]
        sizes.child(kind, {**asked, "file": str(reader.made(file)), "only_load": False, "rows": [1, 2]})
        first, second = map(json.loads, capsys.readouterr().out.splitlines())
        assert first["loaded"] > 0
        assert second["seconds"] > 0 and len(second["steps_ms"]) == 2
        told[kind, file] = second["logprobs"]
        sizes.child(kind, {**asked, "file": str(reader.made(file)), "only_load": True})
        assert len(capsys.readouterr().out.splitlines()) == 1
    truth = told["transformers", "checkpoint"]
    assert len(truth) == 5 * 4
    for logprobs in told.values():
        assert logprobs == pytest.approx(truth, abs=0.5)  # of sums around -100


def arguments(script, output, *more):
    parser = script("sizes").parser()
    return parser.parse_args(["--output", str(output), "--new", "3", *more])


def test_memory_is_that_of_the_process_at_its_two_lines(script, tmp_path):
    code = (
        "import sys, time; sys.stdin.read(); a = bytearray(60_000_000); print('a log'); "
        "print('{\"loaded\": 1}', flush=True); time.sleep(0.1); del a; b = bytearray(200_000_000); time.sleep(0.2); "
        "print('{\"seconds\": 2}', flush=True); time.sleep(0.1)"
    )
    told = script("sizes").run([sys.executable, "-c", code], {}, tmp_path)
    for name in ("resident", "anonymous"):
        assert 60e6 <= told["loading_bytes"][name] < 200e6 <= told["running_bytes"][name] < 260e6
    assert (told["loaded"], told["seconds"]) == (1, 2)


def test_a_process_that_fails_is_named(script, tmp_path):
    with pytest.raises(RuntimeError, match="exit status 3"):
        script("sizes").run([sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(3)"], {}, tmp_path)


@pytest.fixture
def faked(script, reader, monkeypatch):
    """`sizes`, with processes that are noted in a list and measure nothing."""
    sizes, asked = script("sizes"), []

    def run(words, request, cache):
        asked.append((words, request, cache))
        told = {"loaded": 2.0, "loading_bytes": MEMORY}
        if not request["only_load"]:
            told |= {"seconds": 1.5, "steps_ms": [10.0, 20.0, 40.0], "running_bytes": MEMORY}
        return told

    monkeypatch.setattr(sizes, "run", run)
    monkeypatch.setattr(sizes.Clock, "since", lambda clock: {"cpu_seconds": 1.0, "others": 0.05})
    monkeypatch.setitem(sizes.random_readers.SHAPES, "1b", reader.shape)
    return sizes, asked


def main(sizes, monkeypatch, *given):
    monkeypatch.setattr(sys, "argv", ["sizes.py", *map(str, given)])
    sizes.main()


def test_a_run_measures_what_is_missing_and_prints_a_table(faked, reader, monkeypatch, tmp_path, capsys):
    sizes, asked = faked
    output = tmp_path / "rows.jsonl"
    given = ["--output", output, "--folder", reader.folder.parent, "--donor", reader.donor, "--rounds", 1]
    main(sizes, monkeypatch, *given, "--ways", "fastreader, Q4_0", "llama.cpp, Q4_0")
    said = capsys.readouterr()
    assert "llama.cpp is not measured" in said.err and "npm install" in said.err
    assert "llama.cpp was not measured" in said.out
    assert [request["only_load"] for _, request, _ in asked] == [True, False]
    assert asked[0][2] == asked[1][2] and asked[0][1]["file"] == str(reader.made("Q4_0"))
    main(sizes, monkeypatch, *given, "--ways", "fastreader, Q4_0", "transformers, prefix cache, bf16")
    assert [words[-1] for words, _, _ in asked] == ["fastreader", "fastreader", "transformers"]
    table = capsys.readouterr().out
    assert "| fastreader, Q4_0 | 0.00 | 2.0 / 2.0 | 2.00 / 1.00 | 2.00 / 1.00 | 1.5 | 10 / 20 / 40 |" in table
    assert "| transformers, prefix cache, bf16 | 0.00 | 2.0 |" in table
    main(sizes, monkeypatch, "--report", output)
    assert capsys.readouterr().out == table
    with pytest.raises(SystemExit):
        main(sizes, monkeypatch, "--size", "1b")
    assert "--output is needed" in capsys.readouterr().err


def test_a_first_load_is_measured_once(script):
    given = ["--rounds", "2", "--ways", "fastreader, Q4_0", "transformers, prefix cache, bf16"]
    found = [
        (part.round, part.way.split(",")[0], part.first)
        for part in script("sizes").parts(arguments(script, "o", *given))
    ]
    first = [(1, "fastreader", True), (1, "fastreader", False), (1, "transformers", False)]
    assert found == [*first, (2, "fastreader", False), (2, "transformers", False)]


def test_a_loaded_machine_is_named(faked, reader, monkeypatch, tmp_path, capsys):
    sizes, _ = faked
    shares = iter([0.02, 0.5])
    monkeypatch.setattr(sizes.Clock, "since", lambda clock: {"cpu_seconds": 1.0, "others": next(shares)})
    given = ["--folder", reader.folder.parent, "--donor", reader.donor, "--rounds", 1]
    main(sizes, monkeypatch, "--output", tmp_path / "rows.jsonl", *given, "--ways", "fastreader, Q4_0")
    assert "Other programs took up to 50% of the CPUs: do not quote" in capsys.readouterr().out


def test_cpu_time_of_others_is_what_this_program_did_not_take(script, monkeypatch):
    sizes = script("sizes")
    Used = namedtuple("Used", "ru_utime ru_stime")
    now = {"stat": "cpu  100 0 50 900 7 1 2 3 0 0", "own": Used(1.0, 0.5), "at": 10.0}
    monkeypatch.setattr(sizes.Path, "open", lambda path: io.StringIO(now["stat"] + "\ncpu0 1 2\n"))
    monkeypatch.setattr(sizes.resource, "getrusage", lambda who: now["own"])
    monkeypatch.setattr(sizes.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(sizes.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(sizes.time, "perf_counter", lambda: now["at"])
    before = sizes.Clock()
    now |= {"stat": "cpu  500 0 150 900 7 1 2 103 0 0", "own": Used(2.0, 0.5), "at": 14.0}
    # 6 seconds of the machine, 2 of this program and its children, of 8 that two CPUs have
    assert before.since() == {"cpu_seconds": 2.0, "others": 0.5}


Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("disk", "free", "expected"),
    [
        (10**5, 10**12, r"the files take 2\.[\d] GiB, and 0\.0 GiB are free in .*; name another --folder"),
        (10**12, 10**9, r"it takes 3\.[\d] GiB of memory, and 0\.9 GiB are free; choose a smaller --size"),
        (10**12, 3 * 10**9, r'what fits: --ways "fastreader, Q4_0" "fastreader, Q4_K_M"'),
    ],
)
def test_what_does_not_fit_is_refused(script, reader, monkeypatch, tmp_path, capsys, disk, free, expected):
    from fastreader.models.machine import memory

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, disk))
    monkeypatch.setattr(memory, "free_bytes", lambda device: free)
    given = ["--output", tmp_path / "rows.jsonl", "--folder", tmp_path / "made", "--donor", reader.donor]
    with pytest.raises(SystemExit):
        main(script("sizes"), monkeypatch, *given)
    assert re.search(expected, capsys.readouterr().err)
    assert not (tmp_path / "rows.jsonl").exists()


NODE = """
import {writeFileSync} from "node:fs";
const calls = [];
class Sequence {
    nextTokenIndex = 0;
    async clearHistory() { calls.push(["clear"]); this.nextTokenIndex = 0; }
    async eraseContextTokenRanges([range]) { calls.push(["keep", range.start]); this.nextTokenIndex = range.start; }
    async evaluateWithoutGeneratingNewTokens(ids) { calls.push(["read", ids]); this.nextTokenIndex += ids.length; }
    async *evaluate(ids, options) { calls.push(["write", ids, options.temperature]); while (true) yield 7; }
}
const context = {getSequence: () => new Sequence(), dispose: async () => writeFileSync(LOG, JSON.stringify(calls))};
const model = {createContext: async (options) => { calls.push(["context", options]); return context; }};
export const getLlama = async (options) => ({
    loadModel: async ({modelPath}) => { calls.push(["load", modelPath, options]); return model; }
});
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not on the path")
def test_llamacpp_reads_each_context_after_what_is_kept(script, tmp_path):
    sizes, log = script("sizes"), tmp_path / "log.json"
    module = tmp_path / "node_modules" / "node-llama-cpp" / "dist" / "index.js"
    module.parent.mkdir(parents=True)
    module.write_text(NODE.replace("LOG", json.dumps(str(log))))
    (module.parents[1] / "package.json").write_text('{"type": "module"}')
    assert sizes.why_no_llamacpp(tmp_path) is None
    groups = [{"context": [1, 2, 3]}, {"context": [1, 2, 4]}, {"context": [1, 2, 4]}]
    asked = {"file": "m.gguf", "groups": groups, "prompt": [5, 6], "rows": [1, 2], "new": 3, "threads": 2}
    words = sizes.command("llamacpp", arguments(script, tmp_path / "o", "--llamacpp", str(tmp_path)))
    told = sizes.run(words, asked, tmp_path)
    assert told["loaded"] >= 0 and told["seconds"] >= 0 and len(told["steps_ms"]) == 2
    calls = json.loads(log.read_text())
    assert calls[0][:2] == ["load", "m.gguf"] and calls[0][2]["maxThreads"] == 2
    assert [call for call in calls if call[0] in ("keep", "read")] == [
        ["read", [1, 2, 3]], ["keep", 0], ["read", [1, 2, 3]], ["keep", 2], ["read", [4]], ["keep", 2], ["read", [4]],
    ]  # fmt: skip
    assert [call[1].get("sequences") for call in calls if call[0] == "context"] == [None, 1, 2]
    assert [call for call in calls if call[0] == "write"] == 3 * [["write", [5, 6], 0]]
    loaded = sizes.run(words, {**asked, "only_load": True}, tmp_path)
    assert "seconds" not in loaded


def test_llamacpp_is_named_when_it_is_missing(script, tmp_path, monkeypatch, capsys):
    sizes = script("sizes")
    with pytest.raises(SystemExit):
        main(sizes, monkeypatch, "--output", tmp_path / "o.jsonl", "--llamacpp", tmp_path)
    assert "has no node_modules/node-llama-cpp" in capsys.readouterr().err
    monkeypatch.setattr(shutil, "which", lambda name: None)
    (tmp_path / "node_modules" / "node-llama-cpp").mkdir(parents=True)
    assert "node" in sizes.why_no_llamacpp(tmp_path)


@pytest.mark.parametrize("size", ["8b-moe", "20b-moe"])
def test_a_mixture_has_the_tensors_of_its_architecture(script, reader, size, tmp_path):
    module = script("random_mixtures")
    small = {
        "hidden": 256,
        "layers": 2,
        "heads": 4,
        "key_heads": 2,
        "head": 64,
        "inner": 256,
        "experts": 4,
        "chosen": 2,
    }
    shape = replace(module.MIXTURES[size], **small)
    made = module.RandomMixture(shape, reader.donor, tmp_path)
    file = made.made(shape.kind)
    assert made.bytes(shape.kind) <= file.stat().st_size <= 1.1 * made.bytes(shape.kind)
    loaded = Reader.load(file, device="cpu")
    assert (
        set(loaded.describe()["dtype"].split(" + ")) == {"8b-moe": {"Q4_K", "Q6_K"}, "20b-moe": {"MXFP4", "Q8_0"}}[size]
    )
    deviations = [float(values_of(each).std()) for name, each in loaded.model.named_parameters() if each.dim() > 1]
    assert all(0.01 < deviation < 0.04 for deviation in deviations)
    assert np.isfinite(loaded.score([([1, 2, 3], [4, 5])]).logprob).all()


@pytest.mark.parametrize(("size", "billions"), [("8b-moe", 7.9), ("20b-moe", 20.0)])
def test_mixtures_are_what_they_are_called(script, size, billions):
    tensors = script("random_mixtures").MIXTURES[size].tensors(49152)
    assert sum(int(np.prod(shape)) for shape in tensors.values()) / 1e9 == pytest.approx(billions, abs=0.05)


def test_a_way_that_a_size_has_not_is_refused(script, reader, monkeypatch, tmp_path, capsys):
    given = ["--output", tmp_path / "o.jsonl", "--size", "20b-moe", "--folder", tmp_path, "--donor", reader.donor]
    with pytest.raises(SystemExit):
        main(script("sizes"), monkeypatch, *given, "--ways", "fastreader, Q4_0")
    assert "--ways: 20b-moe has fastreader, MXFP4, llama.cpp, MXFP4, got fastreader, Q4_0" in capsys.readouterr().err
