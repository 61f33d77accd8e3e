"""The Triton kernels of the recurrences in the interpreter, against the definition in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from recurrent_cases import HEADS, OPS, STATES, TREES, random_tree, relative_error
from recurrent_cases import initial as all_heads
from recurrent_cases import operands as all_operands
from tolerance import assert_as_exact_as_eager
from torch import Tensor

from fastreader.errors import UnsupportedImplementationError
from fastreader.ops import triton_support
from fastreader.ops.recurrent import ScanPlan, triton_chunks
from fastreader.ops.recurrent.chains import Walks

pytestmark = pytest.mark.interpreter
CPU = torch.device("cpu")
CHUNK = 16  # tokens


def operands(op: str, size: int, seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Draw the operands of an op, with one head of keys and two of values: the interpreter runs programs one by one."""
    given = all_operands(op, size, seed, dtype)
    return [x[:, : 1 if i < 2 else 2] for i, x in enumerate(given)] if op in HEADS else given


def initial(op: str, count: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor | None:
    drawn = all_heads(op, count, seed, dtype)
    return drawn[:, :2] if op in HEADS and drawn is not None else drawn


def run(
    op: str, given: list[Tensor], parent: Any, keep: Any = (), start: Tensor | None = None, impl: str = "triton"
) -> tuple[Tensor, Tensor]:
    plan = ScanPlan(np.asarray(parent, dtype=np.int64), np.asarray(keep, dtype=np.int64), CPU)
    return OPS[op](*given, plan, initial=start, impl=impl)


def compare(
    op: str, parent: Any, keep: Any = (), start: Tensor | None = None, given: list[Tensor] | None = None
) -> float:
    """Return the largest relative error of outputs and kept states in float32."""
    given = [x.float() for x in (operands(op, len(parent), 0) if given is None else given)]
    start = None if start is None else start.float()
    want = run(op, [x.double() for x in given], parent, keep, None if start is None else start.double(), "reference")
    got = run(op, given, parent, keep, start)
    assert all(x.dtype == torch.float32 for x in got)
    return max(map(relative_error, got, want))


def forest(seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return parents, kept tokens (some of them twice) and the number of texts before the tree."""
    rng = np.random.default_rng(seed)
    size, outside = int(rng.integers(1, 61)), int(rng.integers(0, 3))
    parent = random_tree(rng, size, float(rng.choice([0.0, 0.05, 0.2])), outside)
    return parent, rng.integers(0, size, int(rng.integers(0, 5))), outside


@pytest.mark.parametrize("op", OPS)
@pytest.mark.long(keep=3)
def test_random_trees(op: str) -> None:
    worst = 0.0
    for seed in range(TREES):
        parent, keep, outside = forest(seed)
        given = operands(op, len(parent), seed)
        worst = max(worst, compare(op, parent, keep, initial(op, outside, seed), given))
    print(f"{op}: largest relative error {worst:.2g} over {TREES} trees")
    assert worst < 1e-5


@pytest.mark.parametrize("op", OPS)
@pytest.mark.long(keep=2)
def test_lengths_around_a_chunk(op: str) -> None:
    for size in (CHUNK, CHUNK + 1, 2 * CHUNK + 1):
        assert compare(op, np.arange(-1, size - 1), [size - 1]) < 1e-5


@pytest.mark.parametrize("op", OPS)
@pytest.mark.long(keep=2)
def test_trees_of_short_chains(op: str) -> None:
    roots, star, ladder = [-1] * 5, [-1, 0, 0, 0, 0], [-1, 0, 0, 2, 2, 4, 4]
    for parent in (roots, star, ladder):
        assert compare(op, parent, range(len(parent))) < 1e-5


@pytest.mark.parametrize("op", OPS)
def test_no_tokens(op: str) -> None:
    out, kept = run(op, all_operands(op, 0, 0, torch.float32), [])
    assert len(out) == 0 and kept.shape == (0, *STATES[op])


@pytest.mark.parametrize(("op", "dtype"), [*((op, torch.bfloat16) for op in OPS), ("linear_attention", torch.float16)])
@pytest.mark.long(keep=3)
def test_half_types(op: str, dtype: torch.dtype) -> None:
    parent, keep, outside = forest(3)
    given, start = operands(op, len(parent), 3, dtype), initial(op, outside, 3, torch.float32)
    wide = None if start is None else start.double()
    golden, golden_states = run(op, [x.double() for x in given], parent, keep, wide, "reference")
    eager, _ = run(op, given, parent, keep, start, "torch")
    out, states = run(op, given, parent, keep, start)
    assert out.dtype == dtype and states.dtype == torch.float32
    assert_as_exact_as_eager("output", out, eager, golden)
    assert relative_error(states, golden_states) < 1e-5


@pytest.mark.parametrize("op", ["gated_delta_rule", "selective_scan", "linear_recurrence"])
def test_operands_of_any_layout(op: str) -> None:
    given = operands(op, 20, 0, torch.float32)
    parent = random_tree(np.random.default_rng(0), 20, 0.1)
    want = run(op, given, parent, [19])
    inside = [torch.cat([x, x], dim=-1)[..., : x.shape[-1]] for x in given]
    for laid in (inside, [x.mT.contiguous().mT for x in given]):
        got = run(op, laid, parent, [19])
        assert all(map(torch.equal, got, want))


def test_a_gate_for_all_tokens() -> None:
    query, key, value, _ = operands("linear_attention", 50, 0, torch.float32)
    gate = -torch.tensor([0.1, 0.3]).expand(50, 2)
    assert compare("linear_attention", np.arange(-1, 49), [49], given=[query, key, value, gate]) < 1e-5


def sized(op: str, heads: int, size: int, value_size: int) -> list[Tensor]:
    """Draw the operands of an op over 19 tokens, with one head of keys."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    query, key, value = draw(19, 1, size), draw(19, 1, size), draw(19, heads, value_size)
    key = key / key.norm(dim=-1, keepdim=True)
    gate = -0.1 * (draw(19, heads, size) if op == "kimi_delta_rule" else draw(19, heads)).exp()
    beta = [] if op == "linear_attention" else [draw(19, heads).sigmoid()]
    return [query, key, value, gate, *beta]


@pytest.mark.parametrize("op", sorted(HEADS))
@pytest.mark.parametrize(("heads", "size", "value_size"), [(1, 40, 70), (2, 130, 8)])
def test_sizes_beyond_a_block(op: str, heads: int, size: int, value_size: int) -> None:
    parent = random_tree(np.random.default_rng(1), 19, 0.1)
    assert compare(op, parent, [18], given=sized(op, heads, size, value_size)) < 1e-5


@pytest.mark.parametrize("op", sorted(HEADS))
def test_the_blocks_of_every_target(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets of equal blocks run the same program here, since the interpreter has no warps."""
    kind = {"delta": op != "linear_attention", "channels": op == "kimi_delta_rule"}
    parent = random_tree(np.random.default_rng(1), 19, 0.1)
    seen = set()
    for target in triton_support.TARGETS:
        chosen = triton_chunks.options(target, 130, 24, **kind)
        blocks = tuple(chosen[name] for name in ("CHUNK", "BLOCK_D", "PARTS", "BLOCK_DV"))
        if blocks not in seen:
            monkeypatch.setattr(triton_chunks, "target_of", lambda device, target=target: target)
            assert compare(op, parent, [18], given=sized(op, 1, 130, 24)) < 1e-5
        seen.add(blocks)


@pytest.mark.parametrize("op", ["gated_delta_rule", "kimi_delta_rule"])
def test_equal_keys_cancel_nothing(op: str) -> None:
    """With equal keys and no decay the system's matrix is all ones below its diagonal, whose powers grow fast."""
    query, key, value, gate, beta = operands(op, 34, 0)
    given = [query, key[:1].expand_as(key), value, 0 * gate, torch.ones_like(beta)]
    assert compare(op, np.arange(-1, 33), [33], given=given) < 1e-5


@pytest.mark.parametrize("op", sorted(HEADS))
def test_strong_decay_overflows_nothing(op: str) -> None:
    query, key, value, gate, *rest = operands(op, 40, 0)
    parent = random_tree(np.random.default_rng(0), 40, 0.1)
    assert compare(op, parent, [39], given=[query, key, value, 500 * gate, *rest]) < 1e-4


@pytest.mark.parametrize("op", ["gated_delta_rule", "kimi_delta_rule"])
def test_queries_and_keys_scaled_and_divided_by_their_norms(op: str) -> None:
    query, key, *others = (x.float() for x in operands(op, 40, 0))
    key *= 3
    parent = random_tree(np.random.default_rng(0), 40, 0.1)
    plan = ScanPlan(parent, np.array([39]), CPU)
    got = OPS[op](query, key, *others, plan, scale=0.3, norm_epsilon=1e-2, impl="triton")
    query, key = (x.double() / (x.double().square().sum(-1, keepdim=True) + 1e-2).sqrt() for x in (query, key))
    want = run(op, [0.3 * query, key, *(x.double() for x in others)], parent, [39], impl="reference")
    assert max(map(relative_error, got, want)) < 1e-5


@pytest.mark.parametrize("op", OPS)
@pytest.mark.long(keep=2)
def test_a_dropped_state_is_noticed(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison fails if chains start from nothing, or from the state of another chain."""
    parent, keep = [-1, 0, 1, 1, 3, 0, 5, 5], [4, 7]
    assert compare(op, parent, keep) < 1e-5
    build = Walks.__init__
    for change in (lambda before: before.fill_(-1), lambda before: before.clamp_(max=0)):

        def wrong(self: Walks, *arguments: Any, change: Any = change) -> None:
            build(self, *arguments)
            change(self.table[:, 2])

        monkeypatch.setattr(Walks, "__init__", wrong)
        assert compare(op, parent, keep) > 1e-2


@pytest.mark.parametrize("op", OPS)
def test_auto_takes_the_kernel_on_a_gpu_and_torch_for_float64(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, parent = operands(op, 9, 0), np.arange(-1, 8)
    monkeypatch.setattr(triton_support, "on_gpu", lambda device: True)
    monkeypatch.setattr(triton_support, "capability", lambda device: 90)
    narrow = [x.float() for x in given]
    for taken, impl in ((narrow, "triton"), (given, "torch")):
        assert torch.equal(run(op, taken, parent, impl="auto")[0], run(op, taken, parent, impl=impl)[0])
    with pytest.raises(UnsupportedImplementationError, match="float64"):
        run(op, [*narrow[:-1], given[-1]], parent)


def test_keys_that_no_program_holds_raise() -> None:
    heads = torch.zeros(3, 1, 264)
    with pytest.raises(UnsupportedImplementationError, match="at most 256 values, got 264"):
        run("linear_attention", [heads, heads, heads, heads[..., 0]], [-1, 0, 1])
