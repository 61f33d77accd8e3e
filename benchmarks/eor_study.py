"""The ensemble of retrievers on real questions, beside single retrievers and a control of equal cost.

    python benchmarks/eor_study.py DATA POOL --questions 300 --output eor.jsonl --report eor

Sources overlap: BM25 and a sentence encoder over the same pool, and each over the pool without 20% of it, drawn apart.
Each question is answered once a retriever. The control reads the best single retriever's passages as often as there are
retrievers: in other orders, and by sampling. Questions are halved; what is chosen or learned for one half (the best
single retriever, a voter's weights) comes from the other, so that all questions are reported and none was fitted on.

Every answer is on the disk as soon as it is there, and a stopped run continues. Without DATA and POOL only the report
is made: PREFIX.md and PREFIX.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fastreader import Reader, load_examples
from fastreader.data import Passage, load_passages
from fastreader.eor import (
    BM25,
    Answers,
    Dense,
    Document,
    ReaderNli,
    Retrieval,
    Retrievers,
    Texts,
    Voter,
    answer,
    correctness,
    measures,
)
from fastreader.eor.answer import write_lines
from fastreader.eor.similarity import resolve
from fastreader.jsonl import ResultLog, iter_results
from fastreader.statistics import bootstrap, mcnemar, paired_bootstrap

RETRIEVERS = ["BM25@5", "Dense@5", "BM25-80@5", "Dense-80@5", "BM25@3&Dense@3", "ReFree"]
MEASURES = ("em", "contained")
DROPPED = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="questions with right answers")
    parser.add_argument("pool", type=Path, nargs="?", help="passages, a .jsonl file")
    parser.add_argument("--output", type=Path, required=True, help="a .jsonl file of all answers; continued")
    parser.add_argument("--report", type=Path, help="write PREFIX.md and PREFIX.json", metavar="PREFIX")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--retrievers", nargs="+", default=RETRIEVERS, metavar="SPEC")
    parser.add_argument("--encoder", default="all-minilm-l6-v2")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precision", default="fast")
    parser.add_argument("--max-new-tokens", type=int, default=24)
    parser.add_argument("--temperature", type=float, default=0.7, help="of the sampling control")
    parser.add_argument("--group", type=int, default=2, help="questions read together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--starts", type=int, default=16, help="of a fit")
    parser.add_argument(
        "--similarities",
        nargs="+",
        default=["exact", "f1", "bertscore:all-minilm-l6-v2"],
        metavar="NAME",
        help="nli:reader asks the reader",
    )
    parser.add_argument("--choose-by", choices=MEASURES, default="contained", help="of the control's best retriever")
    arguments = parser.parse_args()
    reader = None
    if arguments.data:
        if not arguments.pool:
            parser.error("POOL is needed with DATA")
        reader = Reader.load(arguments.model, precision=arguments.precision)
        answer_all(arguments, reader)
        control(arguments, reader)
    elif "nli:reader" in arguments.similarities:
        reader = Reader.load(arguments.model, precision=arguments.precision)
    found = analyse(arguments, reader)
    text = markdown(found)
    print(text)
    if arguments.report:
        arguments.report.with_suffix(".md").write_text(text + "\n")
        arguments.report.with_suffix(".json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


# Answers


def settings(arguments: argparse.Namespace, reader: Reader) -> dict[str, Any]:
    return {
        "reader": reader.describe(),
        "retrievers": arguments.retrievers,
        "encoder": arguments.encoder,
        "max_new_tokens": arguments.max_new_tokens,
        "seed": arguments.seed,
        "data": arguments.data.name,
        "pool": arguments.pool.name,
    }


def sources(arguments: argparse.Namespace) -> dict[str, Any]:
    """BM25 and the encoder over all passages, and each without its own 20% of them.

    The pool's vectors are kept beside --output; remove that file with it.
    """
    pool = load_passages(arguments.pool)
    kept_vectors = arguments.output.with_suffix(".vectors.npy")  # encoding the pool takes minutes on a CPU
    whole = Dense(arguments.encoder, pool, depth=20, vectors=np.load(kept_vectors) if kept_vectors.exists() else None)
    np.save(kept_vectors, whole.vectors)
    generator = np.random.default_rng(arguments.seed)
    kept = [np.flatnonzero(generator.random(len(pool)) >= DROPPED) for _ in range(2)]
    fewer = [[pool[i] for i in places] for places in kept]
    return {
        "BM25": BM25(pool, depth=20),
        "Dense": whole,
        "BM25-80": BM25(fewer[0], depth=20),
        "Dense-80": Dense(arguments.encoder, fewer[1], depth=20, vectors=whole.vectors[kept[1]]),
    }


def answer_all(arguments: argparse.Namespace, reader: Reader) -> None:
    """Every retriever's answer to every question, into --output."""
    examples = [replace(e, id=str(i)) for i, e in enumerate(load_examples(arguments.data, limit=arguments.questions))]
    with ResultLog(arguments.output, settings=settings(arguments, reader), resume=True) as log:
        todo = [e for e in examples if str(e.id) not in log]
        if not todo:
            return
        retrievers = Retrievers(arguments.retrievers, sources(arguments), reader=reader)
        for start in range(0, len(todo), arguments.group):
            found = retrievers.retrieve(todo[start : start + arguments.group])
            rows = answer(reader, found, max_new_tokens=arguments.max_new_tokens, keep_documents=True)
            for row in rows:
                log.append(str(row.id), {k: v for k, v in row.to_dict().items() if k != "id"})
            print(f"answers: {len(log)} of {len(examples)}", file=sys.stderr)


