"""The one place for tolerances of the ops' tests: the allowed distance from float64."""

from __future__ import annotations

import torch
from torch import Tensor

_EAGER = 2.0  # times the error of the eager computation in the same dtype, since the order of roundings differs


def assert_as_exact_as_eager(
    name: str, actual: Tensor, eager: Tensor, golden: Tensor, operands: Tensor | None = None
) -> None:
    """Bound the largest error of `actual` by that of `eager`, both against the float64 `golden`.

    A few units in the last place of the largest value are always allowed, since eager may be exact by luck. If the
    result is a difference of `operands`, the largest of them counts. If golden is infinite, actual must be the same
    infinity; actual has no NaN.
    """
    assert actual.shape == golden.shape, f"{name}: shape {list(actual.shape)}, expected {list(golden.shape)}"
    finite = golden.isfinite()
    assert torch.equal(actual.double()[~finite], golden[~finite]), f"{name}: differs from an infinite golden value"
    if not finite.any():
        return
    wanted = golden[finite]
    error = (actual.double()[finite] - wanted).abs().max().item()
    largest = max(float(t.abs().max()) for t in (wanted, wanted if operands is None else operands))
    unit = torch.finfo(eager.dtype).eps * max(largest, 1.0)
    eager_error = (eager.double()[finite] - wanted).abs().max().item()
    limit = _EAGER * eager_error + 2 * unit
    assert error <= limit, f"{name}: largest error {error:.3g}, allowed {limit:.3g} (eager {eager_error:.3g})"
