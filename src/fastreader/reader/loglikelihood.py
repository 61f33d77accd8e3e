"""Score many continuations, their shared prefixes computed once: the work of `Reader.loglikelihood`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch

from fastreader.core.checked import accept, checked, kind_of
from fastreader.core.checks import check_choice, check_list, check_tokens, expect, located, require
from fastreader.core.progress import SOON, in_steps, track, unshown
from fastreader.core.protocol import Loglikelihood, LoglikelihoodArguments, Results, SequenceScores, TextOrTokens
from fastreader.core.tree import PrefixTree, TokenPairs, Tokens, TreeStats
from fastreader.errors import NumericsError
from fastreader.models.passes.key_values import KeyValues, Reuse
from fastreader.models.passes.logit_head import most_likely_tokens
from fastreader.models.passes.prefix_cache import KeptKeys
from fastreader.models.tree_model import TreeModel
from fastreader.ops.linear_logprob import LogprobStats
from fastreader.reader.fitting import leave_room
from fastreader.reader.local_model import LocalModel
from fastreader.reader.prompts.encoder import TextEncoder
from fastreader.reader.prompts.writer import PromptWriter

_BOOL = kind_of(bool)


def score_requests(
    score: Callable[[list[tuple[Tokens, Tokens]]], SequenceScores],
    encoder: TextEncoder,
    max_length: int | None,
    requests: Iterable[tuple[TextOrTokens, TextOrTokens]],
    *,
    token_logprobs: bool = False,
    special_tokens: bool = True,
    on_overflow: str = "error",
) -> Results[Loglikelihood]:
    """Do the work of `Reader.loglikelihood` with a reader's `score`, encoder and longest input."""
    accept("token_logprobs", token_logprobs, _BOOL)
    accept("special_tokens", special_tokens, _BOOL)
    check_list("requests", requests, of="pairs")
    check_choice("on_overflow", on_overflow, ("error", "truncate"))
    sequences, truncated = [], []
    for i, request in enumerate(requests):
        context, continuation = _encode(encoder, i, request, special_tokens)
        kept = context
        if on_overflow == "truncate":
            name = f"requests[{i}]: continuation"
            kept = leave_room(context, len(continuation), max_length, on_overflow, name="context", new_name=name)
        sequences.append((kept, continuation))
        truncated.append(len(context) - len(kept))
    if not sequences:
        return Results([], TreeStats(0, 0, 0, 0), passes=0)
    scores = score(sequences)
    results = []
    for i, cut in enumerate(truncated):
        tokens = scores.token_logprobs[i].tolist() if token_logprobs else None
        logprob, count, greedy = float(scores.logprob[i]), int(scores.num_tokens[i]), bool(scores.is_greedy[i])
        results.append(Loglikelihood(logprob, count, greedy, token_logprobs=tokens, truncated=cut))
    return Results(results, scores.stats, scores.passes, scores.seconds)


def score(
    local_model: LocalModel,
    sequences: TokenPairs,
    *,
    max_batch_tokens: int | None,
    trees: Sequence[PrefixTree] | None = None,
    progress: bool | None = False,
    kept: KeptKeys | None = None,
    top_tokens: int = 0,
) -> SequenceScores:
    """Do the work of `Reader.score`, reusing the keys and values in `kept`.

    Args:
        local_model: the model.
        sequences, max_batch_tokens, trees, top_tokens: see `Reader.score`.
        progress: show a progress bar; None shows one on a terminal after a second. `showing` decides before it.
        kept: cached keys and values.
    """
    started = time.perf_counter()
    local_model.require_unchanged()
    keeps = kept is not None and kept.keeps
    holds = keeps or (kept is not None and kept.loads)
    if trees is None or holds:
        # Cached keys and values need memory besides the pass, as when tokens are generated after it.
        trees = local_model.plan(sequences, max_batch_tokens, new_tokens=2 if holds else 0, trees=trees)
    if kept is not None and keeps:
        kept.admit(trees)
    head = local_model.relevance
    if head is not None and any(len(continuation) for _, continuation in sequences):
        local_model.require_language_model()
    relevance = None if head is None else np.zeros(len(sequences))
    count, top_tokens = len(sequences), min(top_tokens, local_model.model.head.weight.shape[0])
    logprob, greedy = np.zeros(count), np.zeros(count, dtype=bool)
    tokens = np.zeros(count, dtype=np.int64)
    token_logprobs: list[npt.NDArray[np.float64]] = [np.zeros(0)] * count
    top, top_logprobs = [np.zeros((0, top_tokens), dtype=np.int64)] * count, [np.zeros((0, top_tokens))] * count
    stats = TreeStats(0, 0, 0, 0)
    layers = len(local_model.model.windows)
    with track("scoring", len(trees), "passes", progress, after=SOON) as advance:
        for tree in trees:
            reuse = None if kept is None else kept.lookup(tree)
            key_values = kept.new_key_values(tree, reuse) if kept is not None and keeps else None
            steps = nullcontext() if advance is unshown else in_steps(advance, layers)
            with steps, local_model.lock:
                most = None
                if head is not None and relevance is not None:
                    kept_now = None if top_tokens else key_values
                    result, relevance[tree.sequence_ids] = head.read(local_model.model, tree, reuse, kept_now)
                if top_tokens:
                    result, most = _with_top_tokens(local_model.model, tree, top_tokens, reuse, key_values)
                elif head is None:
                    result = local_model.model.score(tree, reuse=reuse, key_values=key_values)
            values = result.logprob.double().cpu().numpy()[tree.pairs]
            if not np.isfinite(values).all():
                row = int(np.searchsorted(tree.offsets, np.flatnonzero(~np.isfinite(values))[0], side="right")) - 1
                raise NumericsError(
                    f"sequence {tree.sequence_ids[row]}: a log-likelihood is not finite; the weights are damaged, or "
                    f"their products too large for precision {local_model.arithmetic.precision!r}"
                )
            hits = result.argmax.cpu().numpy()[tree.pairs] == tree.targets[tree.pairs]
            for row, sequence in enumerate(tree.sequence_ids.tolist()):
                part = slice(tree.offsets[row], tree.offsets[row + 1])
                token_logprobs[sequence] = values[part]
                logprob[sequence] = values[part].sum()
                greedy[sequence] = hits[part].all()
                tokens[sequence] = tree.offsets[row + 1] - tree.offsets[row]
                if most is not None:
                    top[sequence], top_logprobs[sequence] = most[0][part], most[1][part]
            stats = stats + (tree.stats if reuse is None else reuse.stats(tree.stats))
            if kept is not None and key_values is not None:
                kept.add(tree, key_values)
    return SequenceScores(
        logprob,
        tokens,
        greedy,
        token_logprobs,
        stats,
        len(trees),
        time.perf_counter() - started,
        top if top_tokens else None,
        top_logprobs if top_tokens else None,
        relevance,
    )


