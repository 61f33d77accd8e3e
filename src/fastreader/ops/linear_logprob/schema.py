"""fastreader::linear_logprob for torch.library: its signature, and shapes without data.

The CPU kernel is registered by the C++ extension (csrc/linear_logprob.cpp).
"""

from __future__ import annotations

import torch
from torch import Tensor

LIBRARY = torch.library.Library("fastreader", "FRAGMENT")  # type: ignore[no-untyped-call]
LIBRARY.define(  # type: ignore[no-untyped-call]
    "linear_logprob(Tensor hidden, Tensor weight, Tensor target, Tensor? bias, Tensor? labels, float scale, "
    "float? softcap, bool split, str isa) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.register_fake("fastreader::linear_logprob", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _fake(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    labels: Tensor | None,
    scale: float,
    softcap: float | None,
    split: bool,
    isa: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows = hidden.shape[0]
    count = 0 if labels is None else labels.shape[0]
    floats = [hidden.new_empty(rows, dtype=torch.float32) for _ in range(3)]
    label_logprob = hidden.new_empty((rows, count), dtype=torch.float32)
    return floats[0], floats[1], floats[2], hidden.new_empty(rows, dtype=torch.int64), label_logprob
