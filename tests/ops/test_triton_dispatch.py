"""Requests for Triton kernels that cannot run, and imports that must not load Triton."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fastreader.errors import UnsupportedImplementationError
from fastreader.ops import linear_logprob, merge_state, tree_attention


def test_on_the_cpu_each_op_raises_with_the_reason() -> None:
    pytest.importorskip("triton")
    heads = torch.zeros(3, 2, 16)
    with pytest.raises(UnsupportedImplementationError, match=r"tree_attention.*needs a CUDA device, got cpu"):
        tree_attention(heads, heads, heads, torch.full((3,), 3, dtype=torch.int32), scale=1.0, impl="triton")
    with pytest.raises(UnsupportedImplementationError, match=r"linear_logprob.*TRITON_INTERPRET=1"):
        linear_logprob(torch.zeros(2, 8), torch.zeros(5, 8), torch.zeros(2, dtype=torch.int64), impl="triton")
    lse = torch.zeros(3, 2)
    with pytest.raises(UnsupportedImplementationError, match=r"merge_state.*needs a CUDA device"):
        merge_state(heads, lse, heads, lse, impl="triton")
    with pytest.raises(UnsupportedImplementationError, match=r"merge_state: impl must be one of"):
        merge_state(heads, lse, heads, lse, impl="fast")


def test_importing_the_ops_does_not_import_triton() -> None:
    program = "import sys, torch; before = 'triton' in sys.modules; import fastreader, fastreader.ops; "
    program += "sys.exit(not before and 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
