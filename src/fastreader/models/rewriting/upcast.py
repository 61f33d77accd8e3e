"""Upcast a model's modules: products run in the stored type, everything else in float32.

Norms, rotary embeddings, residual sums and activations stay transformers' own code, run on float32. Only the linear
layer (`ops.linear` in the chosen precision) and the embedding are replaced, so one mechanism serves every family and no
family's code is repeated here.

Modules that treat each token independently (norms, the feed-forward) run over chunks of tokens, so their intermediate
results stay in cache and never exist for the whole pass.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastreader.models.machine.chunking import ASSUMED_WIDTH, map_chunks
from fastreader.models.rewriting.device_hooks import replace_module
from fastreader.models.rewriting.draft import Draft
from fastreader.models.rewriting.experts import ParallelExperts, SortedExperts, blocks, kind_of
from fastreader.models.rewriting.fused import FusedEnd, FusedFeedForward, UpcastLinear
from fastreader.models.rewriting.quantised import is_own, is_plain, method
from fastreader.models.rewriting.recurrent import mixers, reads_weight
from fastreader.ops.linear import BlockTensor


class UpcastEmbedding(nn.Module):
    """An embedding with rows in `dtype`, multiplied after upcasting by the module's factor, if any (Gemma's).

    The factor is a tensor in the type of the weights: 25.25 for 640 ** 0.5 = 25.298 in bfloat16, and models were
    trained with what it rounds to.
    """

    def __init__(self, layer: nn.Embedding, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer
        self.dtype = dtype
        plain = type(layer) is nn.Embedding and dtype == torch.float32
        weight = layer.weight
        # Read without PyTorch's dispatch to the tensor's class, which takes longer than the rows.
        self.blocks = weight.weight if plain and isinstance(weight, BlockTensor) and weight.whole else None

    @property
    def weight(self) -> Tensor:
        """The stored rows, whose type and device some models ask for."""
        return self.layer.weight

    def forward(self, ids: Tensor, *others: Any, **named: Any) -> Tensor:
        """Map ids [...] to rows [..., E]."""
        if self.blocks is not None:
            return self.blocks.rows(ids)
        factor = getattr(self.layer, "embed_scale", None)
        if isinstance(factor, Tensor) and factor.dim() == 0:
            return F.embedding(ids, self.layer.weight).to(self.dtype) * factor.to(self.dtype)
        rows: Tensor = self.layer(ids, *others, **named)
        return rows.to(self.dtype)


class Chunked(nn.Module):
    """A module that treats tokens independently, run over chunks of them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input: Tensor) -> Tensor:
        """Map [1, T, E] to [1, T, F] in chunks, and an input of another shape at once."""
        if input.dim() != 3:
            result: Tensor = self.inner(input)
            return result
        return map_chunks(lambda rows: self.inner(rows[None])[0], input[0], ASSUMED_WIDTH * input.shape[-1])[None]


def why_not_upcast(model: Any) -> str | None:
    """Return why a model's own modules must run as they are, or None if they can be upcast."""
    mixtures = tuple(f"{block}." for block in blocks(model.base_model))
    mixtures += tuple(f"{name}." for name, _ in mixers(model))  # convolutions and gates of a recurrence are small too
    alone = {module for _, module in mixers(model)}
    own = bool(method(model))
    for name, module in model.base_model.named_modules():
        if is_plain(module) or isinstance(module, nn.Embedding) or kind_of(module) or (own and is_own(module)):
            continue
        if name.startswith(mixtures) or module in alone:  # what is next to experts is their router, which is small
            continue
        for parameter, tensor in module.named_parameters(recurse=False):
            if tensor.dim() > 1:
                return f"{name}.{parameter} is a weight outside a linear layer ({type(module).__name__})"
    return None


def replace_experts(draft: Draft) -> None:
    """Replace the experts of a structural copy by linear layers that run on the tokens sent to them."""
    for name, module in list(draft.base.named_modules()):
        if (kind := kind_of(module)) is not None:
            replace_module(draft.base, name, kind(module))


def upcast(draft: Draft) -> None:
    """Replace the linear layers and embeddings of a structural copy, and convert all other tensors.

    The parameters' own tensors are not written to.
    """
    base, dtype = draft.base, draft.dtype
    draft.layers = {
        name: module
        for name, module in base.named_modules()
        if is_plain(module)
        and draft.routed.get(_block_of(name, draft.routed)) != module.out_features  # no router
        and not reads_weight(base, name)
    }
    for name, module in list(base.named_modules()):
        if name in draft.layers:
            replace_module(base, name, UpcastLinear(draft.layers[name], draft.products))
        elif isinstance(module, nn.Embedding):
            replace_module(base, name, UpcastEmbedding(module, dtype))
        else:
            for parameter, tensor in list(module.named_parameters(recurse=False)):
                setattr(module, parameter, nn.Parameter(tensor.to(dtype), requires_grad=False))
            for buffer, tensor in list(module.named_buffers(recurse=False)):
                if tensor.dtype in (torch.bfloat16, torch.float16):
                    setattr(module, buffer, tensor.to(dtype))


def run_in_chunks(draft: Draft) -> None:
    """Run modules of a fused copy that treat each token independently over chunks of tokens."""
    base = draft.base
    inside: tuple[str, ...] = ()
    for name, module in list(base.named_modules()):
        if name.startswith(inside):
            continue
        parent = base.get_submodule(name.rpartition(".")[0])
        chunked = isinstance(module, FusedFeedForward) or isinstance(parent, FusedEnd)
        mixture = any(isinstance(part, (SortedExperts, ParallelExperts)) for part in module.modules())
        if _treats_tokens_alone(name, module) and not chunked and not mixture:
            replace_module(base, name, Chunked(module))
            draft.states.clear()
            inside += (f"{name}.",)


def _block_of(name: str, blocks: dict[str, int]) -> str:
    """Return the innermost of `blocks` that a module is part of, or its own name."""
    return max((block for block in blocks if name.startswith(f"{block}.")), key=len, default=name)


def _treats_tokens_alone(name: str, module: nn.Module) -> bool:
    kind = type(module).__name__
    given = [p for p in inspect.signature(module.forward).parameters.values() if p.default is p.empty]
    if sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in given) > 1:  # BLOOM's feed-forward adds to what it is also given
        return False
    return (kind.endswith("MLP") and name.endswith("mlp")) or (kind.endswith("RMSNorm") and "self_attn" not in name)
