"""Damaged operands and tables straight into the C++ ops: an error, or a result. Never memory that is not theirs.

The ops are reachable as `torch.ops.fastreader`, past the Python checks, and tables live as long as a tree. So each op
checks every index that it uses as one. `make sanitize` runs this file with AddressSanitizer, which ends the process at
the first access outside an operand; an ordinary build only shows crashes.
"""

from __future__ import annotations

import pytest
import torch
from cpu_cases import available, quantised, random_case
from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fastreader.ops.causal_conv  # defines its op, as the next ones do
import fastreader.ops.decoder_step
import fastreader.ops.experts
import fastreader.ops.pointwise
import fastreader.ops.recurrent  # noqa: F401
from fastreader.ops import extension
from fastreader.ops.tree_attention.cpu import query_block
from fastreader.ops.tree_attention.plan import AttentionPlan

pytestmark = pytest.mark.skipif(not available(), reason=f"no C++ extension: {extension.why_missing()}")

OPS = torch.ops.fastreader
SEEDS = st.integers(0, 2**31 - 1)
EXTREMES = (-(2**31), -(2**31) + 1, -65, -33, -32, -2, -1, 0, 1, 2, 31, 32, 33, 64, 1000, 2**31 - 33, 2**31 - 1)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype)


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def tree_attention(seed: int, isa: str) -> list:
    (query, key, value), subtree_end, query_node, options = random_case(seed)
    count = len(key)
    nodes = torch.arange(count) if query_node is None else query_node
    positions = options.get("query_positions"), options.get("key_positions")
    window = options.get("window")
    plan = AttentionPlan(subtree_end.numpy(), nodes.numpy(), *(None if p is None else p.numpy() for p in positions))
    schedule = plan.schedule(window, query_block(query.shape[1] // key.shape[1]), 64, None)
    mode = ("float32", "bfloat16")[seed % 2]
    heads = query.shape[1]
    sinks = normal(heads) if seed // 2 % 2 else None
    slopes = normal(heads) if seed // 4 % 2 and all(p is not None for p in positions) else None
    return [
        *quantised(mode, query, key, value),
        *plan.slots.tensors,
        nodes,
        *positions,
        *schedule.tensors,
        *(0.125, window, options.get("softcap"), sinks, slopes, None, True, isa),
    ]


def decode_attention(seed: int, isa: str) -> list:
    keys, values = [normal(7, 2, 8), normal(70, 2, 8)], [normal(7, 2, 5), normal(70, 2, 5)]
    ranges = int32(0, 2, 3), int32(0, 1, 1), int32(0, 3, 0), int32(7, 70, 66)
    sinks = normal(4) if seed % 2 else None
    offset, slopes = (int32(-5, -9, -70), normal(4)) if seed // 2 % 2 else (None, None)
    return [normal(2, 4, 8), keys, values, *ranges, offset, 0.3, None, sinks, slopes, isa]


def linear_logprob(seed: int, isa: str) -> list:
    tokens = torch.tensor([0, 39, 7]), normal(40), torch.tensor([39, 0])
    return [normal(3, 20), normal(40, 20), *tokens, 1.0, None, None, 0, isa]


def packed(width: int, depth: int, isa: str) -> Tensor:
    return OPS.linear_pack([normal(width, depth)], None, isa)


def linear(seed: int, isa: str) -> list:
    return [normal(5, 20), packed(40, 20, isa), 40, normal(40), None, "float32", isa]


def linear_add_(seed: int, isa: str) -> list:
    return [normal(5, 40), normal(5, 20), packed(40, 20, isa), normal(40), None, "float32", isa]


def linear_gated(seed: int, isa: str) -> list:
    return [normal(5, 20), packed(128, 20, isa), 128, normal(128), "silu", seed % 2 == 0, None, "float32", isa]


def linear_pack(seed: int, isa: str) -> list:
    return [[normal(5, 20), normal(32, 20)], None, isa]


def rms_norm(seed: int, isa: str) -> list:
    return [normal(5, 20), normal(20), 1e-5, seed % 2 == 0, isa]


def rotary(seed: int, isa: str) -> list:
    return [normal(5, 2, 20), normal(5, 8), normal(5, 8), seed % 3 == 0, seed % 2 == 0, isa]


def gate(seed: int, isa: str) -> list:
    return [normal(5, 20), normal(5, 20), "silu", seed % 2 == 0, isa]


def decoder_layer_in(seed: int, isa: str) -> list:
    rows = (3, 300)[seed % 2]
    angles = normal(rows, 6), normal(rows, 6)
    return [
        *(normal(rows, 20), normal(20), 1e-5, packed(32, 20, isa), normal(32), normal(8), normal(8), 1e-5),
        *angles,
        *(2, 1, 8, False, None, "float32", isa),
    ]


def decoder_layer_out_(seed: int, isa: str) -> list:
    rows = (3, 300)[seed % 2]
    return [
        *(normal(rows, 20), normal(rows, 16), packed(20, 16, isa), normal(20), normal(20), 1e-5),
        *(packed(64, 20, isa), 32, normal(64), "silu", packed(20, 32, isa), normal(20), None, "float32", isa),
    ]


def decoder_step_(seed: int, isa: str) -> list:
    rows, layers = (3, 40)[seed % 2], 2
    weights = packed(32, 20, isa), packed(20, 16, isa), packed(64, 20, isa), packed(20, 32, isa)
    biases, head_norms = (normal(32), normal(20), normal(64), normal(20)), (normal(8), normal(8))
    ranges = int32(*range(0, 2 * rows + 1, 2)), int32(*[0, 1] * rows), int32(*[0] * 2 * rows), int32(*[9, 5] * rows)
    return [
        *(normal(rows, 20), [normal(20)] * 2 * layers, 1e-5, [*weights] * layers, [*biases] * layers),
        *([*head_norms] * layers, 1e-5, normal(rows, 6), normal(rows, 6), [1, 0], 2, 1, 8, 32, "silu"),
        *([normal(n, 1, 8, dtype=torch.bfloat16) for _ in range(layers)] for n in (9, 9, rows + 5, rows + 5)),
        *(torch.arange(rows) + 2, [*ranges], [0, 0], 0.3, None, None, "float32", isa),
    ]


def experts(seed: int, isa: str) -> list:
    tokens = (1, 3, 70)[seed % 3]
    gating = ("silu", []) if seed // 3 % 2 else ("clamped", [1.7, 0.5])
    biases = [normal(64), normal(20)] * 3 if seed // 6 % 2 else []
    return [
        *(normal(tokens, 20), torch.randint(0, 4, (tokens, 2)), normal(tokens, 2)),
        *([packed(64, 20, isa) for _ in range(3)], [packed(20, 32, isa) for _ in range(3)], biases, 64),
        *(*gating, None, "float32", isa),
    ]


def scan_chains(seed: int, isa: str) -> list:
    gate = -normal(7, 4, 6).abs() if seed % 2 else -normal(7, 4).abs()
    beta = normal(7, 4) if seed // 2 % 2 else None
    chains = torch.tensor(
        [[0, 2, 0, 0, -1], [6, 1, -1, -1, 0], [2, 3, 0, -1, 1], [5, 1, -1, -1, -1]], dtype=torch.int32
    )
    levels = [0, 2, 1, 2, 2, 0]
    return [
        *(normal(7, 2, 6), normal(7, 2, 6), normal(7, 4, 5), gate, beta, normal(1, 4, 6, 5), chains, levels, 2),
        *(0.3, 1e-6 if seed // 4 % 2 else None, isa),
    ]


def causal_conv(seed: int, isa: str) -> list:
    ancestors = torch.tensor([[-2, -3], [0, -2], [1, 0], [1, 0], [-1, -1]])
    return [normal(5, 20), normal(20, 3), ancestors, normal(20), normal(1, 2, 20), seed % 2 == 0, isa]


def tree_slots(seed: int, isa: str) -> list:
    return [random_case(seed)[1]]


CASES = {
    case.__name__: case
    for case in (
        *(tree_attention, decode_attention, linear_logprob, linear, linear_add_, linear_gated, linear_pack),
        *(rms_norm, rotary, gate, decoder_layer_in, decoder_layer_out_, decoder_step_, scan_chains, causal_conv),
        *(experts, tree_slots),
    )
}


def damaged(data: st.DataObject, value):
    """Return another value of one argument: other indices, another size, type or layout, or none at all."""
    if isinstance(value, list) and not value:
        return data.draw(st.sampled_from([None, [0.5], [normal(3)], [normal(64), None]]), label="list")
    if isinstance(value, list):
        place = data.draw(st.integers(0, len(value) - 1), label="part")
        return [damaged(data, part) if i == place else part for i, part in enumerate(value)]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return data.draw(st.sampled_from([None, True, False, "bf16x3", "silu", value]), label="value")
    if isinstance(value, int):
        return data.draw(st.sampled_from([*EXTREMES, -(2**63), 2**63 - 1, value + 1, value - 1]), label="integer")
    if isinstance(value, float):
        return data.draw(st.sampled_from([float("nan"), float("inf"), -1.0, 0.0, 1e300]), label="number")
    ways = ["shorter", "longer", "empty", "flat", "more axes", "other type", "strided", "expanded"]
    integers = not value.is_floating_point() and value.dtype != torch.uint8
    way = data.draw(st.sampled_from(["indices"] * 6 + ways if integers else ways), label="damage")
    if way == "indices" and value.numel():
        value = value.clone()
        for _ in range(data.draw(st.integers(1, 3), label="how many")):
            place = data.draw(st.integers(0, value.numel() - 1), label="place")
            entry = value.view(-1)[place]
            extreme = data.draw(st.sampled_from(EXTREMES), label="index")
            near = bool(data.draw(st.booleans(), label="added")) and value.dtype != torch.bool
            entry.copy_(torch.tensor((int(entry) + extreme) % 2**31 if near else extreme).to(value.dtype))
        return value
    changes = {
        "shorter": lambda: value[: max(len(value) - 1, 0)].clone(),
        "longer": lambda: torch.cat([value, value])[: len(value) + 1].clone(),
        "empty": lambda: value[:0].clone(),
        "flat": lambda: value.reshape(-1),
        "more axes": lambda: value[None],
        "other type": lambda: value.to(
            data.draw(st.sampled_from([torch.float64, torch.int64, torch.int32, torch.float32]))
        ),
        "strided": lambda: torch.stack([value, value], dim=-1)[..., 0],
        "expanded": lambda: value[:1].expand(len(value) + 40 if len(value) else 0, *value.shape[1:]),
    }
    return changes[way]() if way in changes and value.dim() else value


@pytest.mark.parametrize("op", CASES)
@fuzz(80, 3000)
@given(st.data())
@pytest.mark.long(keep=4)
def test_damaged_operands(op, data):
    isa = data.draw(st.sampled_from(available()), label="instruction set")
    seed = data.draw(SEEDS, label="case")
    torch.manual_seed(seed)
    arguments = CASES[op](seed, isa)
    torch.manual_seed(seed)
    sound = [a.clone() if isinstance(a, Tensor) else a for a in arguments]  # lists are of what may be written twice
    getattr(OPS, op)(*sound)
    for _ in range(data.draw(st.integers(1, 2), label="how many arguments")):
        place = data.draw(st.integers(0, len(arguments) - 1), label="argument")
        arguments[place] = damaged(data, arguments[place])
    try:
        getattr(OPS, op)(*arguments)
    except (RuntimeError, ValueError, TypeError) as error:
        assert str(error)
    except IndexError as error:
        pytest.fail(f"PyTorch, not the op, rejects the operand: {error}")
