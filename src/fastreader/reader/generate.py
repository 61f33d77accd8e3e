"""Many texts at once: prompts packed as a tree and read once, then every text written a token a step, together."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fastreader.core.checks import check_whole
from fastreader.core.progress import track
from fastreader.core.protocol import Generation, Results, TextOrTokens
from fastreader.core.tree import IntArray, PrefixTree, TreeStats
from fastreader.errors import ContextOverflowError, InputError, NumericsError
from fastreader.models.adapter import TreeModel
from fastreader.models.decode_cache import RowKeys
from fastreader.models.head import LOGIT_BYTES
from fastreader.models.key_values import KeyValues, Reuse
from fastreader.models.prefix_cache import Kept
from fastreader.reader.decoding import StopWatch, check_stop, check_stop_tokens
from fastreader.reader.sampling import Sampling, choose, row_generator
from fastreader.writing import Request, Row, written

if TYPE_CHECKING:
    from fastreader.reader.reader import Reader


def generate(
    reader: Reader,
    prompts: Iterable[TextOrTokens],
    *,
    max_new_tokens: int,
    n: int,
    sampling: Sampling,
    seed: int,
    stop: Sequence[str],
    stop_tokens: Sequence[int],
    token_logprobs: bool,
    on_overflow: str,
    max_tokens: int | None,
    progress: bool | None,
    kept: Kept | None = None,
) -> Results[list[Generation]]:
    """As `Reader.generate`, which documents the arguments; what of the prompts is in `kept` is not read again."""
    started = time.perf_counter()
    check_whole("max_new_tokens", max_new_tokens)
    check_whole("n", n)
    if isinstance(prompts, str):
        raise InputError(f"prompts: expected a list of prompts, got the text {prompts[:60]!r}")
    if not isinstance(prompts, Iterable):
        raise InputError(f"prompts: expected a list of prompts, got {type(prompts).__name__}")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not -(2**63) <= seed < 2**63:
        raise InputError(f"seed: expected an integer of 64 bits, got {seed!r}")
    if on_overflow not in ("error", "truncate"):
        raise InputError(f"on_overflow: expected 'error' or 'truncate', got {on_overflow!r}")
    request = Request(
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        end=reader.end_tokens,
        stop=check_stop(stop),
        stop_tokens=check_stop_tokens(stop_tokens),
        token_logprobs=token_logprobs,
    )
    rows: list[Row] = []
    seen: Counter[tuple[int, ...]] = Counter()
    for i, prompt in enumerate(prompts):
        tokens = reader.encode_prompt(prompt, f"prompts[{i}]")
        shown = _fitted(tokens, i, max_new_tokens, reader.max_length, reader.name, on_overflow)
        room = max_new_tokens if reader.max_length is None else min(max_new_tokens, reader.max_length + 1 - len(shown))
        for _ in range(n):
            # Equal prompts draw on, so that n copies of a prompt are n samples of it.
            generator = row_generator(seed, shown, seen[tuple(shown)])
            seen[tuple(shown)] += 1
            watch = StopWatch(reader.encoder.text, request.stop)
            rows.append(Row(shown, room, generator, watch, truncated=len(tokens) - len(shown)))
    stats, passes = TreeStats(0, 0, 0, 0), 0
    with track("generating", len(rows), "texts", progress) as advance:
        waiting = rows
        while waiting:
            contexts = [([*row.prompt, *row.tokens], ()) for row in waiting]
            for tree in reader.plan(contexts, max_tokens, new_tokens=max_new_tokens):
                members = [waiting[i] for i in tree.sequence_ids]
                before = sum(len(row.tokens) for row in members)
                reuse = None if kept is None else kept.reuse(tree)
                run(reader._model, reader._lock, tree, reuse, members, request, advance)
                new = sum(len(row.tokens) for row in members) - before
                read = tree.stats if reuse is None else reuse.stats(tree.stats)
                scored = new if token_logprobs else 0
                stats = stats + TreeStats(0, new, read.computed + new, scored, read.reused)
                passes += 1
            waiting = [row for row in waiting if not row.finish]
    given = sum(len(row.prompt) for row in rows)
    stats = stats + TreeStats(len(rows), given, 0, 0)
    texts = [written(row, reader.encoder.text, request) for row in rows]
    grouped = [texts[i : i + n] for i in range(0, len(texts), n)]
    return Results(grouped, stats, passes, time.perf_counter() - started)


def run(
    model: TreeModel,
    lock: threading.Lock,
    tree: PrefixTree,
    reuse: Reuse | None,
    members: list[Row],
    request: Request,
    advance: Callable[[int], None],
) -> None:
    """Read one tree of prompts, then write until every row is finished or must be read anew.

    A row of a model whose rotary frequencies change with the text's length leaves unfinished when its length
    crosses the threshold: all its keys are others from there on.

    Args:
        model: the model.
        lock: held during a pass and the choice of its tokens.
        tree: contexts (prompt and what was written before) of the rows, without continuations.
        reuse: what of the tree is known, or None.
        members: the rows, in the tree's order of sequences; written to.
        request: what is asked of them.
        advance: called with the number of rows finished.
    """
    order = np.argsort(tree.leaves, kind="stable")
    rows, leaves = [members[i] for i in order], tree.leaves[order]
    regime = model.regimes.of(int(tree.positions[leaves[0]]) + 1)
    room = max(row.room - len(row.tokens) for row in rows)
    record = KeyValues.empty() if room > 1 else None
    distinct, state_of = np.unique(leaves, return_inverse=True)
    with lock:
        states = model.hidden(tree, reuse=reuse, record=record, rows=distinct)
        _write(model, states, state_of, rows, request)
    advance(sum(bool(row.finish) for row in rows))
    if record is None:
        return
    keys = RowKeys(tree, record, leaves, room - 1, any(model.windows))
    while True:
        positions = keys.positions.tolist()
        live = [i for i, row in enumerate(rows) if not row.finish and model.regimes.of(positions[i] + 1) == regime]
        if not live:
            return
        if len(live) < len(rows):
            rows = [rows[i] for i in live]
            keys.keep(np.asarray(live, dtype=np.int64))
        keys.begin()
        tokens = np.asarray([row.tokens[-1] for row in rows], dtype=np.int64)
        with lock:
            states = model.forward(tokens, keys.place, keys)
            _write(model, states, np.arange(len(rows)), rows, request)
        advance(sum(bool(row.finish) for row in rows))


def _write(model: TreeModel, states: Tensor, state_of: IntArray, rows: list[Row], request: Request) -> None:
    """Choose the next token of every row; row r's distribution comes from ``states[state_of[r]]``, ascending."""
    per = max(1, LOGIT_BYTES // (4 * model.head.weight.shape[0]))
    for first in range(0, len(rows), per):
        part = rows[first : first + per]
        used, of = np.unique(state_of[first : first + per], return_inverse=True)
        logits = model.logits(states[torch.from_numpy(used).to(states.device)])
        if len(used) < len(part):
            logits = logits[torch.from_numpy(of).to(states.device)]
        if not bool(torch.isfinite(logits.amax(dim=-1)).all()):
            raise NumericsError(
                f"{model.name}: the logits of a next token are not finite; the weights are damaged, or their products "
                f"too large for precision {model.precision!r}"
            )
        uniforms = [row.draw.random() for row in part] if request.sampling.temperature else []
        chosen = choose(logits, request.sampling, uniforms)
        logprobs: list[float] | list[None] = [None] * len(part)
        if request.token_logprobs:
            picked = logits.gather(1, chosen[:, None])[:, 0]
            logprobs = (picked.double() - logits.double().logsumexp(dim=-1)).tolist()
        for row, token, logprob in zip(part, chosen.tolist(), logprobs, strict=True):
            row.add(token, logprob, request)


def _fitted(
    tokens: Sequence[int], index: int, max_new_tokens: int, limit: int | None, name: str, on_overflow: str
) -> Sequence[int]:
    """The prompt, or the end of it that leaves room to write.

    Raises:
        ContextOverflowError: there is no room.
    """
    if limit is None:
        return tokens
    if on_overflow == "error":
        if len(tokens) > limit:
            raise ContextOverflowError(
                f"prompts[{index}] is {len(tokens)} tokens long, the context of {name} is {limit}: no room to write"
            )
        return tokens
    kept = limit + 1 - max_new_tokens
    if kept < 1:
        raise ContextOverflowError(
            f"max_new_tokens: {max_new_tokens} tokens leave no room for a prompt in the context of {name}, {limit}"
        )
    return tokens[-kept:]
