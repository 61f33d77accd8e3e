"""The choice of products by measured rates, and what readers say of it."""

import json

import numpy as np
import pytest
import torch
from helpers.families import tiny
from helpers.support import byte_tokenizer, one_by_one, random_sequences

from fastreader import Reader
from fastreader.errors import InputError
from fastreader.models.machine import arithmetic
from fastreader.models.machine.arithmetic import choose, machine_rates, measure, ways
from fastreader.ops import extension

pytestmark = pytest.mark.skipif(extension.why_missing() is not None, reason=str(extension.why_missing()))

SLOW_BF16 = {"float32": 300.0, "int16": 490.0, "bf16": 165.0, "bf16x3": 80.0}  # AVX-512 BF16 at half a rate
ZEN5 = {"float32": 200.0, "int16": 600.0, "bf16": 850.0, "bf16x3": 300.0}
NEARLY = {"float32": 200.0, "int16": 900.0, "bf16": 850.0, "bf16x3": 300.0}
AMX = {"float32": 300.0, "int16": 500.0, "bf16": 3000.0, "bf16x3": 1200.0}
NO_BF16 = {"float32": 100.0, "int16": 120.0}
WITH_VNNI = {"float32": 100.0, "int16": 180.0}


@pytest.mark.parametrize(
    ("rates", "fast", "high"),
    [
        (SLOW_BF16, "int16", "float32"),
        (ZEN5, "bf16", "bf16x3"),
        (NEARLY, "bf16", "bf16x3"),
        (AMX, "bf16", "bf16x3"),
        (NO_BF16, "float32", "float32"),
        (WITH_VNNI, "int16", "float32"),
    ],
)
def test_the_fastest_within_the_promise(monkeypatch, rates, fast, high):
    monkeypatch.delenv(arithmetic.VARIABLE, raising=False)
    assert choose("fast", "auto", rates)[0] == fast
    assert choose("high", "auto", rates)[0] == high
    assert choose("exact", "auto", rates)[0] == "float32"
    assert "int16" in choose("fast", "auto", rates)[1]


FEW = {f"{way} (1 row of Q4_0)": rate for way, rate in [("float32", 9.0), ("int16", 49.0), ("bf16", 8.0)]}


@pytest.mark.parametrize(
    ("rates", "fast"),
    [
        (SLOW_BF16, "int16"),
        (ZEN5, "int16"),  # less than 1.5 times slower, and bf16 unpacks integers slowly for a text that is written
        (AMX, "bf16"),
        (NO_BF16, "int16"),  # for the texts that are written
        ({**NO_BF16, "int16": 80.0}, "int16"),  # a Xeon without VNNI: scoring 1.12 times slower, writing 2.4 faster
        ({**NO_BF16, "int16": 60.0}, "float32"),
        (WITH_VNNI, "int16"),
        ({**ZEN5, "bf16 (1 row of Q4_0)": 40.0}, "bf16"),
        ({**SLOW_BF16, "bf16 (1 row of Q4_0)": 50.0}, "int16"),
    ],
)
def test_weights_of_integers_choose_by_few_rows_too(monkeypatch, rates, fast):
    monkeypatch.delenv(arithmetic.VARIABLE, raising=False)
    assert choose("fast", "auto", FEW | rates, integers=True)[0] == fast
    for precision in ("high", "exact"):
        assert choose(precision, "auto", FEW | rates, integers=True) == choose(precision, "auto", FEW | rates)


def test_a_gain_in_neither_few_nor_many_rows_is_none(monkeypatch):
    monkeypatch.delenv(arithmetic.VARIABLE, raising=False)
    rates = NO_BF16 | FEW | {"int16 (1 row of Q4_0)": 9.0}
    assert choose("fast", "auto", rates, integers=True)[0] == "float32"


def test_arguments_and_the_variable_force_it(monkeypatch):
    monkeypatch.setenv(arithmetic.VARIABLE, "int16")
    assert choose("fast", "auto", ZEN5) == ("int16", "as FASTREADER_PRODUCTS says")
    assert choose("exact", "auto", ZEN5)[0] == "float32"  # int16 would not be exact
    assert choose("fast", "float32", ZEN5) == ("float32", "as requested")
    with pytest.raises(InputError, match=r"products \(precision 'high'\): expected one of auto, float32, bf16x3"):
        choose("high", "int16")
    monkeypatch.setenv(arithmetic.VARIABLE, "int8")
    with pytest.raises(InputError, match="FASTREADER_PRODUCTS: expected one of bf16"):
        choose("fast", "auto", ZEN5)
    monkeypatch.setenv("FASTREADER_CPU_ISA", "portable")
    with pytest.raises(InputError, match="portable has no bfloat16 products"):
        choose("fast", "bf16")


