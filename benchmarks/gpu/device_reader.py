"""Score real questions by a real reader on a device, next to the CPU's: device_reader.py FOLDER --seconds N

FOLDER holds a model (`model.gguf`), `questions.jsonl` (question, passages, candidates) and `wanted.json`, which
`device_reader.py FOLDER --prepare` writes where the model runs on a CPU: log-probabilities and greedy texts of "exact".
Rows go to $OUT/rows.jsonl.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from device_rows import DeviceRows

import fastreader
from fastreader import Reader

ORDERS, TOKENS, ROUNDS = "cyclic", 24, 5


def questions_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the questions' file."""
    return [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()]


def scored(reader: Reader, rows: list[dict[str, Any]]) -> np.ndarray:
    """Return log P(candidate | ordering, question): float64 [questions, orderings, candidates]."""
    found = [
        fastreader.score_permutations(reader, row["question"], row["passages"], row["candidates"], ORDERS)
        for row in rows
    ]
    return np.stack([scores.logprobs for scores in found])


def written(reader: Reader, rows: list[dict[str, Any]]) -> list[list[int]]:
    """Return the greedy tokens after each question with its passages."""
    prompts = ["\n\n".join([*row["passages"], f"Question: {row['question']}\nAnswer:"]) for row in rows]
    return [one.token_ids for (one,) in reader.generate(prompts, max_new_tokens=TOKENS)]


def loaded(folder: Path, precision: str, device: str) -> Reader:
    """Return the folder's reader."""
    return Reader.load(folder / "model.gguf", device=device, precision=precision)


def prepare(folder: Path) -> None:
    """Write what the CPU finds."""
    rows, reader = questions_of(folder), loaded(folder, "exact", "cpu")
    wanted = {"scores": scored(reader, rows).tolist(), "texts": written(reader, rows)}
    (folder / "wanted.json").write_text(json.dumps(wanted))


def compare(rows: DeviceRows, folder: Path, precision: str) -> None:
    """Write how far a precision on the device is from the CPU, and what it takes."""
    began = time.perf_counter()
    reader = loaded(folder, precision, "cuda")
    loading = time.perf_counter() - began
    questions, wanted = questions_of(folder), json.loads((folder / "wanted.json").read_text())
    want = np.asarray(wanted["scores"])
    torch.cuda.reset_peak_memory_stats()
    error = np.abs(scored(reader, questions) - want)
    texts = written(reader, questions)
    agreeing = sum(got == text for got, text in zip(texts, wanted["texts"], strict=True))
    rows.write(
        suite="reader", case="real questions", way=precision, mean=float(error.mean()), largest=float(error.max()),
        loading=loading, same_best=float((scored(reader, questions).argmax(-1) == want.argmax(-1)).mean()),
        texts=len(texts), same_texts=agreeing, peak=torch.cuda.max_memory_allocated(),
    )  # fmt: skip
    for what, call in (("score", scored), ("write", written)):
        taken: list[float] = []
        for _ in range(ROUNDS):
            torch.cuda.synchronize()
            started = time.perf_counter()
            call(reader, questions)
            torch.cuda.synchronize()
            taken.append(1e3 * (time.perf_counter() - started) / len(questions))
        rows.write(suite="reader", case=f"{what}, a question", way=precision, milliseconds=float(np.median(taken)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prepare", action="store_true", help="write wanted.json on the CPU")
    parser.add_argument("--seconds", type=float, default=100.0, help="begin nothing after these")
    a = parser.parse_args()
    if a.prepare:
        prepare(a.folder)
        return
    rows = DeviceRows(a.seconds)
    for precision in ("fast", "exact", "high"):
        rows.attempt(f"reader, {precision}", lambda name=precision: compare(rows, a.folder, name))  # type: ignore[misc]


if __name__ == "__main__":
    main()
