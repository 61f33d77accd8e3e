"""Attention and activations on unit values: what saturates in a trained layer hides a wrong factor or function."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fastreader.core.tree import PrefixTree
from fastreader.models.check.own import Constants
from fastreader.models.check.packed import RecordedCall
from fastreader.models.passes.packed_keys import TreeKeys
from fastreader.models.rewriting.fused import FusedFeedForward
from fastreader.models.rewriting.upcast import Chunked
from fastreader.ops.pointwise import gate

_SPREAD = 3.0  # standard deviation of the scores before a soft cap


@torch.inference_mode()
def attention_difference(
    tree: PrefixTree, layer: int, call: RecordedCall, own: Constants, device: torch.device, dtype: torch.dtype
) -> float:
    """Return the largest difference between the packed attention and its definition, on random values.

    Args:
        tree: packed texts.
        call: the parameters that the packed pass uses, and the shapes.
        own: the constants that the model's own layer uses.
        dtype: float32 or float64.
    """
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(shape, generator=generator).to(device, dtype) for shape in call.shapes)
    query *= _SPREAD / (abs(own.scaling) * query.shape[-1] ** 0.5)
    got = TreeKeys(tree, device).attend(layer, query, key, value, replace(call.params, input_precision=None))
    group = query.shape[1] // key.shape[1]
    wide_key, wide_value = (part.double().repeat_interleave(group, dim=1) for part in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.double(), wide_key) * own.scaling
    if own.softcap is not None:
        scores = own.softcap * torch.tanh(scores / own.softcap)
    scores = scores.masked_fill(~_visible(tree, own).to(device), float("-inf"))
    if own.sinks is not None:
        sinks = torch.tensor(own.sinks, dtype=torch.float64, device=device)[:, None, None]
        scores = torch.cat([scores, sinks.expand(-1, len(tree), 1)], dim=-1)
    want = torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., : len(tree)], wide_value)
    return float((got.double() - want).abs().max())


@torch.inference_mode()
def activation_difference(own: Any, packed: Any, device: torch.device) -> float:
    """Return the largest difference between the activations of a model's own modules and of the packed pass's.

    Args:
        own: the model's own modules; those that name their activation `act_fn` are compared.
        packed: the model that runs packed trees.
    """
    values = torch.linspace(-4.0, 4.0, 65, device=device)[None]
    worst = 0.0
    for name, module in own.named_modules():
        if not callable(function := getattr(module, "act_fn", None)):
            continue
        used: Any = packed.get_submodule(name)
        used = used.inner if isinstance(used, Chunked) else used
        if isinstance(used, FusedFeedForward):
            got = gate(values, torch.ones_like(values), used.activation)
        else:
            got = _wide(used.act_fn, device)(values)
        worst = max(worst, float((got - _wide(function, device)(values)).abs().max()))
    return worst


def _wide(function: Any, device: torch.device) -> Any:
    """Return an activation in float32, also one with weights stored in bfloat16 (Apertus)."""
    return copy.deepcopy(function).to(device, torch.float32) if isinstance(function, nn.Module) else function


def _visible(tree: PrefixTree, own: Constants) -> torch.Tensor:
    """Return which tokens on its path each token sees by the layer's mask and window: bool [T, T]."""
    visible = torch.zeros(len(tree), len(tree), dtype=torch.bool)
    window = own.sliding_window
    for token in range(len(tree)):
        path = tree.path(token)
        seen = path if window is None else path[-window:]
        visible[token, seen] = True
        if own.visible is not None:
            visible[token, path] &= own.visible[len(path) - 1, : len(path)].cpu()
    return visible
