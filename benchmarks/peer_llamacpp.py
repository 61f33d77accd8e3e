"""llama.cpp's log-likelihoods or greedy texts of token ids, as JSON. side_by_side.py and generation.py start it.

It runs in a separate environment: pip install llama-cpp-python (built for this machine's instructions), and
side_by_side.py --llamacpp-python THAT/bin/python --ways "llama.cpp, prefix cache, Q4_1" ... names its interpreter.
A context is decoded once, what it shares with the one before is kept, and its continuations are decoded in one batch,
on copies of its sequence, which share its cells.

    THAT/bin/python benchmarks/peer_llamacpp.py --convert Q8_0 FROM.gguf TO.gguf    or BF16, to compare more files
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from peak import Peak

ERROR = 4  # ggml.h: GGML_LOG_LEVEL_ERROR
BATCH = 2048  # tokens a call; llama.cpp's own default
ROWS = 64  # continuations decoded together
FILE_TYPES = {"Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "BF16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16}


def main() -> None:
    if sys.argv[1:2] == ["--convert"]:
        convert(*sys.argv[2:])
        return
    llama_cpp.llama_log_set(quietly, None)
    asked: dict[str, Any] = json.load(sys.stdin)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(asked["file"].encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise SystemExit(f"llama.cpp cannot load {asked['file']}")
    first = asked["groups"][0]["context"] if "groups" in asked else asked["prompts"][0]
    warm = Context(model, 64, 1, asked["threads"])  # weights come from the disk when first used
    list(warm.decode([(token, i, 0, True) for i, token in enumerate(first[:32])]))
    warm.close()
    with Peak() as peak:
        told = score(model, asked) if "groups" in asked else write(model, asked)
    versions = {"llama-cpp-python": llama_cpp.__version__, "file": Path(asked["file"]).name}
    features = llama_cpp.llama_print_system_info().decode().strip()
    print(json.dumps({**told, "peak_bytes": peak.bytes, "versions": {**versions, "features": features}}))


@llama_cpp.llama_log_callback
def quietly(level: int, text: bytes, _: Any) -> None:
    """Show errors only."""
    if level == ERROR:
        sys.stderr.write(text.decode(errors="replace"))


class Context:
    """A cache of cells that all sequences share, and the decoding into it."""

    def __init__(self, model: Any, cells: int, sequences: int, threads: int) -> None:
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = -(-cells // 256) * 256
        settings.n_batch = BATCH
        settings.n_seq_max = sequences
        settings.n_threads = settings.n_threads_batch = threads
        settings.n_outputs_max = settings.n_outputs_max_per_seq = 0  # as many as n_batch
        settings.kv_unified = True
        self._context = llama_cpp.llama_init_from_model(model, settings)
        if not self._context:
            raise SystemExit("llama.cpp made no context")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self.computed = 0

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)

    def decode(self, entries: list[tuple[int, int, int, bool]]) -> Iterator[np.ndarray]:
        """Logits after each entry (token, position, sequence, wanted) that wants them, valid until the next."""
        self.computed += len(entries)
        for start in range(0, len(entries), BATCH):
            piece = entries[start : start + BATCH]
            batch = self._batch
            batch.n_tokens = len(piece)
            for i, (token, position, sequence, wanted) in enumerate(piece):
                batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = sequence
            if status := llama_cpp.llama_decode(self._context, batch):
                raise SystemExit(f"llama_decode: status {status}")
            for i, entry in enumerate(piece):
                if entry[3]:
                    row = llama_cpp.llama_get_logits_ith(self._context, i)
                    yield np.ctypeslib.as_array(row, shape=(self._words,))

    def copy(self, source: int, target: int) -> None:
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def forget(self, sequence: int, start: int = 0) -> None:
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, start, -1)


def score(model: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Sums in the order of fastreader's Group.sequences()."""
    groups = asked["groups"]
    room = max(len(g["context"]) + max(sum(map(len, rows)) for rows in _chunks(g["continuations"])) for g in groups)
    context = Context(model, room, ROWS + 1, asked["threads"])
    logprobs: list[float] = []
    before: list[int] = []
    started = time.perf_counter()
    for group in groups:
        ids, scored = group["context"], group["scored_from"]
        last = len(ids) - 1
        first_wanted = last if scored is None else scored - 1
        kept = min(_common(before, ids), first_wanted)
        context.forget(0, kept)
        own = 0.0
        wanted = range(max(first_wanted, 0), last + 1)
        rows = context.decode([(ids[i], i, 0, i >= first_wanted) for i in range(kept, last + 1)])
        for i, row in zip(wanted, rows, strict=True):
            if i < last:
                own += _logprob(row, ids[i + 1])
        after = row.copy()
        for continuations in _chunks(group["continuations"]):
            logprobs += _continue(context, after, len(ids), continuations)
        if scored is not None:
            logprobs.append(own)
        before = ids
    return {"seconds": time.perf_counter() - started, "logprobs": logprobs, "computed": context.computed}


def _continue(context: Context, after: np.ndarray, start: int, continuations: list[list[int]]) -> list[float]:
    """One batch over copies of sequence 0, which holds `start` tokens and ends with the logits `after`."""
    out = [_logprob(after, continuation[0]) for continuation in continuations]
    entries, targets = [], []
    for row, continuation in enumerate(continuations):
        context.copy(0, row + 1)
        for i, (token, following) in enumerate(pairwise(continuation)):
            entries.append((token, start + i, row + 1, True))
            targets.append((row, following))
    for logits, (row, following) in zip(context.decode(entries), targets, strict=True):
        out[row] += _logprob(logits, following)
    for row in range(len(continuations)):
        context.forget(row + 1)
    return out


def write(model: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """What all prompts start with is decoded once. Then every step decodes one token of each text."""
    prompts, new = asked["prompts"], asked["new"]
    shared = min(_common(prompts[0], prompt) for prompt in prompts)
    shared = min(shared, min(map(len, prompts)) - 1)
    room = shared + sum(len(prompt) - shared + new for prompt in prompts)
    context = Context(model, room, len(prompts), asked["threads"])
    started = time.perf_counter()
    list(context.decode([(prompts[0][i], i, 0, False) for i in range(shared)]))
    for row in range(1, len(prompts)):
        context.copy(0, row)
    entries = [(p[i], i, row, i == len(p) - 1) for row, p in enumerate(prompts) for i in range(shared, len(p))]
    texts = [[int(logits.argmax())] for logits in context.decode(entries)]
    first = time.perf_counter() - started
    for step in range(new - 1):
        entries = [(text[-1], len(prompts[row]) + step, row, True) for row, text in enumerate(texts)]
        for text, logits in zip(texts, context.decode(entries), strict=True):
            text.append(int(logits.argmax()))
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "first_seconds": first, "tokens": texts, "computed": context.computed}


def convert(kind: str, source: str, target: str) -> None:
    """Write another file type of a model. Q4_1 becomes BF16 as fastreader's packaged reader does."""
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype = FILE_TYPES[kind]
    settings.allow_requantize = True
    if status := llama_cpp.llama_model_quantize(source.encode(), target.encode(), settings):
        raise SystemExit(f"{source}: llama_model_quantize: status {status}")


def _chunks(continuations: list[list[int]]) -> list[list[list[int]]]:
    return [continuations[i : i + ROWS] for i in range(0, len(continuations), ROWS)]


def _common(one: list[int], other: list[int]) -> int:
    """How many tokens both start with."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _logprob(logits: np.ndarray, token: int) -> float:
    highest = logits.max()
    return float(logits[token] - highest - np.log(np.exp(logits - highest).sum()))


if __name__ == "__main__":
    main()
