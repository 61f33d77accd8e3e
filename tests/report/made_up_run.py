"""A run folder with random rows in the form that a study writes, for the report's tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fastreader.data import Example, Passage
from fastreader.noise.layouts import LayoutSpec, oracle_grid, realistic_grid
from fastreader.study import RunFolder, Study
from fastreader.study.folder import ATTENTION, ATTRIBUTION, COSTS, RESULTS, VOTER

RETRIEVERS = ["R@1", "R@3", "R", "R@RR@3", "ReFree"]
WORDS = """
    river metal planet king city treaty film engine sea mountain bridge poet island comet theory
""".split()  # noqa: SIM905
LAYOUTS = ["noise:closed_book", "noise:gold"] + [
    f"noise:{kind}:{n}:{position}"
    for kind in ("distracting", "random")
    for n in (2, 4, 8)
    for position in ("far", "mid", "near")
]
METHODS = ["base", "closed_book", "moi", "order:random", "sure", "eor", *LAYOUTS, "marginal"]


GRID = ["noise:closed_book"] + [
    f"noise:{name}" for name in [*oracle_grid(counts=(1, 2, 4, 8)), *realistic_grid([4], [0, 1, 2, 4, 8])]
]


def make_run(
    folder: Path,
    questions: int = 24,
    methods=METHODS,
    gold: bool = True,
    seed: int = 0,
    passages: int = 10,
    words: int = 40,
):
    """Write a folder whose answers are made-up words. Some texts are hostile HTML."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    study = Study.of(
        {
            "name": "A made-up run",
            "data": str(folder / "none.jsonl"),
            "methods": list(methods),
            "passages": passages,
            "primary": "moi" if "moi" in methods else None,
            "eor": {"fit": True},
        }
    )
    run = RunFolder(folder)
    run.write_json("study.json", study.to_dict())
    examples = [_example(rng, q, passages, gold, words) for q in range(questions)]
    run.keep(study, examples)
    with run.file(RESULTS).open("w", encoding="utf-8") as lines:
        for q, example in enumerate(examples):
            for method in methods:
                row = _row(rng, q, example, method, gold)
                lines.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
    if any(m.startswith("noise:random") for m in methods) and gold:
        with run.file(ATTENTION).open("w", encoding="utf-8") as lines:
            for example in examples[:3]:
                for layout, kinds in (("gold", ["gold"]), ("random:2:near", ["random"] * 2 + ["gold"])):
                    key = [example.id, f"noise:{layout}", "smollm2-135m"]
                    row = {"question_id": key[0], "method": key[1], "layout": layout, "reader": key[2], "error": None}
                    row |= {"id": json.dumps(key), "attention": _attention(rng, kinds), "settings": {}}
                    lines.write(json.dumps(row) + "\n")
    if "moi" in methods:
        _attribute(rng, run, passages)
    costs = {"calls": 9, "total_tokens": 90000, "computed_tokens": 50000, "run_tokens": 40000, "seconds": 12}
    run.write_json(COSTS, {"smollm2-135m": costs})
    if "eor" in methods:
        fitted = {"retrievers": RETRIEVERS, "retriever_weights": [0.3, 0.0, 0.6, 0.21, 0.0]}
        run.write_json(VOTER, {"smollm2-135m": {"eor": {"voter": {"fitted": fitted}, "questions": questions}}})
    return run


def _attribute(rng, run: RunFolder, passages: int) -> None:
    answered = [row for row in run.rows() if row["method"] == "base" and row["answer"]]
    with run.file(ATTRIBUTION).open("w", encoding="utf-8") as lines:
        for row in answered[:3]:
            own = {name: row[name] for name in ("question_id", "reader", "answer")}
            values = {name: rng.normal(size=passages).tolist() for name in ("shapley", "alone")}
            own |= {"id": json.dumps(list(own.values())), "attribution": values, "error": None, "settings": {}}
            lines.write(json.dumps(own) + "\n")


def _example(rng, q: int, count: int, gold: bool, words: int) -> Example:
    right = str(rng.choice(WORDS))
    place = int(rng.integers(0, count))
    passages = [
        Passage(
            " ".join(rng.choice(WORDS, words)) + (f" {right}." if p == place else "."),
            f"Title {q}-{p}" if p else "</script><b>Title</b>",
            f"{q}/{p}",
            float(20 - p),
            (p == place) if gold else None,
        )
        for p in range(count)
    ]
    hostile = "<script>document.title = 'owned'</script> & " if q == 0 else ""
    return Example(f"{hostile}Which {rng.choice(WORDS)} is meant in question {q}?", passages, [right], id=f"q{q}")


