"""Made counterfactuals: is the passage whose answer was replaced the odd one, and is the question flagged?

    python studies/conflicts.py DATA --output runs/conflicts
    python studies/conflicts.py DATA --output runs/conflicts --report

Each question has five passages, two or three of which state its answer literally. In one of these, drawn at random, the
answer is replaced everywhere by another question's answer: of the same form (year, date, number, name, phrase), and if
there are enough, to a question with the same question word. `conflicts` sees the passages with the replaced one and
without, with both answers as candidates (it does not know which is which) and without candidates. Rows are appended as
they come, numbers without texts, first those with candidates for all questions; a stopped run resumes with the same
command.

The report compares with the vote of the readings alone; with the vote of the statements, the passage whose answer the
fewest passages state; and with "right answer known", the passage whose reading has the smallest margin of the right
answer over the replaced one. "Paraphrased" removes the text of the replaced passage
from the evidence, as if it stated its answer in words that are no candidate.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from lib.moi_rows import rounded
from lib.shared import fingerprint, make_parser, rows_of, table, unpack, write_both

from fastreader import Example, Passage, Reader, load_examples
from fastreader.core.progress import track
from fastreader.data.result_log import ResultLog
from fastreader.passages.conflicts import Conflicts, conflicts
from fastreader.passages.conflicts import judge as judgement
from fastreader.passages.conflicts.judge import judge
from fastreader.statistics import auroc, wilson
from fastreader.statistics.measures.answers import normalise

Row = dict[str, Any]
Scores = Callable[[np.ndarray, np.ndarray], np.ndarray]
PARTS = ("given", "proposed")
PASSAGES, SUPPORTING, ENOUGH = 5, 3, 8
VARIED = {
    "_PULL": (1.0, 2.0, 4.0),
    "_TEXT": (0.15, 0.3, 0.6),
    "_AGAINST": (0.1, 0.2, 0.4),
    "_CLIP": (5.0, 10.0, 20.0),
    "_SILENT": (-1.0, -2.0, -4.0),
}
_MONTH = re.compile("January|February|March|April|May|June|July|August|September|October|November|December")
_ASKED = re.compile(r"\b(who|where|when|how many|how much|which|what)\b")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path, help="questions with ranked passages and right answers")
    parser.add_argument("--output", type=Path, required=True, help="folder of the run")
    parser.add_argument("--questions", type=int, help="at most this number of questions")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--report", action="store_true", help="only write the report of the existing rows")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if not arguments.report:
        study(arguments)
    report(arguments.output, {part: list(rows_of(log_of(arguments.output, part))) for part in PARTS})


def log_of(folder: Path, part: str) -> Path:
    return folder / f"{part}.jsonl"


def study(arguments: argparse.Namespace) -> None:
    """Run the questions that have no row yet."""
    made = list(counterfactuals(load_examples(arguments.data)))
    random.Random(1).shuffle(made)
    settings = {"data": fingerprint(arguments.data), "model": arguments.model}
    reader = None
    for part in arguments.parts:
        with ResultLog(unpack(log_of(arguments.output, part)), settings=settings, resume=True) as rows:
            todo = [item for item in made[: arguments.questions] if item["id"] not in rows]
            with track(part, len(todo), "questions", None) as advance:
                for item in todo:
                    reader = reader or Reader.load(arguments.model)
                    rows.append(item["id"], found_in(reader, item, part))
                    advance(1)


def found_in(reader: Reader, item: Row, part: str) -> Row:
    """Return the row of a question. Both versions of its passages share a session."""
    row = {name: item[name] for name in ("odd", "supporting", "form")}
    answers = [item["right"], item["replaced"]]
    with reader.session(cache_scored=True) as session:
        for name in ("changed", "clean"):
            found = conflicts(session, item["question"], item[name], answers if part == "given" else None)
            texts = list(map(normalise, found.candidates))
            known = [texts.index(normalise(text)) if normalise(text) in texts else None for text in answers]
            row[name] = {**numbers(found), "known": known}
    return row


def numbers(found: Conflicts) -> Row:
    """Return the evidence without texts."""
    values = found.to_dict()
    texts = [[None if x is None else rounded(x) for x in row] for row in values["texts"]]
    nats = {name: rounded(values[name]) for name in ("logprobs", "closed_book_logprobs")}
    return {**nats, "texts": texts, "claims": found.claims, "computed": found.stats.computed_tokens}


def counterfactuals(examples: Sequence[Example], seed: int = 0) -> Iterator[Row]:
    """Yield the questions with both versions of their passages, and the index of the changed one."""
    rng = random.Random(seed)
    pool: dict[Any, list[tuple[int, str]]] = {}
    for i, example in enumerate(examples):
        if example.answers and usable(answer := example.answers[0]):
            pool.setdefault(form(answer), []).append((i, answer))
            pool.setdefault((form(answer), asked(example.question)), []).append((i, answer))
    for i, example in enumerate(examples):
        right, stating = "", []
        for answer in filter(usable, example.answers):
            found = [j for j, p in enumerate(example.passages) if whole(answer).search(p.text)]
            if len(found) > len(stating):
                right, stating = answer, found[:SUPPORTING]
        if len(stating) < 2:
            continue
        silent = [
            j
            for j, p in enumerate(example.passages)
            if not any(text.lower() in f"{p.title} {p.text}".lower() for text in example.answers)
        ]
        chosen = sorted([*stating, *[j for j in silent if j not in stating][: PASSAGES - len(stating)]])
        passages = [Passage(example.passages[j].text, example.passages[j].title) for j in chosen]
        read = " ".join(f"{p.title} {p.text}" for p in passages).lower()
        tight = pool.get((form(right), asked(example.question)), [])
        options = [
            answer
            for k, answer in (tight if len(tight) > ENOUGH else pool.get(form(right), []))
            if k != i and answer.lower() not in read and not any(overlap(answer, other) for other in example.answers)
        ]
        if len(chosen) < PASSAGES or not options:
            continue
        replaced, victim = rng.choice(options), rng.choice(stating)
        odd = chosen.index(victim)
        changed = [swapped(p, right, replaced) if place == odd else p for place, p in enumerate(passages)]
        yield {
            "id": str(i),
            "question": example.question,
            "right": right,
            "replaced": replaced,
            "odd": odd,
            "supporting": len(stating),
            "form": form(right),
            "clean": passages,
            "changed": changed,
        }


def swapped(passage: Passage, old: str, new: str) -> Passage:
    pattern = whole(old)
    return replace(
        passage, text=pattern.sub(lambda _: new, passage.text), title=pattern.sub(lambda _: new, passage.title)
    )


def whole(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")


def overlap(a: str, b: str) -> bool:
    return a.lower() in b.lower() or b.lower() in a.lower()


def usable(answer: str) -> bool:
    return len(answer) > 2 and len(answer.split()) <= 6


def asked(question: str) -> str:
    found = _ASKED.search(question.lower())
    return found[1] if found else ""


def form(answer: str) -> str:
    if re.fullmatch(r"(1[5-9]|20)\d\d", answer):
        return "year"
    if re.search(r"\d", answer):
        return "date" if _MONTH.search(answer) else "number"
    return f"name of {min(len(answer.split()), 3)}" if answer[0].isupper() else "phrase"


def ratios_texts(found: Row) -> tuple[np.ndarray, np.ndarray]:
    ratios = np.array(found["logprobs"]) - np.array(found["closed_book_logprobs"])
    return ratios, np.array(found["texts"], dtype=np.float64)


def judged(ratios: np.ndarray, texts: np.ndarray) -> np.ndarray:
    return judge(ratios, texts).odd_scores


def voted(ratios: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Score by the readings alone: against the candidate that more passages pull towards, ties by the sum."""
    margin = ratios[:, 0] - ratios[:, 1]
    side = np.sign(np.sign(margin).sum() or margin.sum())
    return -side * margin


