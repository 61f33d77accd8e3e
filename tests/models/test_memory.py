import pytest
import torch
from support import tiny_llama

from fastreader.models import memory
from fastreader.models.chunking import blocks_of, rows_of_block

CPU = torch.device("cpu")


def test_budget_follows_free_memory(monkeypatch):
    for tokens in (100, 1000):
        monkeypatch.setattr(memory, "free_bytes", lambda device, n=tokens: n * 50)
        assert memory.default_budget(50, CPU) == 0.6 * tokens
        assert memory.hard_limit(50, CPU) == 0.95 * tokens
        assert memory.hard_limit(50, CPU, memory.Beside(500)) == 0.95 * tokens - 10


def test_bytes_grow_with_the_model_and_fall_with_blocking():
    small, large = tiny_llama().config, tiny_llama(hidden_size=128, intermediate_size=4096).config
    for forward in ("own", "widened", "fused"):
        assert memory.bytes_per_token(large, torch.float32, forward) > memory.bytes_per_token(
            small, torch.float32, forward
        )
    own, widened, fused = (memory.bytes_per_token(large, torch.float32, f) for f in ("own", "widened", "fused"))
    assert fused < widened < own
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
def test_containers_are_seen(tmp_path, limit, used, statistics, free):
    files = [tmp_path / name for name in ("limit", "used", "statistics")]
    for file, text in zip(files, (limit, used, statistics), strict=True):
        file.write_text(text + "\n")
    assert memory._container_free((tuple(map(str, files)),)) == free


def test_the_smaller_of_machine_and_container_counts(monkeypatch):
    monkeypatch.setattr(memory, "_container_free", lambda: 12345)
    assert memory.free_bytes(CPU) == 12345


def test_blocks_cover_the_rows_and_bound_what_is_worked_on():
    gpu = torch.device("cuda")  # no device is touched
    for device, width in ((CPU, 100), (gpu, 3072), (gpu, 10**9)):
        blocks = blocks_of(100_000, device, width)
        assert [i for b in blocks for i in range(b.start, b.stop)] == list(range(100_000))
    assert len(blocks_of(20_000, gpu, 3072)) == 1
    assert rows_of_block(gpu, 2 * 14_336) * 2 * 14_336 <= 2**26
    config = tiny_llama(hidden_size=128, intermediate_size=4096).config
    rows = rows_of_block(gpu, 2 * 4096)
    fast = memory.beside_tokens(config, torch.bfloat16, gpu, "fused", "fast")
    assert fast.bytes(10**6) >= rows * 3 * 4096 * 4
    assert fast.bytes(10) < fast.bytes(10**6)
    exact = memory.beside_tokens(config, torch.bfloat16, gpu, "fused", "exact")  # a weight at a time in float32
    assert exact.fixed == fast.fixed + 4 * 128 * 4096
    assert memory.beside_tokens(config, torch.bfloat16, gpu, "own", "fast") == memory.NOTHING


@pytest.mark.parametrize("space", [10, 1000, 4000, 5000, 100_000])
def test_as_many_tokens_as_fit(space):
    beside = memory.Beside(fixed=500, rows=30, row_bytes=100)

    def taken(tokens):
        return 20 * tokens + beside.bytes(tokens)

    tokens = beside.tokens(space, 20)
    assert tokens == 1 or taken(tokens) <= space
    assert taken(tokens + 1) > space
