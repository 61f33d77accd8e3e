"""Generate many texts at once: prefill the prompts as one tree, then decode all texts together, a token a step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from itertools import starmap
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from fastreader.core.checked import accept, kind_of
from fastreader.core.options import StepOptions
from fastreader.core.progress import track
from fastreader.core.protocol import Generation, Results, TextOrTokens
from fastreader.core.tree import IntArray, PrefixTree, TreeStats
from fastreader.models.passes import row_keys
from fastreader.models.passes.decode_keys import DecodeKeys
from fastreader.models.passes.key_values import Reuse
from fastreader.models.passes.prefix_cache import KeptKeys
from fastreader.reader.fitting import leave_room
from fastreader.reader.generation.gpu_decoding import Decoding, check_finite, decode_on_device
from fastreader.reader.generation.sampling import penalise, pick, row_generator, top_rows
from fastreader.reader.generation.text_so_far import DecodedText, Stops, StopStrings, unfinished
from fastreader.reader.local_model import LocalModel

Steps: TypeAlias = Generator[list[DecodedText], None, Results[list[Generation]]]

_PROMPTS = replace(kind_of(Iterable[Any]), words="a list of prompts")


def generate(
    local_model: LocalModel, prompts: Iterable[TextOrTokens], options: StepOptions, kept: KeptKeys | None = None
) -> Steps:
    """Do the work of `Reader.generate` step by step, reusing the keys and values in `kept`.

    Yields:
        After each step the texts so far, `options.n` for each prompt. A text whose `finish_reason` the caller sets is
        dropped before the next step.

    Returns:
        The results, as the generator's value.
    """
    started = time.perf_counter()
    if local_model.relevance is not None:
        local_model.require_language_model()
    stops = Stops(local_model.encoder, options.stop)
    options = replace(options, stop_token_ids=(*options.stop_token_ids, *stops.token_ids))
    texts = _new_texts(local_model, accept("prompts", prompts, _PROMPTS), options, stops)
    computed = cached = passes = 0
    with track("generating", len(texts), "texts", options.progress) as advance:
        decoding = Decoding(local_model, options, advance)
        while True:
            waiting, contexts = [], []
            for text in texts:
                if not text.finish_reason:
                    waiting.append(text)
                    contexts.append(([*text.prompt, *text.tokens] if text.tokens else text.prompt, ()))
            if not waiting:
                break
            for tree in local_model.plan(contexts, options.max_batch_tokens, new_tokens=options.max_new_tokens):
                members = list(map(waiting.__getitem__, tree.sequence_ids))
                if not unfinished(members):  # dropped meanwhile
                    continue
                reuse = None if kept is None else kept.lookup(tree)
                for _ in run(decoding, tree, reuse, members):
                    yield texts
                read = tree.stats if reuse is None else reuse.stats(tree.stats)
                computed += read.computed_tokens
                cached += read.cached_tokens
                passes += 1
    groups: list[list[Generation]] = []
    given = new = 0
    for i, text in enumerate(texts):
        if i % options.n == 0:
            groups.append([])
        groups[-1].append(stops.generation(text, options))
        given += len(text.prompt)
        new += len(text.tokens)
    stats = TreeStats(len(texts), given + new, computed + new, new if options.token_logprobs else 0, cached)
    return Results(groups, stats, passes, time.perf_counter() - started)


def _new_texts(
    local_model: LocalModel, prompts: Iterable[TextOrTokens], options: StepOptions, stops: Stops
) -> list[DecodedText]:
    """Return `options.n` texts for each prompt, cut to the context where the options allow it."""
    texts: list[DecodedText] = []
    seen: Counter[tuple[int, ...]] = Counter()
    limit, most = local_model.model.max_length, options.max_new_tokens
    for i, prompt in enumerate(prompts):
        tokens = local_model.encoder.prompt_tokens(prompt, f"prompts[{i}]", special_tokens=options.special_tokens)
        shown = leave_room(tokens, most, limit, options.on_overflow, name=f"prompts[{i}]", of=local_model.name)
        key = tuple(shown)
        for _ in range(options.n):
            # Repeated prompts continue the same random stream, so n copies give n different samples.
            texts.append(
                DecodedText(
                    prompt=shown,
                    room=most if limit is None else min(most, limit + 1 - len(shown)),
                    draw=row_generator(options.seed, shown, seen[key]) if options.temperature else None,
                    watches=tuple(starmap(StopStrings, stops.sought)),
                    truncated=len(tokens) - len(shown),
                )
            )
            seen[key] += 1
    return texts


def run(decoding: Decoding, tree: PrefixTree, reuse: Reuse | None, members: list[DecodedText]) -> Iterator[None]:
    """Read one tree of prompts, then decode until every text is finished or must be read again, and yield each step.

    If the model's rotary frequencies depend on the length, a text that crosses the threshold is left unfinished: its
    cached keys become invalid from that position on.

    Args:
        decoding: the call.
        tree: contexts (prompt and tokens decoded before) of the texts, without continuations.
        reuse: cached keys and values for part of the tree, or None.
        members: the texts, in the tree's order of sequences; extended in place.
    """
    local_model, advance = decoding.local_model, decoding.advance
    model = local_model.model
    order = np.argsort(tree.leaves, kind="stable")
    texts, leaves = list(map(members.__getitem__, order)), tree.leaves[order]
    regime = 0 if model.regimes.fixed else model.regimes.of(int(tree.positions[leaves[0]]) + 1)
    room = 0
    for text in texts:
        room = max(room, text.room - len(text.tokens))
    key_values = model.new_key_values(tree, reuse, leaves_only=True) if room > 1 else None
    distinct, state_of = np.unique(leaves, return_inverse=True)
    with local_model.lock:
        states = model.hidden(tree, reuse=reuse, key_values=key_values, rows=distinct)
        finished = _decode_step(decoding, states, state_of, texts)
    advance(finished)
    yield
    if key_values is None or not unfinished(texts):
        return
    known = decoding.options.repetition_penalty == 1  # the device does not keep which tokens a text holds
    if known and model.writes_on_device and row_keys.why_not(key_values) is None:
        yield from decode_on_device(decoding, tree, key_values, leaves, texts)
        return
    cache = DecodeKeys(tree, key_values, leaves, room - 1, row_by_row=model.deterministic)
    while True:
        live = unfinished(texts)
        if not model.regimes.fixed:
            positions = cache.next_positions.tolist()
            live = [i for i in live if model.regimes.of(positions[i] + 1) == regime]
        if not live:
            return
        if len(live) < len(texts):
            texts = list(map(texts.__getitem__, live))
            cache.select(np.asarray(live, dtype=np.int64))
        cache.begin_step()
        tokens = np.array([text.tokens[-1] for text in texts], dtype=np.int64)
        with local_model.lock:
            states = model.forward(tokens, cache.step_positions, cache)
            finished = _decode_step(decoding, states, None, texts)
        if finished:
            advance(finished)
        yield


def _decode_step(decoding: Decoding, states: Tensor, state_of: IntArray | None, texts: list[DecodedText]) -> int:
    """Choose the next token of every text, and return the number of texts that it finishes.

    The distribution of text r comes from ``states[state_of[r]]`` (ascending), or from ``states[r]`` for None.
    """
    finished, model, options = 0, decoding.local_model.model, decoding.options
    for places, logits in model.logits.parts(states, state_of):
        part = texts[places]
        draws = [text.draw.random() for text in part if text.draw is not None] if options.temperature else []
        penalised = None
        if options.repetition_penalty != 1:
            penalised = penalise(logits, [[*text.prompt, *text.tokens] for text in part], options.repetition_penalty)
        picked = pick(logits, options, draws, penalised)
        check_finite(model, picked.highest.tolist())
        logprobs = [None] * len(part) if picked.logprobs is None else picked.logprobs.tolist()
        tops = [None] * len(part) if picked.top is None else top_rows(*picked.top)
        for text, token, logprob, top in zip(part, picked.tokens.tolist(), logprobs, tops, strict=True):
            text.add(token, logprob, decoding.local_model.end_tokens, options.stop_token_ids, top)
            finished += bool(text.finish_reason)
    return finished
