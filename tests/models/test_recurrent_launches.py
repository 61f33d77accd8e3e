"""What the recurrences of a pass launch and copy on a GPU, followed on a pretended one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "gpu"))

from pretended import META, Launches, launching, pretended

from fastreader.models.machine.memory import recurrent_bytes_per_token
from fastreader.models.passes.recurrent_states import PathStates, RecurrentStates
from fastreader.ops.recurrent import (
    gated_delta_rule,
    linear_attention,
    linear_recurrence,
    selective_scan,
    triton_chunks,
)
from fastreader.ops.recurrent.triton_pairs import pairs

# A header, two bodies, and two candidates after each: three levels.
PARENT = np.array([-1, 0, 1, 2, 2, 1, 5, 5])
KEPT = np.array([2, 7])
LEVELS = 3


def on_meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device=META)


def followed(states: PathStates, tokens: int) -> list[list[str]]:
    """Return the launches of a convolution and of each recurrence, at their second use in a pass."""
    heads, rows = on_meta(tokens, 2, 16), on_meta(tokens, 32)
    scans = {
        linear_attention: (heads, heads, heads, on_meta(tokens, 2)),
        gated_delta_rule: (heads, heads, heads, on_meta(tokens, 2), on_meta(tokens, 2)),
        selective_scan: (rows, rows, on_meta(32, 4), on_meta(tokens, 4), on_meta(tokens, 4)),
        linear_recurrence: (rows, rows),
    }
    calls = [lambda: states.convolve(0, rows, on_meta(32, 4), None)]
    calls += [lambda op=op, given=given: states.scan(0, op, *given) for op, given in scans.items()]
    found = []
    with pretended():
        for again in (False, True):
            states.calls.clear()
            for call in calls:
                launches = Launches()
                with launching(launches):
                    call()
                if again:
                    assert not launches.uploads
                    found.append([name for name, _ in launches.calls])
    return found


@pytest.fixture(autouse=True)
def unpoisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `torch.empty` launch nothing, also in a session where the tests of the ops fill what it returns."""
    monkeypatch.setattr(torch, "empty", torch._C._VariableFunctions.empty)


def test_one_launch_a_level_and_no_copy_or_wait() -> None:
    convolution, *scans = followed(PathStates(PARENT, META, kept=RecurrentStates(KEPT)), len(PARENT))
    assert convolution[0] == "causal_conv_kernel" and convolution.count("causal_conv_kernel") == 1
    assert scans == [
        ["pairs_kernel", *["chunks_kernel"] * LEVELS],
        ["pairs_kernel", *["chunks_kernel"] * LEVELS],
        ["selective_scan_kernel"] * LEVELS,
        ["linear_recurrence_kernel"] * LEVELS,
    ]


def test_texts_that_are_continued_wait_for_nothing() -> None:
    first = PathStates(PARENT, META, kept=RecurrentStates(KEPT))
    followed(first, len(PARENT))
    _, *scans = followed(PathStates(np.array([-2, -3]), META, first.kept, RecurrentStates(np.arange(2))), 2)
    assert [len(names) for names in scans] == [2, 2, 1, 1]


def test_the_pairs_of_a_pass_take_what_is_planned():
    heads, gate = on_meta(7, 3, 16), on_meta(7, 3)
    with pretended(), launching():
        made = pairs(heads, heads, gate, gate, on_meta(1, 2), chunk=triton_chunks.CHUNK)
    assert sum(t.nbytes for t in made) == 7 * recurrent_bytes_per_token([], 0, 3)
