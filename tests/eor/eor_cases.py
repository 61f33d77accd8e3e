"""Shared test cases: two small passage files, a rule-based reader, simulated retrievers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from helpers.scripted import ScriptedReader

WEB = [
    ("w1", "Nile", "The Nile flows through Cairo in Egypt. " + "Boats carry people along the river every day. " * 40),
    ("w2", "Seine", "The Seine flows through Paris. " + "Its banks are full of book stalls. " * 30),
    ("w3", "Cairo", "Cairo lies on the river Nile and is the largest city of Egypt."),
    ("w4", "Thames", "The Thames flows through London, a large city."),
    ("w5", "Bridges", "A city on a river needs bridges."),
]
WIKI = [
    ("k1", "Cairo", "Cairo is the capital of Egypt; the river there is the Nile."),
    ("k2", "Danube", "The Danube is a river that flows through Vienna and Budapest."),
    ("k3", "Egypt", "Egypt is a country whose capital city is Cairo."),
    ("k4", "Paris", "Paris is the capital of France, on the river Seine."),
    ("k5", "Vienna", "Vienna is a city on the Danube."),
    ("k6", "River", "A river is a natural stream of water; a city often lies on one."),
]
QUESTION = "Which river flows through the city of Cairo?"


def passage_file(path: Path, rows: list[tuple[str, str, str]]) -> Path:
    path.write_text("".join(json.dumps({"id": i, "title": t, "text": x}) + "\n" for i, t, x in rows))
    return path


def write(prompt: str, sample: int) -> str:
    """Return background documents, summaries and answers by a simple rule."""
    if prompt.startswith("Write a background document"):
        return "Cairo lies on the Nile."
    if prompt.startswith("Sum up"):
        return "Summary: the Nile is named." if "Nile" in prompt.split("Document:")[1] else "Nothing of use."
    return "Nile" if "Nile" in prompt else "Danube"


def rate(context: str, continuation: str) -> float:
    """Score a question after a passage in nats by their common words."""
    return -10.0 + len(set(context.lower().split()) & set(continuation.lower().split()))


class CountingReader(ScriptedReader):
    """A scripted reader that counts its calls."""

    def __init__(self, write=write, score=rate) -> None:
        super().__init__(write, score)
        self.generations: list[int] = []
        self.passes: list[int] = []

    def generate(self, prompts, **options):
        texts = list(prompts)
        self.generations.append(len(texts))
        return super().generate(texts, **options)

    def loglikelihood(self, requests, **options):
        pairs = list(requests)
        self.passes.append(len(pairs))
        return super().loglikelihood(pairs, **options)


def simulate(seed, questions, skills, *, copies=(), copying=0.0, noise=0, wrong=40):
    """Return answers of retrievers with known skill, and their correctness.

    Retriever m is right with probability skills[m] and otherwise draws one of `wrong` wrong answers. With probability
    `copying` those in `copies` all give the same wrong answer. `noise` more retrievers are never right.
    """
    generator = np.random.default_rng(seed)
    rows, correct = [], []
    for _ in range(questions):
        together = generator.random() < copying
        shared = f"wrong{generator.integers(wrong)}"
        row = []
        for m, skill in enumerate(skills):
            right = generator.random() < skill
            other = f"wrong{generator.integers(wrong)}"
            row.append(shared if m in copies and together else "right" if right else other)
        row += [f"wrong{generator.integers(wrong)}" for _ in range(noise)]
        rows.append(row)
        correct.append([float(answer == "right") for answer in row])
    return np.array(rows, dtype=object), np.array(correct)