def counted(ratios: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Score by the number of passages that state another answer less those that state the same one."""
    claims = (texts == 0) * 1.0
    same = claims @ claims.sum(axis=0)
    return np.where(claims.any(axis=1), claims.sum() - 2 * same, -float(len(texts)) - 1)


def known(ratios: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Score by the margin of the replaced answer, which is the second candidate."""
    return ratios[:, 1] - ratios[:, 0]


WAYS: dict[str, tuple[str, Scores]] = {
    "conflicts, candidates given": ("given", judged),
    "conflicts, candidates proposed": ("proposed", judged),
    "vote of the readings": ("given", voted),
    "vote of the statements": ("given", counted),
    "right answer known": ("given", known),
}


def measured(rows: Sequence[Row], scores: Scores) -> Row:
    """Return how often the changed passage is the odd one, and the AUROC of the question's and passages' scores."""
    hits, flags, marks = [], [], []
    for row in rows:
        changed, clean = (scores(*ratios_texts(row[name])) for name in ("changed", "clean"))
        hits.append((row["supporting"], int(changed.argmax()) == row["odd"]))
        flags += [(changed.max(), 1, row["id"]), (clean.max(), 0, row["id"])]
        marks += [(score, int(i == row["odd"]), row["id"]) for i, score in enumerate(changed.tolist())]
    found: Row = {"n": len(rows)}
    for name, of in (("odd", (2, 3)), ("odd, 2 supporting", (2,)), ("odd, 3 supporting", (3,))):
        own = [hit for supporting, hit in hits if supporting in of]
        found[name] = wilson(sum(own), len(own)).to_dict() if own else None
    for name, items in (("question", flags), ("passage", marks)):
        values, labels, clusters = zip(*items, strict=True)
        found[name] = auroc(values, labels, clusters=clusters).to_dict()
    return found


def varied(rows: Sequence[Row]) -> Row:
    """Return the smallest and largest share of odd ones found over other constants of the judgement."""
    shares = []
    for constants in itertools.product(*VARIED.values()):
        with mock.patch.multiple(judgement, **dict(zip(VARIED, constants, strict=True))):
            hits = [int(judged(*ratios_texts(row["changed"])).argmax()) == row["odd"] for row in rows]
        shares.append(float(np.mean(hits)))
    return {"least": min(shares), "most": max(shares)}


def report(folder: Path, parts: dict[str, list[Row]]) -> None:
    """Write report.json and report.md."""
    found: Row = {}
    for name, (part, scores) in WAYS.items():
        if parts[part]:
            found[name] = measured(parts[part], scores)
    rows, paraphrased = parts["given"], []
    for row in rows:
        ratios, texts = ratios_texts(row["changed"])
        texts[row["odd"]] = np.nan
        paraphrased.append(int(judged(ratios, texts).argmax()) == row["odd"])
    found["paraphrased"] = {"n": len(rows), "odd": wilson(sum(paraphrased), len(rows)).to_dict()}
    found["varied"] = varied(rows)
    above = {name: [judged(*ratios_texts(row[name])).max() > 0 for row in rows] for name in ("changed", "clean")}
    found["flagged"] = {name: float(np.mean(values)) for name, values in above.items()}
    both = [row["changed"]["known"] for row in parts["proposed"]]
    found["proposed"] = {
        name: float(np.mean([known[k] is not None for known in both])) if both else None
        for k, name in enumerate(("right", "replaced"))
    }
    found["tokens"] = {part: mean_tokens(rows) for part, rows in parts.items() if rows}
    columns = ["", "questions", "odd one found", "2 supporting", "3 supporting", "AUROC, question", "AUROC, passage"]
    cells = [
        [name, values["n"], *(shown(values.get(key)) for key in ("odd", "odd, 2 supporting", "odd, 3 supporting"))]
        + [shown(values.get(key)) for key in ("question", "passage")]
        for name, values in found.items()
        if isinstance(values, dict) and "n" in values
    ]
    lines = ["# Made counterfactuals", "", *table(columns, cells), ""]
    lines.append(
        f"With candidates given, {found['flagged']['changed']:.3f} of the changed questions and "
        f"{found['flagged']['clean']:.3f} of the unchanged ones have an odd score above 0. "
        f"With other constants, each up to twice or half as large, {found['varied']['least']:.3f} to "
        f"{found['varied']['most']:.3f} of the odd ones are found. "
        f"A call computes {found['tokens']['given']:.0f} tokens."
    )
    if both:
        lines.append(
            f"Without candidates a call computes {found['tokens']['proposed']:.0f} tokens. The proposed ones hold "
            f"the right answer in {found['proposed']['right']:.3f} and the replaced one in "
            f"{found['proposed']['replaced']:.3f} of the changed questions."
        )
    write_both(folder / "report", found, "\n".join(lines) + "\n")


def mean_tokens(rows: Sequence[Row]) -> float:
    return float(np.mean([row["changed"]["computed"] for row in rows]))


def shown(value: dict[str, float] | None) -> str:
    return "" if value is None else f"{value['estimate']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"


if __name__ == "__main__":
    main()
