import os
import subprocess
import sys

import pytest
import torch
from helpers.support import byte_tokenizer, tiny_llama

from fastreader import Reader
from fastreader.models.machine import memory
from fastreader.models.machine.chunking import chunk_rows, chunks

CPU = torch.device("cpu")


def test_budget_follows_free_memory(monkeypatch):
    for tokens in (100, 1000):
        monkeypatch.setattr(memory, "free_bytes", lambda device, n=tokens: n * 50)
        assert memory.pass_limits(50, [CPU]) == (0.6 * tokens, 0.95 * tokens)
        assert memory.pass_limits(50, [CPU], memory.Overhead(500))[1] == 0.95 * tokens - 10


def test_bytes_grow_with_the_model_and_fall_with_chunking():
    small, large = tiny_llama().config, tiny_llama(hidden_size=128, intermediate_size=4096).config
    for forward in ("own", "upcast", "fused"):
        assert memory.bytes_per_token(large, torch.float32, forward) > memory.bytes_per_token(
            small, torch.float32, forward
        )
    own, upcast, fused = (memory.bytes_per_token(large, torch.float32, f) for f in ("own", "upcast", "fused"))
    assert fused < upcast < own
    assert memory.bytes_per_token(large, torch.float32, "fused", torch.bfloat16) < fused


@pytest.mark.parametrize(
    ("limit", "used", "statistics", "free"),
    [
        ("max", "5", "inactive_file 0", 2**62),
        ("1000", "900", "anon 100\ninactive_file 700", 800),
        ("1000", "1200", "inactive_file 0", 0),
        ("1000", "900", "total_inactive_file 600", 700),
    ],
)
def test_container_limits_are_read(tmp_path, limit, used, statistics, free):
    files = [tmp_path / name for name in ("limit", "used", "statistics")]
    for file, text in zip(files, (limit, used, statistics), strict=True):
        file.write_text(text + "\n")
    assert memory._container_free((tuple(files),)) == free


@pytest.mark.parametrize("text", [None, "MemTotal: 100 kB\n"])
def test_a_machine_that_does_not_say_what_is_free_counts_half(tmp_path, monkeypatch, text):
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    if text is not None:
        (tmp_path / "meminfo").write_text(text)
    assert memory._machine_free() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 7 kB\n")
    assert memory._machine_free() == 7 * 1024


def test_the_smaller_of_machine_and_container_is_used(monkeypatch):
    monkeypatch.setattr(memory, "_container_free", lambda: 12345)
    assert memory.free_bytes(CPU) == 12345


def test_chunks_cover_the_rows_and_bound_the_memory():
    gpu = torch.device("cuda")  # no device is touched
    for device, width in ((CPU, 100), (gpu, 3072), (gpu, 10**9)):
        parts = chunks(100_000, device, width)
        assert [i for b in parts for i in range(b.start, b.stop)] == list(range(100_000))
    assert len(chunks(20_000, gpu, 3072)) == 1
    assert chunk_rows(gpu, 2 * 14_336) * 2 * 14_336 <= 2**26
    config = tiny_llama(hidden_size=128, intermediate_size=4096).config
    rows = chunk_rows(gpu, 2 * 4096)
    fast = memory.pass_overhead(config, torch.bfloat16, gpu, "fused", "bf16")
    assert fast.bytes(10**6) >= rows * 3 * 4096 * 4
    assert fast.bytes(10) < fast.bytes(10**6)
    exact = memory.pass_overhead(config, torch.bfloat16, gpu, "fused", "torch")  # one weight at a time in float32
    assert exact.fixed == fast.fixed + 4 * 128 * 4096
    assert memory.pass_overhead(config, torch.bfloat16, gpu, "own", "bf16") == memory.NO_OVERHEAD


@pytest.mark.parametrize("space", [10, 1000, 4000, 5000, 100_000])
def test_max_tokens_is_the_largest_that_fits(space):
    overhead = memory.Overhead(fixed=500, rows=30, row_bytes=100)

    def taken(tokens):
        return 20 * tokens + overhead.bytes(tokens)

    tokens = overhead.max_tokens(space, 20)
    assert tokens == 1 or taken(tokens) <= space
    assert taken(tokens + 1) > space


def test_the_overhead_follows_the_number_of_threads(monkeypatch):
    """A model computes its overhead once. The number of threads may change after that."""
    overhead = memory.pass_overhead(tiny_llama().config, torch.float32, CPU, "fused", "bf16")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    one = overhead.bytes(10)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert overhead.bytes(10) == one + 2 * overhead.thread_bytes
    assert overhead.max_tokens(one + 2 * overhead.thread_bytes + 40, 20) == 2


def test_what_the_config_fixes_is_computed_once(monkeypatch):
    model = Reader.load((tiny_llama(), byte_tokenizer()), precision="exact").local_model.model
    names = ("forward_path", "bytes_per_token", "overhead", "max_length", "key_value_bytes", "end_tokens")
    before = [getattr(model, name) for name in names]
    monkeypatch.setattr(model, "config", None)
    assert [getattr(model, name) for name in names] == before


HELD = """
from contextlib import nullcontext
import sys, torch
from fastreader.models.machine.memory import large_blocks_apart

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

torch.ones(7 << 20)  # 28 MB: from now on glibc keeps what is smaller
with large_blocks_apart() if sys.argv[1] == "apart" else nullcontext():
    held = [torch.ones(1 << 20) for _ in range(40)]
    before = resident()
    del held[::2]
    print((before - resident()) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux" or memory._libc("mallopt") is None, reason="needs mallopt of glibc")
@pytest.mark.parametrize(("how", "least", "most"), [("apart", 75, 85), ("together", -1, 40)])
def test_memory_between_blocks_that_stay_is_returned_while_a_model_loads(how, least, most):
    own = {name: value for name, value in os.environ.items() if name not in memory._SETTINGS_OF_GLIBC}
    ran = subprocess.run([sys.executable, "-c", HELD, how], capture_output=True, text=True, check=True, env=own)
    assert least <= int(ran.stdout) <= most


AGAIN = """
from contextlib import nullcontext
import resource, sys, torch
from fastreader.models.machine.memory import blocks_used_again, large_blocks_apart

with large_blocks_apart(), blocks_used_again() if sys.argv[1] == "again" else nullcontext():
    torch.ones(1 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(1 << 20)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux" or memory._libc("mallopt") is None, reason="needs mallopt of glibc")
@pytest.mark.parametrize(("how", "least", "most"), [("again", 0, 10_000), ("apart", 15_000, 25_000)])
def test_a_check_takes_the_memory_of_its_copies_once(how, least, most):
    """A block of 4 MB has 1,024 pages, each of which the system fills with zeros when it is first used."""
    own = {name: value for name, value in os.environ.items() if name not in memory._SETTINGS_OF_GLIBC}
    ran = subprocess.run([sys.executable, "-c", AGAIN, how], capture_output=True, text=True, check=True, env=own)
    assert least <= int(ran.stdout) <= most