@pytest.mark.skipif(extension.why_missing() is not None, reason=str(extension.why_missing()))
@pytest.mark.parametrize("name", ["nope", "AVX2", " ", "auto "])
def test_an_instruction_set_that_this_machine_lacks_is_named(monkeypatch, name):
    monkeypatch.setenv("FASTREADER_CPU_ISA", name)
    with pytest.raises(InputError, match=f"FASTREADER_CPU_ISA: expected one of .*portable.* got '{name}'"):
        Reader.load((tiny("Llama"), byte_tokenizer()), device="cpu")


def test_an_empty_variable_is_unset(monkeypatch):
    best = extension.used_instruction_set()
    monkeypatch.setenv("FASTREADER_CPU_ISA", "")
    assert (extension.instruction_set(), extension.used_instruction_set()) == ("auto", best)


def test_ways_follow_the_instruction_set(monkeypatch):
    monkeypatch.setattr(extension, "instruction_sets", lambda: ["amx", "avx512_bf16", "neon_bf16", "neon", "avx2"])
    for isa, has_bf16 in {"amx": True, "avx512_bf16": True, "neon_bf16": True, "neon": False, "avx2": False}.items():
        monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
        assert ways() == ("float32", "int16", *(("bf16", "bf16x3") if has_bf16 else ()))


def test_rates_are_measured_once_and_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path))
    arithmetic._machine_rates.cache_clear()
    first = machine_rates()
    few = {f"{way} (1 row of Q4_0)" for way in ways() if way != "bf16x3"}
    assert set(first) == {*ways(), *few} and min(first.values()) > 0
    (file,) = (tmp_path / "rates").iterdir()
    assert json.loads(file.read_text()) == first
    monkeypatch.setattr(arithmetic, "measure", lambda: pytest.fail("measured again"))
    arithmetic._machine_rates.cache_clear()
    assert machine_rates() == first
    monkeypatch.setattr(arithmetic, "measure", lambda: dict.fromkeys(ways(), 1.0))
    for damaged in [
        '{"float32": "fast"}', "", "null", "[1, 2]", "1" * 5000, "[" * 200_000, '{"float32":' + "[" * 200_000,
        *(json.dumps(dict.fromkeys(first, rate)) for rate in (float("inf"), float("nan"), 1e308, 0.0, True, 10**400)),
    ]:  # fmt: skip
        file.write_text(damaged)
        arithmetic._machine_rates.cache_clear()
        assert set(machine_rates().values()) == {1.0}, damaged[:60]
    file.unlink()
    file.mkdir()
    arithmetic._machine_rates.cache_clear()
    assert set(machine_rates().values()) == {1.0}
    arithmetic._machine_rates.cache_clear()


@pytest.mark.usefixtures("nothing_served")
def test_without_the_extension_pytorch_multiplies(monkeypatch):
    monkeypatch.setattr(extension, "why_missing", lambda: "no compiler")
    assert choose("fast", "auto") == ("torch", "no compiler")
    with pytest.raises(InputError, match="no compiler"):
        choose("fast", "int16")


@pytest.mark.parametrize("family", ["Llama", "Gemma2, window, caps", "GPTNeoX"])
@pytest.mark.parametrize(
    ("precision", "way", "allowed"), [("fast", "int16", 1e-2), ("fast", "float32", 2e-5), ("exact", "float32", 2e-5)]
)
def test_readers_multiply_so(family, precision, way, allowed):
    stored = tiny(family).to(torch.bfloat16)
    sequences = random_sequences(np.random.default_rng(5), 261)
    truth = np.concatenate(one_by_one(tiny(family).to(torch.bfloat16).float(), sequences))
    reader = Reader.load((stored, byte_tokenizer()), device="cpu", precision=precision, products=way)
    error = np.abs(np.concatenate(reader.score(sequences).token_logprobs) - truth)
    assert error.max() < allowed
    if way == "int16" and "bf16" in ways():
        rounded = Reader.load((stored, byte_tokenizer()), device="cpu", precision="fast", products="bf16")
        of_bf16 = np.abs(np.concatenate(rounded.score(sequences).token_logprobs) - truth)
        assert error.mean() < of_bf16.mean() / 5
    assert reader.describe()["products"] == way and reader.arithmetic.reason == "as requested"
    assert f"products={way!r}" in repr(reader)


def test_a_model_that_keeps_its_modules_runs_in_float32_where_int16_is_chosen():
    stored = tiny("GPT2").to(torch.bfloat16)
    reader = Reader.load((stored, byte_tokenizer()), device="cpu", precision="fast", products="int16")
    assert reader.local_model.model.dtype == torch.float32


def test_measuring_takes_a_moment():
    assert min(measure().values()) > 0
