"""Triton kernels compiled ahead of time: no spills, shared memory in bounds, the right matrix instructions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from compile_report import (
    Case,
    attention_case,
    compile_case,
    default_cases,
    full_cases,
    join_case,
    logprob_case,
    pointwise_cases,
    signature_of,
)
from forests import attention_inputs, random_forest

pytestmark = pytest.mark.compile


@pytest.mark.parametrize("case", default_cases(), ids=str)
def test_kernel(case: Case) -> None:
    assert compile_case(case).faults() == []


@pytest.mark.parametrize("case", [attention_case(90, size, torch.bfloat16, packed=3) for size in (64, 128)], ids=str)
def test_loops_of_attention_on_hopper(case: Case) -> None:
    """A limited block costs at most 1.35 times a whole one, and neither loop copies through registers' addresses."""
    compiled = compile_case(case)
    assert compiled.faults() == []
    whole, limited, _ = compiled.loops[:3]
    assert limited.instructions <= 1.35 * whole.instructions
    assert whole.copies == limited.copies == 0
    assert case.options.get("maxnreg", 128) == 128 and (compiled.registers <= 128) == (case.constants["D"] == 64)


@pytest.mark.slow
@pytest.mark.parametrize("case", full_cases(), ids=str)
def test_every_kernel(case: Case) -> None:
    assert compile_case(case).faults() == []


def launch_attention(length: int, size: int, *, decode: bool = False, window: int | None = None) -> None:
    from fastreader.ops.tree_attention.triton import tree_attention_triton
    from fastreader.ops.tree_attention.triton_config import default_config

    subtree_end, positions = random_forest(length, length)
    query_node = random_forest(length, 2)[0] % length if decode else None
    inputs = attention_inputs(
        subtree_end, positions, dtype=torch.bfloat16, heads=(16, 16), size=size, query_node=query_node, window=window
    )
    rows = 1 if decode else 4096
    config = default_config(90, size, torch.bfloat16, rows, plain=window is None)
    tree_attention_triton(inputs.context(return_lse=decode), config=config, num_splits=3 if decode else 1)


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("window", [None, 16])
def test_another_tree_compiles_nothing(asked: dict[str, Any], decode: bool, window: int | None) -> None:
    launch_attention(64, 64, decode=decode, window=window)
    kernels = len(asked)
    assert kernels == (2 if decode else 1)  # with a split, the merge too
    for length in (1, 16, 17, 100, 256, 333):
        launch_attention(length, 64, decode=decode, window=None if window is None else length)
    assert len(asked) == kernels


def launch_logprob(rows: int, vocabulary: int, labels: int, num_splits: int) -> None:
    from fastreader.ops.linear_logprob.triton import default_config, linear_logprob_triton

    config = default_config(90, torch.bfloat16, 4096, capped=False)
    hidden, weight = torch.zeros(rows, 64, dtype=torch.bfloat16), torch.zeros(vocabulary, 64, dtype=torch.bfloat16)
    target = torch.zeros(rows + 1, dtype=torch.int64)[1:]  # 8 bytes off any wider alignment
    wanted = torch.zeros(labels, dtype=torch.int64)
    linear_logprob_triton(hidden, weight, target, labels=wanted, config=config, num_splits=num_splits)


def test_another_batch_compiles_nothing(asked: dict[str, Any]) -> None:
    launch_logprob(64, 1024, 4, 4)
    kernels = len(asked)
    assert kernels == 2  # with the one that joins the splits
    for rows, vocabulary, labels, num_splits in ((1, 1000, 1, 1), (16, 33, 16, 2), (300, 4096, 5, 64)):
        launch_logprob(rows, vocabulary, labels, num_splits)
    assert len(asked) == kernels


def test_the_report_compiles_what_the_launcher_does(asked: dict[str, Any]) -> None:
    launch_attention(100, 64)
    (request,) = asked.values()
    case = attention_case(90, 64, torch.bfloat16)
    types, constants, aligned = signature_of(case)
    assert request["signature"] == types
    assert request["constants"] == constants
    assert {path for path, attributes in request["configs"][0].items() if attributes} == set(aligned)
    assert request["num_warps"] == case.options["num_warps"]
    asked.clear()
    launch_logprob(100, 1024, 4, 4)
    for request, case in zip(
        asked.values(), (logprob_case(90, torch.bfloat16, stats=True), join_case(90)), strict=True
    ):
        types, _, _ = signature_of(case)
        assert request["signature"].keys() == types.keys()


def launch_pointwise(tokens: int) -> None:
    from fastreader.ops.pointwise.triton import gate_triton, rms_norm_triton, rotary_triton

    rms_norm_triton(torch.zeros(tokens, 576), torch.zeros(576), 1e-5, True)
    rotary_triton(torch.zeros(tokens, 8, 64), torch.zeros(tokens, 64), torch.zeros(tokens, 64), True)
    gate_triton(torch.zeros(tokens, 576), torch.zeros(tokens, 576), "silu", True)


def test_another_number_of_tokens_compiles_nothing(asked: dict[str, Any]) -> None:
    for tokens in (64, 1, 17, 1024):
        launch_pointwise(tokens)
        assert len(asked) == 3


def test_the_report_compiles_the_token_kernels_as_launched(asked: dict[str, Any]) -> None:
    launch_pointwise(64)
    cases = [
        c
        for c in pointwise_cases(90, torch.bfloat16, 576, 64)
        if not {"partial", "gelu", "of"} & set(c.name.split("-"))
    ]
    for request, case in zip(asked.values(), cases, strict=True):
        types, constants, aligned = signature_of(case)
        assert request["signature"] == types
        assert request["constants"] == constants
        assert {path for path, attributes in request["configs"][0].items() if attributes} == set(aligned)
        assert request["num_warps"] == case.options["num_warps"]
