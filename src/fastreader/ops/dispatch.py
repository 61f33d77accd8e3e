"""Choose the implementation that serves a call: the one place that checks `impl`."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from torch import Tensor

from fastreader.errors import UnsupportedImplementationError
from fastreader.ops import triton_support

IMPLEMENTATIONS = ("auto", "reference", "torch", "cpu", "triton", "flash", "fla")

# The implementation that earlier calls of "auto" got, by the op and all that its checks and its choice depend on. The
# layers of a pass call an op with similar operands, and each check takes microseconds. Calls that record gradients are
# not kept.
SERVED: dict[tuple[Hashable, ...] | None, str] = {}


def choose(
    op: str,
    impl: str,
    tensor: Tensor,
    *,
    cpu: Callable[[], str | None] | None = None,
    triton: Callable[[], str | None] | None = None,
    flash: Callable[[], str | None] | None = None,
    fla: Callable[[], str | None] | None = None,
    torch: bool = True,
) -> str:
    """Return the implementation that serves a call: the named one, or for "auto" the kernel of the tensor's device.

    Args:
        op: name of the op, for messages.
        impl: one of `IMPLEMENTATIONS`. "auto" falls back to PyTorch, or to the reference, if the kernel cannot run.
        tensor: an operand; its device decides for "auto".
        cpu, triton, flash, fla: return why the kernel cannot take these operands here, or None. None for an op
            without the kernel.
        torch: whether the op has a PyTorch implementation.

    Raises:
        UnsupportedImplementationError: if `impl` is unknown, or the named implementation cannot run.
    """
    kernels = {"cpu": cpu, "triton": triton, "flash": flash, "fla": fla}
    if impl == "auto":
        device = "triton" if triton_support.on_gpu(tensor.device) else "cpu"
        kernel = kernels[device]
        return device if kernel is not None and kernel() is None else "torch" if torch else "reference"
    if impl not in IMPLEMENTATIONS:
        raise UnsupportedImplementationError(f"{op}: impl must be one of {', '.join(IMPLEMENTATIONS)}, got {impl!r}")
    if impl in kernels or (impl == "torch" and not torch):
        kernel = kernels.get(impl)
        why = kernel() if kernel is not None else "the op has no such implementation"
        if why is not None:
            raise UnsupportedImplementationError(f"{op}: impl {impl!r} cannot run here: {why}")
    return impl
