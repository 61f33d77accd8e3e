"""Attention and activations on unit values: what saturates in a trained layer hides a wrong factor or function."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fastreader.core.tree import IntArray, PrefixTree
from fastreader.models.check.own import Constants
from fastreader.models.check.packed import RecordedCall
from fastreader.models.passes.decode_keys import DecodeKeys
from fastreader.models.passes.key_values import KeyValues
from fastreader.models.passes.packed_keys import TreeKeys
from fastreader.models.rewriting.fused import FusedFeedForward
from fastreader.models.rewriting.upcast import Chunked
from fastreader.models.tree_model import TreeModel
from fastreader.ops.decode_attention import decode_attention
from fastreader.ops.pointwise import gate

# Standard deviations of the scores before a soft cap: one that reaches a cap, and one where every key has some weight,
# so that a lost key shows.
_SPREAD, _LEVEL = 3.0, 0.5
_ROWS = 16  # continue from each text, so that tiles of rows read the prompts


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
    visible, worst = _visible(tree, own).to(device), 0.0
    for spread in (_SPREAD, _LEVEL):
        query, key, value = _drawn(call, spread, device, dtype)
        got = TreeKeys(tree, device).attend(layer, query, key, value, replace(call.params, input_precision=None))
        group = query.shape[1] // key.shape[1]
        wide_key, wide_value = (part.double().repeat_interleave(group, dim=1) for part in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query.double(), wide_key) * own.scaling
        if own.softcap is not None:
            scores = own.softcap * torch.tanh(scores / own.softcap)
        scores = scores.masked_fill(~visible, float("-inf"))
        if own.sinks is not None:
            sinks = torch.tensor(own.sinks, dtype=torch.float64, device=device)[:, None, None]
            scores = torch.cat([scores, sinks.expand(-1, len(tree), 1)], dim=-1)
        want = torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., : len(tree)], wide_value)
        worst = max(worst, float((got.double() - want).abs().max()))
    return worst


def _drawn(
    call: RecordedCall, spread: float, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return random queries, keys and values of a call's shapes, whose scores have this standard deviation."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(shape, generator=generator).to(device, dtype) for shape in call.shapes)
    return query * (spread / (abs(call.params.scale) * query.shape[-1] ** 0.5)), key, value


@torch.inference_mode()
def step_attention_difference(
    model: TreeModel, tree: PrefixTree, starts: IntArray, steps: Sequence[IntArray], call: RecordedCall
) -> float:
    """Return the largest difference between attention in steps and in a pass, relative, on random values.

    Args:
        model: whose steps have this attention.
        tree: the texts, with the tokens of the steps.
        starts: int64 [B], ascending, the nodes that texts are continued from.
        steps: int64 [B] each, the nodes that the rows of a step stand for.
        call: the parameters that the pass uses, and the shapes.
    """
    dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
    query, key, value = _drawn(call, _LEVEL, model.device, dtype)
    call = RecordedCall(replace(call.params, input_precision=None), call.shapes, call.lengths)
    want, worst = TreeKeys(tree, model.device).attend(0, query, key, value, call.params).double(), 0.0
    for rows in (1, _ROWS):
        prompt = KeyValues([key], [value])
        cache = DecodeKeys(tree, prompt, starts.repeat(rows), len(steps), row_by_row=model.deterministic)
        for nodes in steps:
            cache.begin_step()
            places = torch.from_numpy(nodes.repeat(rows)).to(model.device)
            own = query[places], key[places], value[places]
            for got in _step_attention(cache, *own, call):
                off = (got.double() - want[places]).abs().amax(dim=(1, 2)) / want[places].abs().amax(dim=(1, 2))
                worst = max(worst, float(off.nan_to_num(torch.inf).max()))
    return worst


def _step_attention(
    cache: DecodeKeys, query: Tensor, key: Tensor, value: Tensor, call: RecordedCall
) -> Iterator[Tensor]:
    """Yield the attention of a step, layer by layer and as a step in one call reads its keys."""
    params = call.params
    yield cache.attend(0, query, key, value, params)
    step = cache.row_keys([params.window])
    if step is not None and params.slopes is None:
        yield decode_attention(
            query,
            [step.keys[0], step.new_keys[0]],
            [step.values[0], step.new_values[0]],
            step.ranges[step.ranges_of[0]],
            scale=params.scale,
            softcap=params.softcap,
            sinks=params.sinks,
        )[0]


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
    held = isinstance(function, nn.Module) and any(True for _ in (*function.parameters(), *function.buffers()))
    return copy.deepcopy(function).to(device, torch.float32) if held else function


def _visible(tree: PrefixTree, own: Constants) -> Tensor:
    """Return which tokens on its path each token sees by the layer's mask and window: bool [T, T]."""
    visible = np.zeros((len(tree), len(tree)), dtype=bool)
    for token, parent in enumerate(tree.parent.tolist()):
        if parent >= 0:
            visible[token] = visible[parent]
        visible[token, token] = True
    places = visible.sum(axis=1) - 1
    if own.sliding_window is not None:
        visible &= places > places[:, None] - own.sliding_window
    if own.visible is not None:
        visible &= own.visible.cpu().numpy()[places[:, None], places]
    return torch.from_numpy(visible)
