"""Which instruction sets setup.py leaves out of a build for one machine."""

import platform
from pathlib import Path

import pytest

from fastreader.ops import extension

ROOT = Path(__file__).parents[2]
X86 = {"portable", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx"}


@pytest.fixture(scope="module")
def left_out():
    source = (ROOT / "setup.py").read_text(encoding="utf-8")
    names: dict = {}
    exec(compile(source[: source.index("\ndef extension()")], "setup.py", "exec"), names)
    return names["left_out"]


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not Path("/proc/cpuinfo").exists(), reason="only x86 Linux leaves sets out"
)
@pytest.mark.skipif(extension.why_missing() is not None, reason=str(extension.why_missing()))
def test_a_build_for_this_machine_leaves_out_what_the_machine_lacks(left_out, monkeypatch):
    monkeypatch.delenv("FASTREADER_ISAS", raising=False)
    assert X86 - set(left_out(editable=True)) == set(extension.instruction_sets())


def test_other_builds_leave_nothing_out(left_out, monkeypatch):
    monkeypatch.delenv("FASTREADER_ISAS", raising=False)
    assert left_out(editable=False) == []
    monkeypatch.setenv("FASTREADER_ISAS", "all")
    assert left_out(editable=True) == []
    monkeypatch.setenv("FASTREADER_ISAS", "machine")
    assert left_out(editable=False) == left_out(editable=True)


def test_another_word_is_an_error(left_out, monkeypatch):
    monkeypatch.setenv("FASTREADER_ISAS", "avx2")
    with pytest.raises(SystemExit, match="FASTREADER_ISAS must be all or machine, got 'avx2'"):
        left_out(editable=True)
