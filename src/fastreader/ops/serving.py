"""Report the implementation that `impl="auto"` picks for each operator on each kind of device."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from fastreader.ops import extension
from fastreader.ops.tree_attention import flash

_UNSERVED = "no kernel takes them"
RAN_ON_GPUS = {
    "kernels, passes, generation": "compared with float64 and transformers on an NVIDIA H200 (2026-11-27, torch 2.11)",
    "CUDA graphs": "the same device and day; FASTREADER_CUDA_GRAPHS=0 turns them off",
    "a reader from a GGUF file": "compared with the CPU there, on real questions",
    'impl="flash"': "PyTorch's FlashAttention-2 there; flash-attn never",
    "recurrences by fla-core": "never run",
    "a cache of passages, weights of 4 or 8 bits": "never run",
    "several GPUs": "never run",
    "compute capabilities but 9.0": "compiled, never run",
}


@dataclass(frozen=True)
class Serving:
    """The implementation that `impl="auto"` picks on a device.

    Attributes:
        device: device type and, if it matters, dtypes.
        implementation: name, as `impl` takes it.
        why: reason, one sentence.
    """

    device: str
    implementation: str
    why: str


def serving() -> dict[str, list[Serving]]:
    """Return the implementations by device for each operator, or for operators that are served alike."""
    parts = "the ops it is made of"
    own_parts = [_cpu("cpu", parts), Serving("other devices, PyTorch's products", parts, _UNSERVED)]
    others = Serving("other dtypes and devices", "torch", _UNSERVED)
    own_operators = Serving("float64, and other devices", "torch", "PyTorch's own operators")
    by_name = Serving("cuda, by name only", "flash", f"{flash.engine()[0]}, over chains of the tree")
    generation = Serving("other dtypes and devices", "reference", "generation uses tree_attention there")
    return {
        "tree_attention": [_cpu(), _cuda(), by_name, others],
        "linear": [_cpu("cpu"), Serving("other devices", "torch", "PyTorch's own products")],
        "decoder_layer_in, decoder_layer_out": own_parts,
        "decoder_step": own_parts,
        "experts": own_parts,
        "linear_logprob": [_cpu(), _cuda(), others],
        "decode_attention": [_cpu(otherwise="reference"), _cuda(), generation],
        "rms_norm, rotary, gate": [_cpu("cpu in float32"), _cuda("float32"), own_operators],
        "gated_delta_rule, linear_attention, causal_conv": [_cpu("cpu in float32"), _cuda(), own_operators],
    }


def _cpu(device: str = "cpu (float32, bfloat16)", otherwise: str = "torch") -> Serving:
    """Return the implementation on the CPU, `otherwise` if the C++ extension is missing."""
    missing = extension.why_missing()
    if missing is not None:
        return Serving(device, otherwise, missing)
    return Serving(device, "cpu", f"C++ kernels, up to {extension.best_instruction_set()} on this machine")


def _cuda(dtypes: str = "float32, float16, bfloat16") -> Serving:
    """Return the implementation on a CUDA device for inputs of these types."""
    if importlib.util.find_spec("triton") is None:
        return Serving("cuda", "torch", "the triton package is not installed")
    return Serving(f"cuda ({dtypes})", "triton", "Triton kernels, from compute capability 8.0; torch below it")