def control_file(arguments: argparse.Namespace) -> Path:
    path: Path = arguments.output.with_suffix(".control.jsonl")
    return path


def control(arguments: argparse.Namespace, reader: Reader) -> None:
    """The best single retrievers of both halves read as often as there are retrievers, otherwise each time."""
    rows = load_rows(arguments.output)
    count = len(arguments.retrievers)
    names = best_of_halves(arguments, rows)
    limits = {"temperature": arguments.temperature, "times": count}
    with ResultLog(control_file(arguments), settings=settings(arguments, reader) | limits, resume=True) as log:
        jobs = [(name, row) for name in dict.fromkeys(names) for row in rows if f"{name}/{row.id}" not in log]
        for start in range(0, len(jobs), arguments.group):
            part = jobs[start : start + arguments.group]
            documents = [row.documents[row.retrievers.index(name)] for name, row in part]
            orders = [
                shuffled(document, count, arguments.seed, row)
                for document, (_, row) in zip(documents, part, strict=True)
            ]
            read = answer(
                reader,
                [
                    Retrieval(row.question, order, row.right, row.id)
                    for order, (_, row) in zip(orders, part, strict=True)
                ],
                max_new_tokens=arguments.max_new_tokens,
            )
            drawn = samples(arguments, reader, part, documents, count)
            for (name, row), in_orders, texts in zip(part, read, drawn, strict=True):
                log.append(f"{name}/{row.id}", {"orders": in_orders.texts, "samples": texts})
            print(f"control: {len(log)} of {len(set(names)) * len(rows)}", file=sys.stderr)


def shuffled(document: Document, count: int, seed: int, row: Answers) -> list[Document]:
    """The document as it is, and in count - 1 orders drawn for the question."""
    generator = np.random.default_rng([seed, int(row.id or 0)])
    orders: list[Sequence[Passage]] = [document.passages]
    orders += [[document.passages[i] for i in generator.permutation(len(document.passages))] for _ in range(count - 1)]
    return [Document(f"order {i}", list(order), document.failure) for i, order in enumerate(orders)]


