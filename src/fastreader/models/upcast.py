"""Turning a model's modules so that only products run in the stored type, and everything else in float32.

Norms, rotary embeddings, residual sums and activations stay transformers' own code, run on float32; what is
replaced is the linear layer (`ops.linear` in the precision asked for) and the embedding. So one mechanism
serves every family, and nothing of a family is written twice.

Parts that treat each token alone (norms, the feed-forward) run over blocks of tokens, so that their
intermediate results stay in cache and never exist for the whole pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastreader.models.chunking import WIDEST, blocks_of
from fastreader.models.fused import FusedFeedForward, FusedLayer, fuse
from fastreader.models.linear import WideLinear


class WideEmbedding(nn.Module):
    """An embedding that gives rows in `dtype`; Gemma's factor is applied after widening."""

    def __init__(self, layer: nn.Embedding, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer
        self.dtype = dtype

    def forward(self, ids: Tensor, *others: Any, **named: Any) -> Tensor:
        """Ids [...] to [..., E]."""
        factor = getattr(self.layer, "scalar_embed_scale", None)
        if factor is not None:
            return F.embedding(ids, self.layer.weight).to(self.dtype) * float(factor)
        rows: Tensor = self.layer(ids, *others, **named)
        return rows.to(self.dtype)


class Blocked(nn.Module):
    """A module that treats tokens alone, run over blocks of them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input: Tensor) -> Tensor:
        """[1, T, E] to [1, T, F]."""
        blocks = blocks_of(input.shape[1], input.device, WIDEST * input.shape[-1])
        if input.dim() != 3 or len(blocks) == 1:
            result: Tensor = self.inner(input)
            return result
        first: Tensor = self.inner(input[:, blocks[0]])
        out = first.new_empty(1, input.shape[1], first.shape[2])
        out[:, blocks[0]] = first
        for block in blocks[1:]:
            out[:, block] = self.inner(input[:, block])
        return out


def why_not_wide(model: Any) -> str | None:
    """Why a model's own modules must run as they are; None when they can be widened."""
    known = (nn.Linear, nn.Embedding)
    for name, module in model.base_model.named_modules():
        if isinstance(module, known):
            continue
        for parameter, tensor in module.named_parameters(recurse=False):
            if tensor.dim() > 1:
                return f"{name}.{parameter} is a weight outside a linear layer ({type(module).__name__})"
    return None


def widen(model: Any, precision: str, dtype: torch.dtype, windows: list[int | None]) -> None:
    """Replace the modules of a structural copy in place; the parameters' own tensors are not written to.

    Args:
        model: a transformers model whose modules may be changed.
        precision: of the products, see `ops.linear`.
        dtype: of everything else, float32 or float64.
        windows: each layer's attention window, tokens or None.
    """
    base = model.base_model
    layers = {name: module for name, module in base.named_modules() if isinstance(module, nn.Linear)}
    for name, module in list(base.named_modules()):
        if isinstance(module, nn.Linear):
            _set(base, name, WideLinear(module, precision))
        elif isinstance(module, nn.Embedding):
            _set(base, name, WideEmbedding(module, dtype))
        else:
            for parameter, tensor in list(module.named_parameters(recurse=False)):
                setattr(module, parameter, nn.Parameter(tensor.to(dtype), requires_grad=False))
            for buffer, tensor in list(module.named_buffers(recurse=False)):
                if tensor.is_floating_point() and tensor.dtype in (torch.bfloat16, torch.float16):
                    setattr(module, buffer, tensor.to(dtype))
    if dtype == torch.float32:
        fuse(model, layers, windows, precision)
        for name, module in list(base.named_modules()):
            if _treats_tokens_alone(name, module) and not _runs_over_blocks(base, name, module):
                _set(base, name, Blocked(module))


def _treats_tokens_alone(name: str, module: nn.Module) -> bool:
    kind = type(module).__name__
    return (kind.endswith("MLP") and name.endswith("mlp")) or (kind.endswith("RMSNorm") and "self_attn" not in name)


def _runs_over_blocks(root: nn.Module, name: str, module: nn.Module) -> bool:
    layer = root.get_submodule(name.rpartition(".")[0])
    return isinstance(module, FusedFeedForward) or isinstance(layer, FusedLayer)


def _set(root: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(root.get_submodule(parent) if parent else root, child, module)
