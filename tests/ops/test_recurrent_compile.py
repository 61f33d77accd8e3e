"""The recurrent Triton kernels as their launchers have them compiled: as in the report, and once for all trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from compile_case import Case
from compile_recurrent import chunks_case, conv_case, pairs_case, scan_cases
from compile_report import signature_of
from recurrent_cases import random_tree

from fastreader.ops.causal_conv.triton import causal_conv_triton
from fastreader.ops.recurrent import ScanPlan
from fastreader.ops.recurrent.chains import nearest_ancestors
from fastreader.ops.recurrent.triton import SCANS

pytestmark = pytest.mark.compile
HEADS, SIZE = 16, 64  # heads of values, two for each of keys; size of keys and values
CASES = {  # for sm_80, as which a device that is no GPU counts
    "linear_attention": [pairs_case(80, "linear", SIZE, torch.float32), chunks_case(80, "linear", SIZE, torch.float32)],
    "gated_delta_rule": [pairs_case(80, "delta", SIZE, torch.float32), chunks_case(80, "delta", SIZE, torch.float32)],
    "kimi_delta_rule": [
        *(pairs_case(80, "channels", SIZE, torch.float32), chunks_case(80, "channels", SIZE, torch.float32)),
    ],
    "selective_scan": [next(scan_cases(80, torch.float32, SIZE))],
    "linear_recurrence": [[*scan_cases(80, torch.float32, SIZE)][1]],
    "causal_conv": [conv_case(80, torch.float32, SIZE, bare=True)],
}


def launch(op: str, size: int, seed: int) -> None:
    """Launch an op over a random tree."""
    parent = random_tree(np.random.default_rng(seed), size, 0.1)
    zeros = torch.zeros
    if op == "causal_conv":
        ancestors = torch.from_numpy(nearest_ancestors(parent, 3))
        causal_conv_triton(zeros(size, SIZE), zeros(SIZE, 4), ancestors, None, None)
        return
    plan = ScanPlan(parent, np.array([size - 1]), torch.device("cpu"))
    query, value, gate = zeros(size, HEADS // 2, SIZE), zeros(size, HEADS, SIZE), zeros(size, HEADS)
    operands = {
        "linear_attention": (query, query, value, gate),
        "gated_delta_rule": (query, query, value, gate, gate),
        "kimi_delta_rule": (query, query, value, value, gate),
        "selective_scan": (zeros(size, SIZE), zeros(size, SIZE), zeros(SIZE, 16), zeros(size, 16), zeros(size, 16)),
        "linear_recurrence": (zeros(size, SIZE), zeros(size, SIZE)),
    }[op]
    SCANS[op.replace("kimi", "gated")](*operands, plan, initial=None)


@pytest.mark.parametrize("op", CASES)
def test_another_tree_compiles_nothing(asked: dict[str, Any], op: str) -> None:
    for seed, size in enumerate((64, 1, 16, 17, 100)):
        launch(op, size, seed)
        assert len(asked) == len(CASES[op])


@pytest.mark.parametrize("op", CASES)
def test_the_report_compiles_what_the_launcher_does(asked: dict[str, Any], op: str) -> None:
    launch(op, 100, 0)
    for request, case in zip(asked.values(), CASES[op], strict=True):
        compare(request, case)


def compare(request: dict[str, Any], case: Case) -> None:
    types, constants, aligned = signature_of(case)
    assert request["signature"] == types
    assert request["constants"] == constants
    assert {path for path, attributes in request["configs"][0].items() if attributes} == set(aligned)
    assert all(request[name] == value for name, value in case.options.items())