@torch.inference_mode()
def _with_top_tokens(
    model: TreeModel, tree: PrefixTree, count: int, reuse: Reuse | None, key_values: KeyValues | None
) -> tuple[LogprobStats, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]] | None]:
    """Return a tree's log-probabilities, and the `count` most likely tokens at the place of each with their own.

    The first comes from the same products as the scored token, so that a greedy token is exactly as likely.
    """
    states = model.hidden(tree, reuse=reuse, key_values=key_values, rows=tree.sources)
    result = model.pair_logprobs(states, tree)
    first = result.argmax.cpu().numpy().astype(np.int64)
    tokens = torch.empty((len(states), count), dtype=torch.int64)
    logprobs = torch.empty((len(states), count), dtype=torch.float64)
    tokens[:, 0] = result.argmax.cpu()
    logprobs[:, 0] = model.pair_logprobs(states, replace(tree, targets=first)).logprob.double().cpu()
    for places, logits in model.logits.parts(states) if count > 1 else ():
        tokens[places, 1:], logprobs[places, 1:] = most_likely_tokens(logits, count - 1, result.argmax[places])
    ids, values = (side.numpy()[tree.pairs] for side in (tokens, logprobs))
    return result, (ids, values)


def _encode(
    encoder: TextEncoder, index: int, request: tuple[TextOrTokens, TextOrTokens], special_tokens: bool
) -> tuple[Sequence[int], Sequence[int]]:
    name = f"requests[{index}]"
    pair = not isinstance(request, str) and isinstance(request, Sequence) and len(request) == 2
    expect(pair, name, "a pair (context, continuation)", request)
    context, continuation = request
    alike = isinstance(context, str) == isinstance(continuation, str)
    require(alike, f"{name}: context and continuation must both be text or both token ids")
    if isinstance(context, str):
        assert isinstance(continuation, str)
        with located(name):
            return encoder.pair(context, continuation, special_tokens=special_tokens)
    assert not isinstance(continuation, str)
    check_tokens(f"{name}: continuation", continuation)
    require(len(continuation) > 0, f"{name}: expected a continuation to score, got no token")
    return encoder.prompt_tokens(context, f"{name}: context"), continuation


@checked
class ScoreReader(PromptWriter, ABC):
    """A reader whose `loglikelihood` is made of its `score` and `max_length`, since its model is not in this object."""

    @property
    @abstractmethod
    def max_length(self) -> int | None:
        """Longest input in tokens, or None if there is no limit."""

    @abstractmethod
    def score(self, sequences: TokenPairs, *, max_batch_tokens: int | None = None) -> SequenceScores:
        """Score (context, continuation) pairs of token ids, as `Reader.score`."""

    def loglikelihood(
        self,
        requests: Iterable[tuple[TextOrTokens, TextOrTokens]],
        *,
        progress: bool | None = None,
        **options: Unpack[LoglikelihoodArguments],
    ) -> Results[Loglikelihood]:
        """Return the log-likelihood of each continuation after its context, as `Reader.loglikelihood`."""
        score = partial(self.score, max_batch_tokens=options.pop("max_batch_tokens", None))
        others: Any = options
        return score_requests(score, self.encoder, self.max_length, requests, **others)
