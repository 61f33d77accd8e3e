"""Run linear layers of quantised checkpoints by their library inside a float32 pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fastreader.errors import UnsupportedModelError
from fastreader.models.rewriting import surgery
from fastreader.models.rewriting.device_hooks import replace_module
from fastreader.ops.linear import BlockTensor, UnpackedTensor, WidenedTensor

_PLAIN: tuple[type, ...] = (nn.Parameter, Tensor, BlockTensor, UnpackedTensor, WidenedTensor)
_FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Kernels raise these for a device, a type or a shape that they do not support.
_CANNOT_RUN = (ImportError, RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError)
_OTHERS = 1e-3  # of a row's size: several bits of bfloat16, but less than the step of an 8-bit scale
_LOUD = 100.0  # times the other rows, so that a scale they share is of no use to them


def is_plain(module: nn.Module) -> bool:
    """Return whether a module is a linear layer that multiplies a matrix of numbers and does nothing else."""
    return (
        isinstance(module, nn.Linear)
        and getattr(module.forward, "__func__", None) is nn.Linear.forward  # some libraries replace the instance's
        and type(module.weight) in _PLAIN
        and (module.weight.dtype.itemsize > 1 or isinstance(module.weight, BlockTensor))
    )


def is_own(module: nn.Module) -> bool:
    """Return whether a module of a quantised model is a linear layer that its library multiplies."""
    return hasattr(module, "in_features") and hasattr(module, "out_features") and not is_plain(module)


def method(model: Any) -> str:
    """Return the library or scheme that quantised a model, as its config names it, or "" if it is not quantised.

    A model that was quantised in place, as torchao's `quantize_` does, is named by the type of a weight.
    """
    if not getattr(model, "is_quantized", False):
        weights = (module.weight for module in model.modules() if isinstance(module, nn.Linear))
        kinds = {type(weight).__name__ for weight in weights if hasattr(weight, "__tensor_flatten__")}
        return min(kinds, default="")
    config = getattr(model.config, "quantization_config", None)
    name = config.get("quant_method") if isinstance(config, dict) else getattr(config, "quant_method", None)
    return str(getattr(name, "value", name) or "quantised")


@torch.no_grad()
def settle(model: Any) -> None:
    """Run one token through a quantised model: some libraries lay their weights out at the first forward pass.

    compressed-tensors does so in a hook of the whole model, of which the packed pass calls only parts.

    Raises:
        UnsupportedModelError: if the model cannot run here.
    """
    device = model.get_input_embeddings().weight.device
    try:
        model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=device), use_cache=False)
    except _CANNOT_RUN as error:
        raise UnsupportedModelError(f"a model quantised by {method(model)} does not run here: {error}") from error


def taken_over(model: Any) -> Any:
    """Return a loaded model whose modules hold their weights, which compressed-tensors keeps elsewhere."""
    if method(model) == "compressed-tensors":
        from compressed_tensors.offload.dispatch import remove_dispatch

        settle(model)
        remove_dispatch(model)
    return model


class OwnLinear(nn.Module):
    """A quantised linear layer, called on the type that it expects, with a result in the type of the input.

    The layer belongs to the caller's model, whose state it may hold, so it is not a submodule here.

    Args:
        dtype: of the model's activations, which a layer whose weight has no floating type expects.
    """

    def __init__(self, layer: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.own: tuple[Any, ...] = (layer,)
        weight = getattr(layer, "weight", None)
        known = isinstance(weight, Tensor) and weight.is_floating_point() and weight.dtype.itemsize > 1
        self.dtype: torch.dtype = weight.dtype if known and isinstance(weight, Tensor) else dtype
        self.in_features, self.out_features = int(layer.in_features), int(layer.out_features)  # type: ignore[arg-type]
        self.stand_in: tuple[Tensor, Tensor] | None = None

    @property
    def weight(self) -> Any:
        """The layer's weight, at which some models look."""
        return self.own[0].weight

    def device(self) -> torch.device:
        """Return the device of the layer."""
        tensors = (*self.own[0].parameters(), *self.own[0].buffers())
        return tensors[0].device if tensors else torch.device("cpu")

    def forward(self, input: Tensor) -> Tensor:
        """Map [..., E] to [..., F]."""
        if self.stand_in is not None:
            places, signs = self.stand_in
            return (input[..., places] * signs.to(input.dtype)).sum(-1)
        result: Tensor = self.own[0](input.to(self.dtype))
        return result.to(input.dtype)


