"""Time of learning and voting without a model: python -m pytest benchmarks/eor

Bars: fitting 16 retrievers x 4 similarities x 2,000 questions with 4 starts under 30 s on 2 cores with any pooling;
voting on 1,000 questions with different answers, similarities included, under 1 s in the slowest round.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fastreader.eor import Function, Voter

RETRIEVERS = 16
CITIES = [
    f"the city of {a}{b}" for a in ("Nor", "Sud", "Est", "Wes", "Mit") for b in ("berg", "dorf", "hafen", "stadt")
]


def simulated(questions: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return answers in several wordings, right with the probability of the retriever's skill."""
    generator = np.random.default_rng(seed)
    skills = generator.uniform(0.2, 0.6, RETRIEVERS)
    rows, correct = [], []
    for q in range(questions):
        right = generator.random(RETRIEVERS) < skills
        wrong = generator.integers(1, len(CITIES), RETRIEVERS)
        places = [
            CITIES[q % len(CITIES)] if r else CITIES[(q + w) % len(CITIES)] for r, w in zip(right, wrong, strict=True)
        ]
        wording = generator.integers(0, 4, RETRIEVERS)
        patterns = ("{}", "It is {}.", "{}, in the north", "The answer is {}")
        rows.append([patterns[w].format(place) for w, place in zip(wording, places, strict=True)])
        correct.append(right)
    return np.array(rows, dtype=object), np.array(correct, dtype=float)


def trigrams(a: str, b: str) -> float:
    first, second = ({text[i : i + 3] for i in range(len(text) - 2)} for text in (a, b))
    return len(first & second) / len(first | second)


def length(a: str, b: str) -> float:
    return min(len(a), len(b)) / max(len(a), len(b))


@pytest.mark.parametrize("pooling", ["mean", "max", "majority", "plurality"])
def test_fit(benchmark, pooling):
    texts, correct = simulated(2000)
    similarities = [
        "exact",
        "f1",
        Function("trigrams", trigrams, symmetric=True),
        Function("length", length, symmetric=True),
    ]
    voter = Voter(similarities, starts=4, pooling=pooling)
    voter.vote(texts)  # compare answers once; the benchmark repeats the fit over cached similarities
    benchmark.pedantic(voter.fit, (texts, correct), rounds=3 if pooling == "mean" else 1)
    report = voter.fit_report_
    assert report.objective > report.unweighted
    benchmark.extra_info |= {
        "questions": report.questions,
        "retrievers": RETRIEVERS,
        "similarities": len(similarities),
        "starts": report.starts,
        "evaluations": report.evaluations,
        "objective": report.objective,
        "unweighted": report.unweighted,
    }
    assert benchmark.stats.stats.median < 30


def test_vote(benchmark):
    """Vote in every round on new texts with a new voter, so that no similarity is cached."""
    rounds = itertools.count()

    def setup():
        number = next(rounds)
        texts, _ = simulated(1000, seed=number)
        fresh = np.array([[f"{text} {number} {q}" for text in row] for q, row in enumerate(texts)], dtype=object)
        return (Voter(["exact", "f1"]), fresh), {}

    votes = benchmark.pedantic(lambda voter, texts: voter.vote(texts), setup=setup, rounds=5)
    assert len(votes) == 1000
    assert benchmark.stats.stats.max < 1
