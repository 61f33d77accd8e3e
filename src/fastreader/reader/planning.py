"""Plan the trees of a call: check the sequences, group them by rotary regime, and partition them by memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fastreader.core.checks import check_int
from fastreader.core.tree import PrefixTree, Tokens, partition
from fastreader.errors import ContextOverflowError, InputError, OutOfBudgetError
from fastreader.models import memory
from fastreader.models.adapter import TreeModel


def plan(
    model: TreeModel, sequences: Sequence[tuple[Tokens, Tokens]], max_batch_tokens: int | None, new_tokens: int = 0
) -> list[PrefixTree]:
    """Do the work of `Reader.plan`, which documents it."""
    check_int("max_batch_tokens", max_batch_tokens, optional=True)
    if not sequences:
        raise InputError("sequences: expected at least one, got none")
    vocabulary = model.head.weight.shape[0]
    regimes: dict[int, list[int]] = {}
    for i, (context, continuation) in enumerate(sequences):
        length = len(context) + max(len(continuation) - 1, 0)
        if model.max_length is not None and length > model.max_length:
            raise ContextOverflowError(
                f"sequence {i} is {length} tokens long, the context of {model.name} is {model.max_length}"
            )
        regimes.setdefault(model.regimes.of(length), []).append(i)
    trees = []
    size, reserve = memory.generation_memory(model.bytes_per_token, model.key_value_bytes, new_tokens)
    choosing = -(-model.logits.sampling_bytes(len(sequences)) // size) if new_tokens else 0
    overhead = model.overhead
    limit = max(1, memory.hard_limit(size, model.device, overhead) - choosing)
    budget = min(max_batch_tokens or max(1, memory.default_budget(size, model.device, overhead) - choosing), limit)
    for members in regimes.values():
        for tree in partition([sequences[i] for i in members], budget, reserve):
            if len(tree) + reserve * len(tree.leaves) > limit:
                writing = f" and {new_tokens} to write" if new_tokens else ""
                raise OutOfBudgetError(
                    f"one sequence of {len(tree)} tokens{writing} does not fit: memory allows about {limit} here"
                )
            highest = int(max(tree.token_ids.max(), tree.targets.max(initial=0)))
            if highest >= vocabulary:
                raise InputError(f"token ids must be below the vocabulary's {vocabulary}, got {highest}")
            trees.append(replace(tree, sequence_ids=np.asarray(members)[tree.sequence_ids]))
    return trees
