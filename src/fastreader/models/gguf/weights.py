"""Read the weights of a GGUF file into a transformers model, one tensor at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from fastreader.core.progress import note
from fastreader.errors import ModelFileError
from fastreader.models.gguf.architectures import Architecture, layer_of
from fastreader.models.gguf.config import architecture_of
from fastreader.models.gguf.file import GgufFile
from fastreader.models.gguf.header import TensorInfo
from fastreader.models.gguf.types import FLOATS
from fastreader.models.gguf.values import DTYPES, decoded, mapped, raw_rows
from fastreader.ops import extension
from fastreader.ops.linear import BlockStack, BlockTensor, BlockWeight, UnpackedTensor, WidenedTensor
from fastreader.ops.linear.blocks import FORMATS

_LAID_OUT = {"MXFP4": 18 / 17, "Q3_K": 146 / 110, "IQ4_XS": 146 / 136}  # bytes of the kernels' layout to the file's
_EMBEDDING = "token_embd.weight"
_HALVES = ("BF16", "F16")
_REORDERED = ("attn_q.weight", "attn_k.weight")  # in some architectures
_EXPERTS = {"gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"), "down_proj": ("ffn_down_exps",)}


@dataclass(frozen=True)
class WeightSource:
    """Where a parameter's values come from.

    Attributes:
        tensors: of the file; several have their rows one after another. None are a bias of zeros.
        heads: number of heads within which rows are reordered; 0 keeps their order.
        offset: that the file adds to the values.
        interleaved: rows of several tensors alternate, and the last two dimensions change places.
    """

    tensors: tuple[TensorInfo, ...]
    heads: int = 0
    offset: float = 0.0
    interleaved: bool = False


def why_not(device: torch.device) -> str | None:
    """Return why the kernels cannot multiply a file's integers on a device, or None."""
    return extension.why_missing() if device.type == "cpu" else f"the kernels for them run on a CPU, not on {device}"


def has_integers(file: GgufFile) -> bool:
    """Return whether kernels multiply the integers of some matrices of a file."""
    return any(map(_keeps, file.tensors.values()))


def quantised_types(file: GgufFile) -> tuple[str, ...]:
    """Return the types of a file's quantised tensors."""
    return tuple(sorted({tensor.type for tensor in file.tensors.values()}.difference(FLOATS)))


def unpacked(file: GgufFile) -> tuple[str, ...]:
    """Return the types of quantised tensors whose values are computed at load, since no kernel multiplies them."""
    return tuple(name for name in quantised_types(file) if name not in FORMATS)


def bytes_of(file: GgufFile, form: WeightForm, laid_out: bool) -> int:
    """Return the bytes that a load takes for a file's weights, of which some stay in the file until they are laid out.

    Args:
        file: the file.
        form: of the weights.
        laid_out: kernels hold matrices of numbers once more until the end of the load, in 2 bytes a value.
    """
    return sum(_bytes_of(tensor, form, 2 * laid_out) for tensor in file.tensors.values())


def _bytes_of(tensor: TensorInfo, form: WeightForm, layout: int) -> int:
    if form.keep and _keeps(tensor):
        return int(tensor.size * _LAID_OUT.get(tensor.type, 1))
    if form.keep and _is_unpacked(tensor):
        return tensor.size + layout * prod(tensor.shape)
    own = form.dtype.itemsize
    if (form.halves and _is_half(tensor)) or (not form.keep and layout and _is_mapped(tensor, form.dtype)):
        own = 2 if tensor.name.endswith(_REORDERED) else 0
    return (own + layout * (len(tensor.shape) > 1)) * prod(tensor.shape)


def _is_half(tensor: TensorInfo) -> bool:
    """Return whether a tensor is a layer's matrix of halves."""
    return tensor.type in _HALVES and len(tensor.shape) == 2 and tensor.name.startswith("blk.")


def _is_unpacked(tensor: TensorInfo) -> bool:
    """Return whether a tensor is a layer's matrix of a type that no kernel multiplies."""
    return tensor.type not in (*FORMATS, *FLOATS) and len(tensor.shape) == 2 and tensor.name.startswith("blk.")


def _is_mapped(tensor: TensorInfo, dtype: torch.dtype) -> bool:
    """Return whether a tensor that no kernel multiplies as stored may be used from its mapped file.

    Kernels lay matrices out; rows of embeddings are read for as long as the model lives, and a file may be cut off.
    """
    return DTYPES.get(tensor.type) == dtype and len(tensor.shape) == 2 and tensor.name != _EMBEDDING


def _keeps(tensor: TensorInfo) -> bool:
    """Return whether kernels multiply a tensor's integers: a matrix, or a stack of experts' matrices."""
    return tensor.type in FORMATS and len(tensor.shape) > 1


@dataclass(frozen=True)
class WeightForm:
    """How a load holds weights.

    Attributes:
        keep: quantised matrices as `BlockTensor`s and stacks of them as `BlockStack`s, on a CPU; layers' matrices of
            other quantised types as `UnpackedTensor`s.
        halves: layers' matrices of halves as `WidenedTensor`s, on a CPU and in float32.
        dtype: of the others.
    """

    keep: bool
    halves: bool
    dtype: torch.dtype = torch.float32