def samples(
    arguments: argparse.Namespace,
    reader: Reader,
    part: Sequence[tuple[str, Answers]],
    documents: Sequence[Document],
    count: int,
) -> list[list[str | None]]:
    """count sampled answers from each document; None where it failed."""
    texts = Texts()
    asked, places = [], []
    for i, ((_, row), document) in enumerate(zip(part, documents, strict=True)):
        if document.failure is None:
            asked.append(reader.prompt(texts.reading(row.question, document.passages)))
            places.append(i)
    out: list[list[str | None]] = [[None] * count for _ in part]
    if asked:
        written = write_lines(
            reader,
            asked,
            max_new_tokens=arguments.max_new_tokens,
            n=count,
            temperature=arguments.temperature,
            seed=arguments.seed,
        )
        for i, lines in zip(places, written, strict=True):
            out[i] = list(lines)
    return out


def load_rows(path: Path) -> list[Answers]:
    return sorted((Answers.from_dict(row) for row in iter_results(path)), key=lambda row: int(row.id or 0))


def half(count: int, seed: int) -> np.ndarray:
    """bool [count]: the first half of a drawn order."""
    chosen = np.zeros(count, dtype=bool)
    chosen[np.random.default_rng(seed + 1).permutation(count)[: count // 2]] = True
    return chosen


def best_of_halves(arguments: argparse.Namespace, rows: Sequence[Answers]) -> list[str]:
    """The best single retriever on the first half, and on the second."""
    first = half(len(rows), arguments.seed)
    correct = correctness(rows, arguments.choose_by)
    return [rows[0].retrievers[int(correct[part].mean(axis=0).argmax())] for part in (first, ~first)]


# Analysis


def analyse(arguments: argparse.Namespace, reader: Reader | None) -> dict[str, Any]:
    rows = load_rows(arguments.output)
    first = half(len(rows), arguments.seed)
    similarities = [ReaderNli(reader) if name == "nli:reader" and reader else name for name in arguments.similarities]
    similarities = [resolve(similarity) for similarity in similarities]  # once, so that all voters share what they know
    best = best_of_halves(arguments, rows)
    others = controls(control_file(arguments), rows, best, first)
    found: dict[str, Any] = {
        "settings": next(iter(iter_results(arguments.output)))["settings"],
        "questions": len(rows),
        "halves": [int(first.sum()), int((~first).sum())],
        "similarities": [s.name for s in similarities],
        "chosen": dict(zip(("by the first half", "by the second half"), best, strict=True)),
        "failures": {name: sum(name in row.failures for row in rows) for name in rows[0].retrievers},
        "measures": {},
    }
    for measure in MEASURES:
        found["measures"][measure] = one_measure(arguments, measure, rows, others, similarities, first)
    found["errors"] = error_analysis(rows)
    return found


def controls(
    path: Path, rows: Sequence[Answers], best: Sequence[str], first: np.ndarray
) -> dict[str, list[list[Answers]]]:
    """By kind, for each half's choice of retriever, the control's answers to all questions."""
    by_key = {row["id"]: row for row in iter_results(path)} if path.exists() else {}
    out: dict[str, list[list[Answers]]] = {}
    for kind in ("orders", "samples"):
        sets = []
        for name in best:
            texts = [by_key.get(f"{name}/{row.id}", {}).get(kind) for row in rows]
            if any(t is None for t in texts):
                break
            sets.append(
                [
                    Answers(r.question, [f"{kind} {i}" for i in range(len(t))], t, right=r.right, id=r.id)
                    for r, t in zip(rows, texts, strict=True)
                ]
            )
        if len(sets) == len(best):
            out[kind] = sets
    return out


def one_measure(
    arguments: argparse.Namespace,
    measure: str,
    rows: Sequence[Answers],
    others: dict[str, list[list[Answers]]],
    similarities: Sequence[Any],
    first: np.ndarray,
) -> dict[str, Any]:
    """All conditions by one measure of correctness; every value is of a question that nothing was learned from."""
    names = rows[0].retrievers
    correct = correctness(rows, measure)
    values: dict[str, np.ndarray] = {name: correct[:, m] for m, name in enumerate(names)}
    chosen = [int(correct[part].mean(axis=0).argmax()) for part in (first, ~first)]
    values["best single, chosen on the other half"] = np.where(first, correct[:, chosen[1]], correct[:, chosen[0]])
    oracle = [int(correct[part].mean(axis=0).argmax()) for part in (first, ~first)]
    values["best single, oracle"] = np.where(first, correct[:, oracle[0]], correct[:, oracle[1]])
    weights: dict[str, Any] = {}
    values["EoR unweighted"] = won(Voter(similarities), rows, correct)
    values["EoR fitted"], weights["EoR"] = crossed(arguments, similarities, [rows, rows], measure, first)
    for kind, sets in others.items():
        plain = [won(Voter(similarities), answers, correctness(answers, measure)) for answers in sets]
        values[f"control, {kind}, unweighted"] = np.where(first, plain[1], plain[0])
        values[f"control, {kind}, fitted"], weights[f"control, {kind}"] = crossed(
            arguments, similarities, sets, measure, first
        )
    values["upper bound"] = correct.max(axis=1)

    reference = "best single, chosen on the other half"
    conditions = {}
    for name, value in values.items():
        with_all = measures.rwr(np.column_stack([correct, value]))[: len(names), -1]
        beside = [i for i, n in enumerate(names) if n != name]
        row = {"accuracy": bootstrap(value).to_dict(), "mrlr": mean(with_all[beside])}
        if name != reference:
            row["less best single"] = paired_bootstrap(value, values[reference]).to_dict()
            row["mcnemar p"] = mcnemar(value, values[reference])
        conditions[name] = row
    contrasts = {
        f"EoR {state} less control, {kind}, {state}": paired_bootstrap(
            values[f"EoR {state}"], values[f"control, {kind}, {state}"]
        ).to_dict()
        for kind in others
        for state in ("unweighted", "fitted")
    }
    bounds = measures.upper_bound(correct)
    return {
        "conditions": conditions,
        "contrasts": contrasts,
        "chosen": [names[m] for m in chosen],
        "oracle": [names[m] for m in oracle],
        "weights": weights,
        "rwr": [[mean([v]) for v in row] for row in measures.rwr(correct)],
        "mrwr": [mean([v]) for v in measures.mrwr(correct)],
        "mrlr": [mean([v]) for v in measures.mrlr(correct)],
        "upper bounds": {
            k: {"least": float(v.min()), "mean": float(v.mean()), "most": float(v.max())} for k, v in bounds.items()
        },
    }


def won(voter: Voter, rows: Sequence[Answers], correct: np.ndarray) -> np.ndarray:
    places = voter.winners(rows)
    return np.where(places >= 0, correct[np.arange(len(rows)), places], 0.0)


def crossed(
    arguments: argparse.Namespace,
    similarities: Sequence[Any],
    sets: Sequence[Sequence[Answers]],
    measure: str,
    first: np.ndarray,
) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Correctness with weights learned on the other half; sets[h] are the answers to go with what half h chose."""
    value = np.zeros(len(first))
    learned = []
    for part, rows in zip((first, ~first), sets, strict=True):
        correct = correctness(rows, measure)
        inside = [row for row, of_part in zip(rows, part, strict=True) if of_part]
        voter = Voter(similarities, starts=arguments.starts, seed=arguments.seed).fit(inside, correct[part])
        value[~part] = won(voter, rows, correct)[~part]
        assert voter.fit_report_ is not None
        learned.append(
            {
                "retrievers": dict(zip(rows[0].retrievers, voter.retriever_weights_.tolist(), strict=True)),
                "similarities": voter.similarity_weights_.tolist(),
                "report": voter.fit_report_.to_dict(),
            }
        )
    return value, learned


def error_analysis(rows: Sequence[Answers]) -> dict[str, Any]:
    """Rates of the four errors, and how far Eq. 4 holds, with the paper's filter and without it."""
    correct = correctness(rows, "contained")
    every = measures.errors(rows, correct)
    out: dict[str, Any] = {"retrievers": rows[0].retrievers, "kept": int(every.kept.sum())}
    for name, found in (("all", every), ("filtered", every.filtered())):
        if not len(found.correct):
            continue
        parts = measures.decomposition(found)
        out[name] = {
            "rates": {error: rate.tolist() for error, rate in found.rates().items()},
            "failure": parts.failure.tolist(),
            "explained": parts.explained.tolist(),
            "residual": parts.residual.tolist(),
            "right_outside": parts.right_outside.tolist(),
            "right_without": parts.right_without.tolist(),
            "rwr": {
                error: [[mean([v]) for v in row] for row in table] for error, table in measures.error_rwr(found).items()
            },
        }
    return out


def mean(values: Any) -> float | None:
    """Mean of what is defined; None where nothing is."""
    array = np.asarray(values, dtype=float)
    defined = array[~np.isnan(array)]
    return float(defined.mean()) if len(defined) else None


# Report


def markdown(found: dict[str, Any]) -> str:
    reader = ", ".join(f"{k} {v}" for k, v in found["settings"]["reader"].items())
    lines = [
        f"{found['questions']} questions in halves of {found['halves'][0]} and {found['halves'][1]}; reader: {reader}; "
        f"similarities: {', '.join(found['similarities'])}.",
        "What is chosen or learned for a half comes from the other. Percent [95% bootstrap interval].",
    ]
    for measure, part in found["measures"].items():
        lines += [
            "",
            f"## {measure}",
            "",
            "| condition | right | less best single | McNemar p | MRLR |",
            "|-|-|-|-|-|",
        ]
        for name, row in part["conditions"].items():
            gain = percent(row["less best single"], "+") if "less best single" in row else "-"
            p = f"{row['mcnemar p']:.3f}" if "mcnemar p" in row else "-"
            loses = "-" if row["mrlr"] is None else f"{100 * row['mrlr']:.1f}"
            lines.append(f"| {name} | {percent(row['accuracy'])} | {gain} | {p} | {loses} |")
        lines += ["", f"Best single by the halves: {', '.join(part['chosen'])}.", ""]
        lines += [f"- {name}: {percent(row, '+')}" for name, row in part["contrasts"].items()]
        lines += ["", "| retriever | " + " | ".join(f"weight by half {h + 1}" for h in range(2)) + " |", "|-|-|-|"]
        learned = part["weights"]["EoR"]
        lines += [
            f"| {n} | " + " | ".join(f"{w['retrievers'][n]:.2f}" for w in learned) + " |"
            for n in learned[0]["retrievers"]
        ]
        for i, name in enumerate(found["similarities"]):
            lines.append(f"| {name} | " + " | ".join(f"{w['similarities'][i]:.2f}" for w in learned) + " |")
        for h, w in enumerate(learned):
            fit = w["report"]
            lines.append(
                f"\nFit on half {h + 1}: {fit['objective']:.3f}, equal weights {fit['unweighted']:.3f}; starts end "
                f"between {min(fit['starts']):.3f} and {max(fit['starts']):.3f}."
            )
        lines += ["", "| ensemble of | upper bound, least | mean | most |", "|-|-|-|-|"]
        lines += [
            f"| {size} | " + " | ".join(f"{100 * row[k]:.1f}" for k in ("least", "mean", "most")) + " |"
            for size, row in part["upper bounds"].items()
        ]
    errors = found["errors"]
    lines += ["", f"## Errors (correct: contained); {errors['kept']} questions have short answers alone", ""]
    lines += ["| retriever | E_r | E_h | E_e | E_luck | wrong | Eq. 4 | residual |", "|-|-|-|-|-|-|-|-|"]
    every = errors["all"]
    for m, name in enumerate(errors["retrievers"]):
        cells = [every["rates"][e][m] for e in ("retriever", "hallucination", "extraction", "luck")]
        cells += [every[k][m] for k in ("failure", "explained", "residual")]
        lines.append(f"| {name} | " + " | ".join(f"{100 * c:.1f}" for c in cells) + " |")
    return "\n".join(lines)


def percent(interval: dict[str, float], sign: str = "") -> str:
    values = [100 * interval[k] for k in ("estimate", "low", "high")]
    return "{0:{3}.1f} [{1:{3}.1f}, {2:{3}.1f}]".format(*values, sign)


if __name__ == "__main__":
    main()
