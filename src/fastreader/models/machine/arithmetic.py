"""Choose a reader's device, storage type and arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal, cast

import torch

from fastreader.core.checks import check_choice, expect, rejecting
from fastreader.models.machine.product_rates import Products, choose

Precision = Literal["fast", "high", "exact"]
PRECISIONS: tuple[Precision, ...] = ("fast", "high", "exact")
_SHORT_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, long) for long, short in _SHORT_NAMES.items() for name in (long, short)
}


@dataclass(frozen=True)
class Arithmetic:
    """Device, storage type and precision of a reader.

    Attributes:
        device: of the weights; of several, the first that is not the CPU.
        dtype: storage type of the weights.
        precision: of the products: "fast", operands at worst in bfloat16; "high", at worst as sums of two bfloat16
            terms; "exact", float32 (float64 if the weights are). Accumulation and everything else is float32.
        reason: why this precision and these products were chosen, one line.
        products: how linear layers multiply, see `models.products`.
        formats: of weights that keep the integers of their GGUF file, as the file names them.
        devices: of the weights, if the model is on several.
        deterministic: whether sums have an order that does not depend on the other sequences of a pass.
    """

    device: torch.device
    dtype: torch.dtype
    precision: Precision
    reason: str
    products: Products = "torch"
    deterministic: bool = False
    formats: tuple[str, ...] = ()
    devices: tuple[torch.device, ...] = ()

    @cached_property
    def where(self) -> str:
        """The devices of the weights, in words."""
        return " + ".join(map(str, self.devices or (self.device,)))

    @cached_property
    def stored(self) -> str:
        """How weights are stored, in words: their type, or the formats of their file."""
        return " + ".join(self.formats) or str(self.dtype).removeprefix("torch.")


@cache
def cpu_flags() -> frozenset[str]:
    """Return this CPU's instruction sets as /proc/cpuinfo names them, or nothing without that file."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return frozenset(line.split(":", 1)[1].split())
    return frozenset()


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the device with that name, where "auto" is the current CUDA device if there is one, else the CPU.

    Raises:
        InputError: if this machine has no such device.
    """
    if device == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    with rejecting(f"device: expected 'auto', 'cpu' or 'cuda[:n]', got {device!r}", RuntimeError):
        resolved = torch.device(device)
    if resolved.type == "cuda":
        seen = torch.cuda.is_available()
        expect(seen, "device", f"the CPU, since torch {torch.__version__} sees no CUDA device", device)
        count = torch.cuda.device_count()
        devices = f"one of the {count} CUDA devices, cuda:0 to cuda:{count - 1}"
        expect((resolved.index or 0) < count, "device", devices, device)
    return resolved


def resolve(
    device: str | torch.device,
    dtype: str | torch.dtype,
    precision: str,
    checkpoint: torch.dtype,
    products: str = "auto",
) -> Arithmetic:
    """Choose device, storage and arithmetic.

    Weights are stored as in the checkpoint unless `dtype` names another type. On a CPU, products are those that are
    fastest there and keep the precision's promise; float64 weights are always multiplied in float64.

    Args:
        device: "auto", "cpu", "cuda", ... or a torch.device.
        dtype: "auto", "bfloat16", "float16", "float32", "float64" or a torch.dtype.
        precision: "fast", "high" or "exact".
        checkpoint: type of the stored weights.
        products: "auto", or how linear layers multiply, see `models.products.choose`.

    Raises:
        InputError: if a name is unknown, or this machine has no such device.
    """
    check_choice("precision", precision, PRECISIONS)
    resolved = resolve_device(device)
    asked = dtype if isinstance(dtype, torch.dtype) else _DTYPES.get(dtype)
    expect(asked is not None or dtype == "auto", "dtype", f"'auto', 'file' or one of {', '.join(_DTYPES)}", dtype)
    stored = asked or checkpoint
    if stored == torch.float64:
        return Arithmetic(resolved, stored, "exact", "weights are float64")
    if resolved.type != "cpu":
        own: Products = "bf16" if precision == "fast" else "bf16x3" if precision == "high" else "torch"
        expect(products in ("auto", own), "products", f"'auto' on {resolved}", products)
        return Arithmetic(resolved, stored, cast(Precision, precision), "as requested", own)
    chosen, reason = choose(precision, products)
    if chosen == "torch":  # float32, since PyTorch's bfloat16 products would also round what they return
        return Arithmetic(resolved, stored, "exact", reason, chosen)
    return Arithmetic(resolved, stored, cast(Precision, precision), reason, chosen)