def load(file: GgufFile, config: Any, form: WeightForm) -> Any:
    """Return the model of a file.

    Args:
        file: whose tensors count as used.
        config: of `config_of`.
        form: of the weights.

    Raises:
        MissingExtraError: if unpacking a type needs the extra `gguf`.
        ModelFileError: if the file lacks a weight, or one has another shape than the config says.
        UnsupportedModelError: if the file has a tensor that the model has no place for.
    """
    import transformers
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):  # no weight is allocated twice
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=form.dtype)
    model.tie_weights()  # a weight that is another one is not in the file
    wanted = dict(model.named_parameters())
    sources = _sources(file, config, wanted)
    file.reject_unused_tensors()
    # One buffer serves all tensors: nothing that is returned is part of it.
    most = max(sum(tensor.size for tensor in source.tensors) for source in sources.values())
    held = torch.empty(most, dtype=torch.uint8)
    for index, (name, parameter) in enumerate(wanted.items()):
        note(f"reading weights, {100 * index // len(wanted)} %")
        try:
            value = _value(sources[name], parameter, form, held)
        except RuntimeError as error:
            reason, _, _ = str(error).partition("\n")
            if not reason.startswith("blocks_pack"):  # a lack of memory, for instance
                raise
            names = " and ".join(tensor.name for tensor in sources[name].tensors)
            raise ModelFileError(f"{file.path}: {names} is damaged ({reason})") from error
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, nn.Parameter(value, requires_grad=False))
    file.require_unchanged()
    model.tie_weights()
    model.config.dtype = form.dtype
    ends = {"eos_token_id": config.eos_token_id, "bos_token_id": config.bos_token_id}
    model.generation_config = transformers.GenerationConfig(pad_token_id=config.pad_token_id, **ends)
    return model.eval()


def _sources(file: GgufFile, config: Any, wanted: dict[str, nn.Parameter]) -> dict[str, WeightSource]:
    """Return the source of every parameter, or raise ModelFileError if the file lacks one or has another shape."""
    of = architecture_of(file)
    found, missing, misshapen = {}, [], []
    for name, parameter in wanted.items():
        source = _source(file, of, config, name)
        if source is None:
            missing.append(name)
            continue
        found[name] = source
        shape = _shape(source)
        if source.tensors and shape != tuple(parameter.shape):
            names = " and ".join(tensor.name for tensor in source.tensors)
            misshapen.append(f"{names} is {list(shape)}, expected {list(parameter.shape)}")
    if missing:
        raise ModelFileError(f"{file.path}: {len(missing)} weights of the model are not in the file: {first(missing)}")
    if misshapen:
        raise ModelFileError(
            f"{file.path}: {len(misshapen)} tensors differ in shape from what the keys state: {first(misshapen)}"
        )
    return found