def _row(rng, q: int, example: Example, method: str, gold: bool):
    right = rng.random() < {"closed_book": 0.15, "moi": 0.55, "sure": 0.5, "eor": 0.45}.get(method, 0.4)
    count = len(example.passages)
    answer: str | None = example.answers[0] if right else str(rng.choice(["a word", "nothing", "<i>no</i>"]))
    needs_gold = method.startswith("noise:") and method != "noise:closed_book"
    missing = needs_gold and (not gold or q == 1)
    trace = _trace(rng, method, example, count)
    if missing:
        answer, trace = None, {}
    score = None if missing else float(right)
    total = int(rng.integers(800, 1600))
    return {
        "id": json.dumps([example.id, method, "smollm2-135m", 0]),
        "question_id": example.id,
        "method": method,
        "reader": "smollm2-135m",
        "seed": 0,
        "answer": answer,
        "em": score,
        "f1": score,
        "contained": score,
        "left_out": f"{method[6:]}: no retrieved passage of {example.id!r} is flagged as gold" if missing else None,
        "over_long": None,
        "error": None,
        "tokens": {"total_tokens": total, "computed_tokens": total * 2 // 3, "new_tokens": 9, "calls": 1},
        "seconds": round(float(rng.random()), 3),
        "trace": trace,
        "settings": {},
    }


def _trace(rng, method: str, example: Example, count: int):
    order = rng.permutation(count).tolist()
    if method == "moi":
        utility = rng.normal(size=count)
        shifts = [order[i:] + order[:i] for i in range(count)]
        return {
            "order": order,
            "design": "matched",
            "utilities": {
                "utility": (utility - utility.mean()).tolist(),
                "p_best": (np.exp(utility) / np.exp(utility).sum()).tolist(),
                "bias": (1 / count + 0.05 * rng.normal(size=count)).tolist(),
            },
            "observations": {"permutations": shifts, "values": rng.normal(-20, 1, count).tolist()},
            "notes": ["no calibration for this reader"],
        }
    if method == "marginal":
        shares = [0.75, 0.25] if rng.random() < 0.5 else [0.6, 0.4]
        return {
            "candidates": ["first", "second"],
            "probabilities": shares,
            "written": [3, 2],
            "confidence": shares[0],
        }
    if method == "sure":
        return {
            "order": list(range(count)),
            "candidates": ["first", "second"],
            "summaries": ["It is the first. " * 20, "It is the second."],
            "validity": [1.0, 0.0],
            "validity_probability": [0.8, 0.3],
            "ranking": [1.0, 0.0],
            "scores": [2.0, 0.0],
        }
    if method == "eor":
        texts = [example.answers[0] if rng.random() < 0.4 else str(rng.choice(WORDS)) for _ in RETRIEVERS]
        documents = [
            {
                "retriever": name,
                "failure": None,
                "passages": [{"title": p.title, "text": p.text} for p in example.passages[: 2 * m]],
            }
            for m, name in enumerate(RETRIEVERS)
        ]
        vote = {
            "winner": 0,
            "scores": [0.9, 0.5, 0.2, None, 0.1],
            "support": [0.9, 0.5, 0.2, 0.1, 0.1],
            "abstained": None,
        }
        return {
            "ensemble": {"predictions": dict(zip(RETRIEVERS, texts, strict=True)), "documents": documents, "vote": vote}
        }
    if method.startswith("noise:"):
        return _laid(rng, LayoutSpec.parse(method[6:]), example)
    return {"order": order if method != "closed_book" else []}


def _laid(rng, spec: LayoutSpec, example: Example):
    """Return a trace of a noise layout. Random passages are given in full."""
    elsewhere = [(f"Elsewhere {example.id} {i}", f"Far away, {i}. " + " ".join(WORDS * 6)) for i in range(spec.count)]
    others = [{"kind": "random", "title": title, "text": text} for title, text in elsewhere]
    if spec.noise == "distracting":
        others = [{"kind": "distracting", "index": i} for i in range(spec.count)]
    flagged = next((i for i, p in enumerate(example.passages) if p.is_gold), 0)
    gold = [{"kind": "gold", "index": flagged}] if spec.gold else []
    retrieved = [{"kind": "distracting", "index": i} for i in reversed(range(spec.retrieved))]
    return {
        "order": [*gold, *others, *retrieved] if spec.position == "far" else [*others, *gold, *retrieved],
        "layout": spec.name,
        "no_answer": bool(rng.random() < 0.1),
        "reply": " a reply\n",
        "prompt_tokens": 900,
        "finish_reason": "eos",
    }


def _attention(rng, kinds):
    return {
        "attention": rng.random((6, len(kinds))).tolist(),
        "entropy": rng.random(6).tolist(),
        "prompt_tokens": 300,
        "answer_tokens": 3,
        "kinds": kinds,
    }