@contextmanager
def stood_in(*models: Any) -> Iterator[bool]:
    """Within the block, replace quantised layers by other linear maps, and yield whether there are any.

    A layer that rounds its input makes much of float32's last bits. Each output of a stand-in, the same in all
    models, is a signed sum of two inputs, so that what stands around the layers can be compared closely.
    """
    found = [{name: part for name, part in model.named_modules() if isinstance(part, OwnLinear)} for model in models]
    for layers in found:
        for number, layer in enumerate(layers.values()):
            generator = torch.Generator().manual_seed(number)
            places = torch.randint(layer.in_features, (layer.out_features, 2), generator=generator)
            signs = torch.randint(2, places.shape, generator=generator) * 2.0 - 1.0
            device = layer.device()
            layer.stand_in = places.to(device), signs.to(device)
    try:
        yield any(found)
    finally:
        for layers in found:
            for layer in layers.values():
                layer.stand_in = None


def wrap(model: Any, dtype: torch.dtype) -> None:
    """Replace the quantised linear layers of a structural copy, which shares them with the caller's model."""
    for name, module in list(model.named_modules()):
        if is_own(module):
            replace_module(model, name, OwnLinear(module, dtype))


def why_not_packed(model: Any) -> str | None:
    """Return which part of a quantised transformers model cannot run in a packed pass, or None."""
    kind = method(model)
    if not is_plain(model.get_output_embeddings()):
        return f"its LM head is quantised by {kind}; leave it unquantised"
    own = {id(part) for module in model.modules() if is_own(module) for part in module.modules()}
    for where, module in model.base_model.named_modules():
        if id(module) in own or is_plain(module):
            continue
        for parameter, tensor in module.named_parameters(recurse=False):
            if type(tensor) is not nn.Parameter or tensor.dtype not in _FLOATING:
                outside = f"{where}.{parameter} ({type(module).__name__})"
                return f"quantised by {kind}, a weight outside a linear layer: {outside}"
    settle(model)
    for where, module in model.named_modules():
        # What writes to a module with a mapping of another class may write to the caller's weights.
        if (container := type(surgery.parameters_of(module))) is not dict:
            return (
                f"{where or 'the model'} keeps its weights in a {container.__name__} of {kind}; "
                "load it by its folder, or remove the dispatch (compressed_tensors.offload.dispatch.remove_dispatch)"
            )
    return None


@torch.inference_mode()
def check_independent(model: Any, name: str) -> None:
    """Raise UnsupportedModelError if a quantised layer's result for a token depends on the other tokens of a call.

    A scale, or a choice of columns, that all tokens of a call share makes a score depend on the batch.

    Args:
        model: a structural copy with `OwnLinear` layers.
    """
    generator = torch.Generator().manual_seed(0)
    for where, layer in model.named_modules():
        if not isinstance(layer, OwnLinear):
            continue
        rows = torch.randn(1, 4, layer.in_features, generator=generator).to(layer.device())
        loud = torch.cat([rows, _LOUD * rows], dim=1)
        try:
            alone, among = layer(rows), layer(loud)[:, :4]
        except _CANNOT_RUN as error:
            kind = type(layer.own[0]).__name__
            raise UnsupportedModelError(f"{name}: {where} ({kind}) does not run here: {error}") from error
        off = float(((among - alone).norm(dim=-1) / alone.norm(dim=-1).clamp_min(1e-30)).max())
        if not off <= _OTHERS:
            kind = type(layer.own[0]).__name__
            raise UnsupportedModelError(
                f"{name}: {where} ({kind}) gives a token another result with others in its call, by {off:.2g} of its "
                f"size (allowed: {_OTHERS}): it scales or splits all tokens of a call together"
                + (" (not with llm_int8_threshold=0.0)" if kind == "Linear8bitLt" else "")
            )


def described(model: Any) -> str:
    """Return the kinds of quantised layers of a structural copy in words, or "" without such layers."""
    kinds = Counter(_kind(part.own[0]) for part in model.modules() if isinstance(part, OwnLinear))
    return ", ".join(f"{count} quantised linear ({kind})" for kind, count in kinds.items())


def _kind(layer: nn.Module) -> str:
    weight = getattr(layer, "weight", None)
    special = type(layer) is nn.Linear and type(weight) is not nn.Parameter
    return type(weight).__name__ if special else type(layer).__name__
