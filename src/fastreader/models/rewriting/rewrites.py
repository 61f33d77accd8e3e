"""Rewrite a structural copy of a model, step by step, until it runs packed trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fastreader.models.config import windows
from fastreader.models.passes import query_temperature
from fastreader.models.passes.attention import ATTENTION_NAME, register
from fastreader.models.passes.pass_argument import ask_for_mask
from fastreader.models.rewriting import fused, own_scores, recurrent, surgery, upcast
from fastreader.models.rewriting.draft import Draft


@dataclass(frozen=True)
class Rewrite:
    """One change to a structural copy.

    Attributes:
        name: what is replaced.
        applies: whether a model has it.
        apply: makes the change in place.
        checked: how a wrong result is noticed.
    """

    name: str
    applies: Callable[[Draft], bool]
    apply: Callable[[Draft], None]
    checked: str


def _upcasts(draft: Draft) -> bool:
    return draft.upcasts


def _fuses(draft: Draft) -> bool:
    return draft.upcasts and draft.dtype == torch.float32


def _attend_packed(draft: Draft) -> None:
    register()
    surgery.choose_attention(draft.model, ATTENTION_NAME)


def _select_all(draft: Draft) -> None:
    windows.select_all_keys(draft.model)
    ask_for_mask(draft.model)


_LAYERS = "the check at load compares the update of every layer with that of the model's own modules"

# In the order in which they are applied: a later one may rely on what an earlier one did.
REWRITES = (
    Rewrite(
        "temperature of queries",
        lambda draft: query_temperature.is_in(draft.model),
        lambda draft: query_temperature.leave_to_attention(draft.model),
        "the check at load compares the lengths of queries, also at the last positions",
    ),
    Rewrite(
        "functions of recurrent layers",
        lambda draft: bool(draft.mixers),
        lambda draft: recurrent.take_over(draft.model, draft.name),
        "a function without a packed form raises, and so does a pass in which a recurrence did not run",
    ),
    Rewrite(
        "scores of attention",
        lambda draft: own_scores.computes_scores(draft.model),
        lambda draft: own_scores.replace_scores(draft.model, draft.windows, draft.name),
        _LAYERS,
    ),
    Rewrite(
        "indexes of keys",
        lambda draft: bool(windows.indexers(draft.model)),
        _select_all,
        "a text longer than the index covers is rejected, and attention rejects an index that selects some keys only",
    ),
    Rewrite(
        "attention",
        lambda draft: True,
        _attend_packed,
        "an argument that the packed attention does not know raises, and so does a layer that did not call it",
    ),
    Rewrite("experts", lambda draft: draft.upcasts and bool(draft.routed), upcast.replace_experts, _LAYERS),
    Rewrite("linear layers and embeddings", _upcasts, upcast.upcast, _LAYERS),
    Rewrite(
        "norms, feed-forwards and attention layers",
        _fuses,
        fused.fuse_parts,
        "a part is replaced only if the new one gives the same numbers on usual and on large values",
    ),
    Rewrite(
        "decoder layers",
        _fuses,
        fused.fuse_layers,
        "layers are replaced only if the final states after two layers of each kind stay the same",
    ),
    Rewrite("modules that treat tokens independently", _fuses, upcast.run_in_chunks, _LAYERS),
)


def rewrite(draft: Draft) -> None:
    """Apply every rewrite that a draft needs, in order."""
    for step in REWRITES:
        if step.applies(draft):
            step.apply(draft)
            draft.applied.append(step.name)