def first(names: list[str]) -> str:
    """Return the first of many names."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _shape(source: WeightSource) -> tuple[int, ...]:
    shapes = [tensor.shape for tensor in source.tensors]
    if not shapes:
        return ()
    shape = list(shapes[0])
    along = min(1, len(shape) - 1)
    if len(shapes) > 1:
        if len({(*each[:along], *each[along + 1 :]) for each in shapes}) > 1:
            return ()
        shape[along] = sum(each[along] for each in shapes)
    if source.interleaved and len(shape) == 3:
        shape[1], shape[2] = shape[2], shape[1]
    return tuple(shape)


def _source(file: GgufFile, of: Architecture, config: Any, name: str) -> WeightSource | None:
    """Return the source of a parameter, or None if the file lacks it."""
    module, _, kind = name.rpartition(".")
    layer, inner = layer_of(module)
    if inner == "mlp.experts":
        kind, bias, _ = kind.partition("_bias")
        suffix = "bias" if bias else "weight"
        tensors = [file.tensor(f"blk.{layer}.{part}.{suffix}") for part in _EXPERTS[kind]]
        known = tuple(tensor for tensor in tensors if tensor is not None)
        return WeightSource(known, interleaved=of.interleaved_experts) if len(known) == len(tensors) else None
    tensor = file.tensor(f"blk.{layer}.attn_sinks.weight" if kind == "sinks" else of.tensor_of(name))
    if tensor is None:
        return WeightSource(()) if _is_absent_bias(file, of, name) else None
    heads = 0
    if of.permuted and inner in ("self_attn.q_proj", "self_attn.k_proj"):
        heads = config.num_attention_heads if inner == "self_attn.q_proj" else config.num_key_value_heads
    return WeightSource((tensor,), heads, of.norm_offset if module.endswith("norm") else 0.0)


def _is_absent_bias(file: GgufFile, of: Architecture, name: str) -> bool:
    """Return whether a parameter is a bias that transformers adds together with others, which no layer has."""
    tensor = of.tensor_of(name)
    if not tensor.endswith(".bias"):
        return False
    _, _, kind = tensor.split(".", 2)
    with_flag = any(kind.removesuffix(".bias") in kinds for kinds in of.biases.values())
    return with_flag and not any(each.endswith(f".{kind}") for each in file.tensors)


def _value(source: WeightSource, parameter: nn.Parameter, form: WeightForm, held: Tensor) -> Tensor:
    """Return the values of a parameter."""
    if not source.tensors:
        return torch.zeros(parameter.shape, dtype=form.dtype)
    if len(source.tensors) == 1 and len(source.tensors[0].shape) < 3:
        return _plain(source, source.tensors[0], form, held)
    stacked = form.keep and all(len(each.shape) == 3 and _keeps(each) for each in source.tensors)
    if stacked and (stack := _stack(source, held)) is not None:
        return stack
    parts = [decoded(raw_rows(each, held), each, form.dtype).view(each.shape) for each in source.tensors]
    along = min(1, parts[0].dim() - 1)
    if source.interleaved and len(parts) > 1:
        whole = torch.stack(parts, along + 1).flatten(along, along + 1)
    else:
        whole = torch.cat(parts, along) if len(parts) > 1 else parts[0]
    return whole.transpose(1, 2).contiguous() if source.interleaved and whole.dim() == 3 else whole


def _stack(source: WeightSource, held: Tensor) -> Tensor | None:
    """Return experts' matrices with the integers of a file, or None if tensors of several types cannot be joined."""
    first = source.tensors[0]
    if len({each.type for each in source.tensors}) > 1 and (source.interleaved or first.shape[1] % 32):
        return None
    starts = accumulate((each.size for each in source.tensors), initial=0)
    rows = [raw_rows(each, held[start:]) for each, start in zip(source.tensors, starts, strict=False)]
    kinds = [each.type for each in source.tensors]
    parts, memory = [], torch.empty(0, dtype=torch.uint8)
    for own in zip(*(raw.view(first.shape[0], -1, raw.shape[-1]) for raw in rows), strict=True):
        weights = [BlockWeight.pack(each, kind, first.shape[2]) for each, kind in _merged(own, kinds, source, memory)]
        parts.append(BlockTensor(weights[0] if len(weights) == 1 else BlockWeight.join(weights)))
    return BlockStack(parts, source.interleaved)


def _merged(rows: Sequence[Tensor], kinds: list[str], source: WeightSource, memory: Tensor) -> list[tuple[Tensor, str]]:
    """Return the rows of one expert's tensors with their types, as one in `memory` if the types are equal."""
    if len({*kinds}) > 1 or len(rows) == 1:
        return list(zip(rows, kinds, strict=True))
    torch.cat([row[:, None] for row in rows] if source.interleaved else list(rows), int(source.interleaved), out=memory)
    return [(memory.flatten(0, -2), kinds[0])]


def _plain(source: WeightSource, tensor: TensorInfo, form: WeightForm, held: Tensor) -> Tensor:
    matrix, keep, dtype = len(tensor.shape) == 2, form.keep, form.dtype
    if form.halves and _is_half(tensor):
        stored = _plain(source, tensor, WeightForm(keep=False, halves=False, dtype=DTYPES[tensor.type]), held)
        return WidenedTensor(stored, dtype)
    if not keep and not source.heads and _is_mapped(tensor, dtype) and (found := mapped(tensor, dtype)) is not None:
        return found
    raw = raw_rows(tensor, held)
    if source.heads and matrix:
        raw = raw[_halves(tensor.shape[0], source.heads)]
    if keep and _keeps(tensor):
        return BlockTensor(BlockWeight.pack(raw, tensor.type, tensor.shape[1]))
    if keep and _is_unpacked(tensor):
        decoded(raw[:1], tensor)  # an error now, not at the first pass
        return UnpackedTensor(raw.clone(), tensor.shape[1], partial(decoded, tensor=tensor))
    if source.offset:  # subtracted before values are rounded
        return (decoded(raw, tensor).view(tensor.shape) - source.offset).to(dtype)
    values = decoded(raw, tensor, dtype).view(tensor.shape)
    return values[_halves(len(values), source.heads)] if source.heads and not matrix else values


def _halves(rows: int, heads: int) -> Tensor:
    """Return where the rows of heads in halves are in a file that has them in pairs."""
    return torch.arange(rows).view(heads, -1, 2).transpose(1, 2).reshape(-1)


def formats_of(model: Any) -> tuple[str, ...]:
    """Return the formats of a model's quantised weights and of halves next to them, most frequent first."""
    counts: Counter[str] = Counter()
    halves = {DTYPES[name]: name for name in _HALVES}
    for parameter in model.parameters():
        if isinstance(parameter, WidenedTensor):
            counts[halves[parameter.stored.dtype]] += 1
        kept = parameter.parts if isinstance(parameter, BlockStack) else [parameter]
        counts.update(name for part in kept if isinstance(part, BlockTensor) for name in part.weight.formats)
    return tuple(sorted(counts, key=lambda name: (-counts[name], name)))
