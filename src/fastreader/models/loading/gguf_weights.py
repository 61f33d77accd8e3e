"""Write the integers of a GGUF file next to a converted model, and load models that keep them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fastreader.errors import MissingExtraError, ModelFileError
from fastreader.ops import extension
from fastreader.ops.linear import BlockTensor, BlockWeight
from fastreader.ops.linear.blocks import FORMATS

_FORMATS = "formats"  # its metadata: the format of each quantised weight, as JSON


def write(path: Path, model: nn.Module, file: Path) -> None:
    """Write the weights of a GGUF file with their integers, or nothing if none has a format of `FORMATS`.

    transformers may reorder rows of a file (of queries and keys, for its rotary embedding). So a weight is recognised
    by its values: it keeps its integers if a tensor of the file has the same rows in some order. Other weights are
    written in the shortest type that holds their values.

    Args:
        path: the GGUF file.
        model: what transformers made of it, in float32.
        file: of the converted model, with the integers.
    """
    from gguf import GGUFReader, quants
    from safetensors.torch import save_file

    weights = {name: p.detach() for name, p in model.named_parameters() if p.dim() == 2}
    signed = {(tuple(p.shape), _signature(_row_hashes(p))): name for name, p in weights.items()}
    tensors: dict[str, Tensor] = {}
    formats: dict[str, str] = {}
    for tensor in GGUFReader(path).tensors:
        kind = tensor.tensor_type
        if kind.name not in FORMATS or len(tensor.shape) != 2:
            continue
        raw = np.asarray(tensor.data)
        hashes = _row_hashes(torch.from_numpy(quants.dequantize(raw, kind)))
        shape = (raw.shape[0], int(tensor.shape[0]))
        name = signed.get((shape, _signature(hashes)))
        if name is None or name in formats:
            continue
        place = {value: row for row, value in enumerate(hashes)}
        order = [place[value] for value in _row_hashes(weights[name])]
        tensors[name], formats[name] = torch.from_numpy(np.ascontiguousarray(raw[order])), kind.name
    if not formats:
        return
    for name, parameter in model.named_parameters():
        if name not in tensors:
            tensors[name] = _shortest(parameter.detach()).contiguous()
    save_file(tensors, file, metadata={_FORMATS: json.dumps(formats)})


def _shortest(values: Tensor) -> Tensor:
    """Return float32 values in bfloat16 or float16 if that keeps their bits, else as they are."""
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal((short := values.to(dtype)).float(), values):
            return short
    return values


def _row_hashes(weight: Tensor) -> list[int]:
    return [hash(row.tobytes()) for row in weight.contiguous().numpy()]


def _signature(hashes: list[int]) -> int:
    """Return a number that does not depend on the order of the rows."""
    return hash(tuple(sorted(hashes)))


def why_not(device: torch.device) -> str | None:
    """Return why the kernels cannot multiply a file's integers on a device, or None."""
    return extension.why_missing() if device.type == "cpu" else f"the kernels for them run on a CPU, not on {device}"


def load(file: Path, config: Any, keep: bool = True) -> Any:
    """Return the model of a converted GGUF file, its weights float32 to transformers, none rounded to bfloat16.

    Args:
        file: of the converted model, as `write` wrote it.
        keep: hold quantised weights as `BlockTensor`s; else dequantise them.

    Raises:
        MissingExtraError: if dequantising needs the extra `gguf`, since the extension is missing.
        ModelFileError: if the file is damaged or lacks weights.
    """
    import transformers
    from accelerate import init_empty_weights
    from safetensors import SafetensorError, safe_open

    with init_empty_weights(include_buffers=False):  # no weight is allocated twice
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.tie_weights()  # a weight that is another one is not in the file
    try:
        with safe_open(file, framework="pt") as stream:
            formats = json.loads(stream.metadata()[_FORMATS])
            wanted = dict(model.named_parameters())
            if absent := sorted(wanted.keys() - set(stream.keys())):
                raise ModelFileError(f"{file}: lacks {len(absent)} weights of the model, {absent[0]} first")
            for name, parameter in wanted.items():
                value = _weight(stream.get_tensor(name), formats.get(name), parameter.shape[-1], keep)
                if value.shape != parameter.shape:
                    raise ModelFileError(
                        f"{file}: {name} is {list(value.shape)}, expected {list(parameter.shape)} by the config"
                    )
                owner, _, last = name.rpartition(".")
                setattr(model.get_submodule(owner), last, nn.Parameter(value, requires_grad=False))
    except (ModelFileError, MissingExtraError, torch.OutOfMemoryError):
        raise
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ModelFileError(f"{file}: damaged or truncated ({error})") from error
    model.tie_weights()
    if (file.parent / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(file.parent)
    return model.eval()


def _weight(stored: Tensor, name: str | None, depth: int, keep: bool) -> Tensor:
    if name is None:
        return stored.float()
    if extension.why_missing() is None:
        weight = BlockWeight.pack(stored, name, depth)
        return BlockTensor(weight) if keep else weight.values()
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError as error:
        raise MissingExtraError("gguf", "gguf") from error
    return torch.from_numpy(quants.dequantize(stored.numpy(), GGMLQuantizationType[name]))


def formats_of(model: Any) -> tuple[str, ...]:
    """Return the formats of a model's quantised weights, most frequent first."""
    counts: dict[str, int] = {}
    for parameter in model.parameters():
        if isinstance(parameter, BlockTensor):
            for name in parameter.weight.formats:
                counts[name] = counts.get(name, 0) + 1
    return tuple(sorted(counts, key=lambda name: (-counts[name], name)))
