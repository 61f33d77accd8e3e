"""The experts of a mixture in one call, against each expert's products one after the other."""

import pytest
import torch

from fastreader.errors import InputError
from fastreader.ops import extension
from fastreader.ops.decoder_layer import Weight
from fastreader.ops.experts import CLAMPED, Gating, PackedExperts
from fastreader.ops.linear import BlockTensor, BlockWeight, linear, linear_gated, prepare

pytestmark = pytest.mark.skipif(extension.why_missing() is not None, reason="needs the C++ extension")
EXPERTS, SIZE, HALF = 5, 96, 64
GATINGS = [Gating("silu"), Gating("gelu_tanh"), Gating(CLAMPED, (1.7, 0.5))]


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def made(stored, precision, gating, bias, half=HALF):
    """Weights of the experts, and the op."""

    def weight(rows, columns, seed):
        if stored == "blocks":
            raw = torch.randint(0, 44, (rows, columns // 32 * 18), generator=torch.Generator().manual_seed(seed))
            found = BlockTensor(BlockWeight.pack(raw.to(torch.uint8), "Q4_0", columns))
        else:
            found = random(rows, columns, seed=seed).to(stored) / columns**0.5
        return Weight(prepare(found, precision), random(rows, seed=seed + 50) if bias else None)

    inner = [weight(2 * half, SIZE, seed) for seed in range(EXPERTS)]
    down = [weight(SIZE, half, 100 + seed) for seed in range(EXPERTS)]
    return inner, down, PackedExperts(inner, down, gating)


def one_by_one(rows, chosen, factors, inner, down, gating, precision):
    out = torch.zeros_like(rows)
    for expert, (first, second) in enumerate(zip(inner, down, strict=True)):
        for token, place in (chosen == expert).nonzero().tolist():
            row = rows[token : token + 1]
            if gating.activation == CLAMPED:
                between = gating(linear(row, first.packed, first.bias, precision=precision))
            else:
                between = linear_gated(row, first.packed, first.bias, activation=gating.activation, precision=precision)
            out[token] += factors[token, place] * linear(between, second.packed, second.bias, precision=precision)[0]
    return out


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gating", GATINGS)
@pytest.mark.parametrize(
    ("stored", "precision"),
    [
        (torch.bfloat16, "bf16"),
        (torch.float32, "bf16x3"),
        (torch.bfloat16, "float32"),
        (torch.float32, "int16"),
        ("blocks", "bf16"),
        ("blocks", "int16"),
        ("blocks", "float32"),
    ],
)
def test_it_computes_what_each_expert_does(stored, precision, gating, bias):
    inner, down, run = made(stored, precision, gating, bias)
    for tokens in (1, 3, 40, 200):
        rows, factors = random(tokens, SIZE, seed=tokens), random(tokens, 2, seed=tokens + 1)
        chosen = torch.stack([torch.randperm(EXPERTS + 1)[:2] for _ in range(tokens)])  # the last id names no expert
        got = run(rows, chosen, factors)
        want = one_by_one(rows, chosen, factors, inner, down, gating, precision)
        scale = want.abs().max() + 1e-3
        assert got.shape == want.shape and (got - want).abs().max() <= 1e-5 * scale
        token = tokens // 2  # whatever the other tokens are
        assert torch.equal(
            run(rows[token : token + 1], chosen[token : token + 1], factors[token : token + 1])[0], got[token]
        )


@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-5), ("bf16x3", 1e-4), ("bf16", 2e-2), ("int16", 1e-3)])
def test_sizes_that_fill_no_strip_against_float64(precision, bound):
    size, half, gating = 70, 45, Gating(CLAMPED, (1.7, 0.5))
    matrices = [
        (random(2 * half, size, seed=i) / size**0.5, random(size, half, seed=9 + i) / half**0.5) for i in range(3)
    ]
    first, second = ([Weight(prepare(pair[i], precision), None) for pair in matrices] for i in (0, 1))
    rows, factors = random(33, size, seed=5), random(33, 2, seed=6)
    chosen = torch.stack([torch.randperm(3)[:2] for _ in range(33)])
    want = torch.zeros(33, size, dtype=torch.float64)
    for token, place in torch.ones(33, 2).nonzero().tolist():
        inner, down = (matrix.double() for matrix in matrices[chosen[token, place]])
        want[token] += factors[token, place].double() * (gating(rows[token].double() @ inner.T) @ down.T)
    got = PackedExperts(first, second, gating)(rows, chosen, factors)
    assert (got - want).abs().max() <= bound * want.abs().max()


@pytest.mark.parametrize("gating", GATINGS[1:])
def test_many_rows_are_those_of_fewer(gating):
    """However many of them an expert takes at once."""
    _, _, run = made(torch.bfloat16, "bf16", gating, bias=True)
    tokens = 7000
    rows, factors = random(tokens, SIZE), random(tokens, 3, seed=1)
    generator = torch.Generator().manual_seed(2)
    uneven = torch.rand(tokens, EXPERTS, generator=generator) * torch.tensor([9.0, 1.0, 1.0, 0.1, 3.0])
    chosen = uneven.topk(3).indices
    parts = [run(*part) for part in zip(*(each.split(97) for each in (rows, chosen, factors)), strict=True)]
    assert torch.equal(run(rows, chosen, factors), torch.cat(parts))


def test_no_token_and_no_expert():
    _, _, run = made(torch.bfloat16, "bf16", GATINGS[0], bias=False)
    assert run(random(0, SIZE), torch.zeros(0, 2, dtype=torch.int64), random(0, 2)).shape == (0, SIZE)
    assert not run(random(3, SIZE), torch.full((3, 2), EXPERTS), random(3, 2)).any()


def test_bad_operands_are_named():
    inner, down, run = made(torch.bfloat16, "bf16", GATINGS[0], bias=False)
    rows, chosen, factors = random(3, SIZE), torch.zeros(3, 2, dtype=torch.int64), random(3, 2)
    for id_ in (-1, EXPERTS + 1):
        with pytest.raises(RuntimeError, match=f"ids from 0 to {EXPERTS}, got {id_}"):
            run(rows, chosen + id_, factors)
    with pytest.raises(RuntimeError, match=r"expected float32 \[T, E\]"):
        run(rows, chosen[:2], factors)
    with pytest.raises(RuntimeError, match=r"expected float32 \[T, E\]"):
        run(rows.double(), chosen, factors)
    with pytest.raises(RuntimeError, match="with E > 0"):
        run(rows[:, :0], chosen, factors)
    with pytest.raises(RuntimeError, match="packed for another size"):
        run(random(3, 2 * SIZE), chosen, factors)
    with pytest.raises(InputError, match="two weights of each expert"):
        PackedExperts(inner, down[:-1], GATINGS[0])
    with pytest.raises(InputError, match=r"\[2I, E\] and \[E, I\]"):
        PackedExperts(down, inner, GATINGS[0])
    with pytest.raises(InputError, match="activation"):
        PackedExperts(inner, down, Gating("relu"))
    with pytest.raises(InputError, match="I must be a multiple of 32, got 48"):
        made(torch.bfloat16, "bf16", GATINGS[0], bias=False, half=48)
