"""LocalModel: a loaded model with its tokenizer, the lock around a pass, and the planner."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from fastreader.core.checked import accept, kind_of
from fastreader.core.checks import check_int, expect
from fastreader.core.forks import repair_in_children
from fastreader.core.options import MOST_NEW_TOKENS
from fastreader.core.tree import PrefixTree, TokenPairs, Tokens, partition
from fastreader.data.fingerprints import digest
from fastreader.errors import ContextOverflowError, FastreaderError, OutOfBudgetError, UnsupportedModelError
from fastreader.models.check import code_digest
from fastreader.models.loading.weights_state import WeightsState, code_of, parameter_state
from fastreader.models.machine import memory
from fastreader.models.machine.arithmetic import Arithmetic
from fastreader.models.tree_model import TreeModel
from fastreader.ops import extension
from fastreader.reader.prompts.encoder import TextEncoder
from fastreader.reader.relevance_head import RelevanceHead

_PAIRS, _TOKENS = kind_of(Sequence[Sequence[Any]]), kind_of(Tokens)


class LocalModel:
    """A model with its tokenizer, as log-likelihoods, generation and sessions use it.

    Attributes:
        encoder: the tokenizer, by pieces.
        name: what the model was loaded from.
        max_length: longest input the model takes, in tokens; None if its config sets no limit.
        end_tokens: by which the model ends a turn or a text: its generation config's and its tokenizer's.
        arithmetic: device, storage type and precision, and why.
        revision: distinguishes its weights from others of that name; empty for a packaged model.
        digest: of weights, configuration and tokenizer as they were loaded.
        check: which check ran at load: "full", "quick" (an earlier verdict, or two layers of each kind) or "off".
        relevance: how it scores a query with a document; None if it is no reranker.
        lock: held during a pass and the choice of its tokens.
    """

    def __init__(
        self, model: TreeModel, encoder: TextEncoder, name: str, arithmetic: Arithmetic, revision: str = ""
    ) -> None:
        self._model: TreeModel | None = model
        self.encoder = encoder
        self.name = name
        self.arithmetic = arithmetic
        self.revision = revision
        self.digest = ""
        self.check = "off"
        self.relevance: RelevanceHead | None = None
        self.max_length = model.max_length
        own = encoder.tokenizer.eos_token_id
        self.end_tokens: frozenset[int] = model.end_tokens | (frozenset() if own is None else {int(own)})
        self._given: list[tuple[nn.Parameter, tuple[Any, ...]]] = []
        self._weights = WeightsState()
        self._running: list[Any] = []
        self._code = ""
        self._changed = ""
        self.lock = threading.Lock()
        repair_in_children(self)

    def after_fork(self) -> None:
        """Replace the lock in a forked child, where the model can be used at once: a pass does not change it."""
        self.lock = threading.Lock()

    @property
    def model(self) -> TreeModel:
        """The model, which runs packed trees.

        Raises:
            FastreaderError: if the reader was closed.
        """
        if self._model is None:
            raise FastreaderError(f"{self.name}: the reader was closed; load it again")
        return self._model

    def watch_given(self) -> None:
        """Remember the state of weights that the caller's model shares, for `require_unchanged`."""
        self._given = [(parameter, parameter_state(parameter)) for parameter in self.model.original.parameters()]

    def require_unchanged(self) -> None:
        """Check that nobody trained a given model since: packed copies would be mixed with the new weights.

        Raises:
            FastreaderError: if a weight changed.
        """
        for parameter, before in self._given:
            if parameter_state(parameter) != before:
                raise FastreaderError(
                    f"{self.name}: the weights of the given model changed after the reader was made, and part of them "
                    "was copied before; make a new reader with Reader.load((model, tokenizer))"
                )

    def watch_running(self) -> None:
        """Remember the state of the weights that run, which `fingerprint` compares."""
        self._running = self._weights.of(self.model.model.parameters())
        self._code = code_of(self.model.model)

    def fingerprint(self) -> str:
        """Return a digest of all that determines keys and values besides the tokens.

        It covers the weights, their device and type, the precision, and the code that runs. Once somebody changes a
        weight of `Reader.model`, it is one that no other process has.
        """
        model, arithmetic = self.model, self.arithmetic
        now = self._weights.of(model.model.parameters())
        if now != self._running:
            self._running, self._changed = now, uuid.uuid4().hex
        kernels = extension.used_instruction_set() if extension.why_missing() is None else ""
        how = [arithmetic.where, arithmetic.stored, arithmetic.precision, arithmetic.products, model.forward_path]
        code = [code_digest(), self._code, kernels, torch.__version__, transformers.__version__]
        return digest([self.digest, self._changed, how, model.deterministic, code], 32)

    @property
    def changed(self) -> bool:
        """Whether somebody changed a weight since the load, as the last `fingerprint` found."""
        return bool(self._changed)

    def require_language_model(self) -> None:
        """Check that the model predicts tokens.

        Raises:
            UnsupportedModelError: if it has a head for classification instead.
        """
        if self.relevance is not None and self.relevance.scheme.weight is not None:
            raise UnsupportedModelError(
                f"{self.name}: it has a head for classification instead of a language model's, so it can only score "
                "the relevance of documents (fr.rerank, Reader.relevance_scores)"
            )

    def budget(self) -> int:
        """Return the number of tokens that one pass computes at most by default, from the memory free now."""
        return memory.pass_limits(self.model.bytes_per_token, self.model.devices, self.model.overhead)[0]

    def plan(
        self,
        sequences: TokenPairs,
        max_batch_tokens: int | None = None,
        *,
        new_tokens: int = 0,
        trees: Sequence[PrefixTree] | None = None,
    ) -> list[PrefixTree]:
        """Return the trees of a call, by rotary regime and memory, as `Reader.plan` documents.

        Args:
            sequences, max_batch_tokens, new_tokens: see `Reader.plan`.
            trees: of these sequences, planned for fewer new tokens; they are returned if they leave room for all.
        """
        model = self.model
        self.require_unchanged()
        check_int("max_batch_tokens", max_batch_tokens, optional=True)
        check_int("new_tokens", new_tokens, 0, MOST_NEW_TOKENS)
        new_tokens = int(new_tokens)  # NumPy's small integers overflow below
        accept("sequences", sequences, _PAIRS)
        expect(len(sequences) > 0, "sequences", "at least one", sequences)
        vocabulary = model.head.weight.shape[0]
        regimes: dict[int, list[int]] = {}
        checked: dict[int, Tokens] = {}  # by identity: candidates share a context's list
        for i, pair in enumerate(sequences):
            expect(len(pair) == 2, f"sequences[{i}]", "a pair (context, continuation)", pair)
            context, continuation = pair
            for j, tokens in enumerate(pair):
                if id(tokens) not in checked:
                    accept(f"sequences[{i}][{j}]", tokens, _TOKENS)
                    checked[id(tokens)] = tokens
            length = len(context) + max(len(continuation) - 1, 0)
            if model.max_length is not None and length > model.max_length:
                raise ContextOverflowError(
                    f"sequences[{i}] is {length} tokens long, the context of {model.name} is "
                    f"{model.max_length}{model.context_note}"
                )
            regimes.setdefault(0 if model.regimes.fixed else model.regimes.of(length), []).append(i)
        planned = []
        token_bytes, reserve, choosing = model.bytes_per_token, 0, 0
        if new_tokens:
            states = model.state_bytes if new_tokens > 1 else 0
            token_bytes, reserve = memory.generation_memory(token_bytes, model.key_value_bytes, new_tokens, states)
            choosing = -(-model.logits.sampling_bytes(len(sequences)) // token_bytes)
        default, most = memory.pass_limits(token_bytes, model.devices, model.overhead)
        limit = max(1, most - choosing)
        budget = min(max_batch_tokens or max(1, default - choosing), limit)
        if trees and all(tree.stats.computed_tokens + reserve * len(tree.leaves) <= budget for tree in trees):
            return list(trees)
        for members in regimes.values():
            for tree in partition(map(sequences.__getitem__, members), budget, reserve):
                size = tree.stats.computed_tokens
                if size + reserve * len(tree.leaves) > limit:
                    generated = f" and {new_tokens} to generate" if new_tokens else ""
                    raise OutOfBudgetError(
                        f"sequences: one sequence of {size} tokens{generated} does not fit: "
                        f"memory allows about {limit} here"
                    )
                highest = int(max(tree.token_ids.max(), tree.targets.max(initial=0)))
                expect(highest < vocabulary, "sequences", f"token ids below the vocabulary's {vocabulary}", highest)
                planned.append(replace(tree, sequence_ids=np.asarray(members)[tree.sequence_ids]))
        return planned

    def close(self) -> None:
        """Release the model."""
        with self.lock:
            self._model = None
            self._given = []
