"""The ways that `compare.py` runs side by side: the problem of each op, and its implementations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from op_cases import SIZE, AttentionCase, attention_case, head_case, linear_case
from torch import Tensor

from fastreader.ops import extension, linear_logprob, tree_attention
from fastreader.ops.linear import linear, prepare

Way = Callable[[], Tensor]


@dataclass(frozen=True)
class Contest:
    """One problem solved in several ways.

    Attributes:
        name: name in the row of results.
        flops: useful operations.
        ways: functions by name.
        expected: the result, or its first rows.
        tolerance: largest allowed difference from it.
    """

    name: str
    flops: float
    ways: dict[str, Way]
    expected: Tensor
    tolerance: float


def attention(workload: str, tokens: Path | None) -> Contest:
    """Return the contest of one layer of SmolLM2-135M's attention over a packed tree."""
    case = attention_case(workload, torch.bfloat16, tokens)
    scale, narrow = SIZE**-0.5, (case.query, case.key, case.value)
    wide = case.query.float(), case.key.float(), case.value.float()

    def ours(impl: str, inputs: tuple[Tensor, ...], input_precision: str | None = None) -> Way:
        def run() -> Tensor:
            options = {"impl": impl, "input_precision": input_precision}
            out = tree_attention(*inputs, case.subtree_end, scale=scale, plan=case.plan, **options)
            assert isinstance(out, Tensor)
            return out

        return run

    ways = {"sdpa per segment": ours("torch", narrow), "flex_attention compiled": _flex(case, scale)}
    if extension.why_missing() is None:
        ways |= {
            "ours": ours("cpu", narrow),
            "ours bf16x3": ours("cpu", wide, "bf16x3"),
            "ours fp32": ours("cpu", wide),
        }
    return Contest(f"tree_attention {case.name}", case.flops, ways, ours("torch", wide)(), 0.05)


def _flex(case: AttentionCase, scale: float) -> Way:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    subtree_end, count = case.subtree_end, len(case.subtree_end)

    def visible(_batch: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (column <= row) & (row < subtree_end[column])

    mask = create_block_mask(visible, None, None, count, count, device="cpu")
    query, key, value = (t.transpose(0, 1)[None].contiguous() for t in (case.query, case.key, case.value))
    compiled = torch.compile(flex_attention)

    def run() -> Tensor:
        out = compiled(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)
        return out[0].transpose(0, 1)

    return run


def logprob(rows: int) -> Contest:
    """Return the contest of SmolLM2-135M's LM head at `rows` positions."""
    hidden, weight, target, flops = head_case(torch.bfloat16, rows)

    def full() -> Tensor:
        return F.log_softmax((hidden @ weight.T).float(), dim=-1).gather(1, target[:, None])[:, 0]

    def chunked() -> Tensor:
        parts = []
        for low in range(0, len(hidden), 512):
            some = slice(low, low + 512)
            logits = (hidden[some] @ weight.T).float()
            parts.append(logits.gather(1, target[some, None])[:, 0] - torch.logsumexp(logits, -1))
        return torch.cat(parts)

    ways: dict[str, Way] = {"full logits": full, "chunked logits": chunked}
    if extension.why_missing() is None:
        wide = hidden.float()
        ways["ours"] = lambda: linear_logprob(hidden, weight, target, impl="cpu")
        ways["ours bf16x3"] = lambda: linear_logprob(wide, weight, target, input_precision="bf16x3", impl="cpu")
    few = slice(0, 256)
    expected = linear_logprob(hidden[few].float(), weight.float(), target[few], impl="torch")
    return Contest(f"linear_logprob {rows}", flops, ways, expected, 0.1)


def layers(rows: int, shape: tuple[int, int]) -> Contest:
    """Return the contest of one linear layer: bfloat16 or float32 inputs, weights packed beforehand, and torch.mm."""
    wide, weight, flops = linear_case(rows, shape)
    narrow, transposed = wide.bfloat16(), weight.T
    ways: dict[str, Way] = {
        "torch.mm": lambda: torch.mm(narrow, transposed),
        "torch.mm, rounding inputs and widening": lambda: torch.mm(wide.bfloat16(), transposed).float(),
    }
    if extension.why_missing() is None:
        fast, high = prepare(weight, "bf16"), prepare(weight, "bf16x3")
        ways["ours"] = lambda: linear(narrow, fast)
        ways["ours, float32 inputs"] = lambda: linear(wide, fast)
        ways["ours high"] = lambda: linear(wide, high, precision="bf16x3")
    expected = linear(wide, weight, impl="reference")
    tolerance = 2.0**-7 * float(expected.abs().max())  # torch.mm rounds its result to bfloat16
    return Contest(f"linear {rows} x {shape[0]} -> {shape[1]}", flops, ways, expected, tolerance)
