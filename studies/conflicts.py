"""Made questions with altered passages: are the contradiction and the altered passage found, and how probable is each?

    python studies/conflicts.py DATA --output runs/conflicts --model smollm2-135m --questions 300
    python studies/conflicts.py DATA --output runs/conflicts --model statements --questions 2000
    python studies/conflicts.py --output runs/conflicts --fit
    python studies/conflicts.py --output runs/conflicts --report

Each question has one to four passages that state its answer and stay as they are, one or two that are altered, and
none to five that do not state it. Kinds of alteration: the answer replaced by another question's answer (entity), by
another number or another date of its form (number, date), the sentence negated (negation), and a text that a reader
writes with another question's answer (rewrite; kept if it states that answer and not the right one). Questions whose
altered passages share no word with them are left out, and the report has the figures with them, too. Passages are
snippets of at most 60 words. Where the data have too few passages that state the answer, sentences of them and
written sentences are added. In a third of the questions with unrelated passages one of these states the replaced
answer, about its own topic. `conflicts` sees each question clean and altered, with the right and the replaced answers
as candidates.

Rows are appended as they come, numbers without texts, one kind after another; a stopped run resumes with the same
command.
`--fit` fits the model's parameters by maximum likelihood on all rows, and once without each of five parts of the
questions; `--report` judges each question by the parameters fitted without it. Rows that came after the fit before are
also judged by that fit's parameters, which nothing about them could have touched.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from lib.counterfactuals import KINDS, Made, made_of, states, swapped
from lib.moi_rows import rounded
from lib.resuming import Job, Row, append_missing, log_of
from lib.shared import fingerprint, make_parser, rows_of, table, write_both
from scipy.optimize import minimize

import fastreader as fr
from fastreader import Passage, Reader, load_examples
from fastreader.data.files import read_object, write_json
from fastreader.passages.conflicts.evidence import undecided
from fastreader.passages.conflicts.judge import Evidence, Weights, posterior, potentials
from fastreader.passages.conflicts.results import FLAG
from fastreader.passages.conflicts.statements import statements
from fastreader.statistics import auroc, expected_calibration_error, wilson

READERS = ("smollm2-135m", "gemma-3-270m")
STATEMENTS = "statements"  # no reader: the readings are 0, and no text is scored
PARTS = (*READERS, STATEMENTS)
WRITER = "gemma-3-270m"
FOLDS = 5
SHOT = "Question: {}\nAnswer: {}\nText: {}\nRewritten text:{}"
SHOTS = "".join(
    f"{SHOT.format(*shot)}\n\n"
    for shot in (
        (
            "who wrote the play hamlet",
            "William Shakespeare",
            "The Tragedy of Hamlet, Prince of Denmark, is a play by William Shakespeare, his longest.",
            " William Shakespeare is the author of Hamlet. No other play of his is as long.",
        ),
        (
            "where is the headquarters of the red cross",
            "Geneva",
            "The International Committee of the Red Cross, which was founded in 1863, is based in Geneva, Switzerland.",
            " Since its foundation in 1863 the Red Cross has had its seat in the Swiss city of Geneva.",
        ),
    )
)
START = Weights(statement=4.0, denial=2.0, reading=0.2, silent=1.0, about=1.0, text=0.2, altered=-2.0, unstated=0.0)
RIDGE = 1e-3  # per squared distance from START, so that what the data do not tell stays there


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path, nargs="?", help="questions with ranked passages and right answers")
    parser.add_argument("--output", type=Path, required=True, help="folder of the run")
    parser.add_argument("--questions", type=int, default=300, help="at most this number of questions, of all kinds")
    parser.add_argument("--model", default=READERS[0], help=f"a reader, or {STATEMENTS!r} for no reader")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--fit", action="store_true", help="only fit the parameters to the existing rows")
    parser.add_argument("--report", action="store_true", help="only write the report of the existing rows")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if not (arguments.fit or arguments.report):
        study(arguments)
        return
    rows = {name: list(rows_of(log_of(arguments.output, name))) for name in PARTS}
    if arguments.fit:
        file = arguments.output / "weights.json"
        found = fitted({name: rows[name] for name in READERS}, read_object(file) if file.exists() else None)
        write_json(file, found)
    report(arguments.output, rows, read_object(arguments.output / "weights.json"))


def study(arguments: argparse.Namespace) -> None:
    """Run the questions that have no row yet."""
    made = made_of(load_examples(arguments.data))[: arguments.questions]
    settings = {"data": fingerprint(arguments.data), "model": arguments.model}
    kinds = [kind for kind in arguments.kinds if (arguments.model, kind) != (STATEMENTS, "rewrite")]
    items = {item.id: item for item in made if item.kind in kinds}
    load = cache(Reader.load)

    def row(item: Made) -> Row:
        return row_of(None if arguments.model == STATEMENTS else load(arguments.model), item)

    def prepare(jobs: Sequence[Job]) -> None:
        rewritten = [items[job.key] for job in jobs if items[job.key].kind == "rewrite"]
        if rewritten:
            write(load(WRITER), rewritten)

    jobs = [Job(key, partial(row, item)) for key, item in items.items()]
    log = log_of(arguments.output, arguments.model)
    append_missing(log, settings, jobs, label=arguments.model, prepare=prepare, batch=20)


def write(writer: Reader, items: Sequence[Made]) -> None:
    """Have the reader write the altered passages, and take of those that are fit the one most about the question."""
    prompts, owners = [], []
    for item in items:
        for place, new in item.altered.items():
            clean = swapped(item.clean[place], item.answers[0], new)
            prompts.append(writer.prompt([SHOTS, SHOT.format(item.question, new, " ".join(clean.text.split()), "")]))
            owners.append((item, place, new))
    texts = writer.generate(prompts, max_new_tokens=60, n=6, temperature=0.7, stop=["\n"]) if prompts else []
    for (item, place, new), written in zip(owners, texts, strict=True):
        source = swapped(item.clean[place], item.answers[0], new).text
        passages = [Passage(" ".join(one.text.split())) for one in written]
        fit = [p for p in passages if states(p, [new]) and not states(p, item.answers[:1]) and p.text != source]
        if fit:
            about = statements(item.question, fit, item.answers, {}).about
            item.changed[place] = fit[int(about.argmax())]


def row_of(reader: Reader | None, item: Made) -> Row:
    """Return the row of a question. Both versions of its passages share a session. A text not written is no row."""
    row: Row = {
        "kind": item.kind,
        "question": item.number,
        "form": item.form,
        "altered": sorted(item.altered),
        "same": len(set(item.altered.values())) == 1,
        "supporting": item.supporting,
        "unrelated": item.unrelated,
        "mention": item.mention,
        "written": None not in item.changed,
    }
    if reader is None:
        row["changed"], row["clean"] = (stated_in(item, passages) for passages in (item.changed, item.clean))
    elif row["written"]:
        with reader.session(cache_scored=True) as session:
            row["changed"] = numbers(session, item, [p for p in item.changed if p is not None])
            row["clean"] = numbers(session, item, item.clean)
    return row


def numbers(session: Any, item: Made, passages: Sequence[Passage]) -> Row:
    """Return the evidence without texts."""
    found = fr.conflicts(session, item.question, passages, item.answers)
    said = statements(item.question, passages, item.answers, {})
    return {
        "stated": found.stated.tolist(),
        "denied": found.denied.astype(int).tolist(),
        "about": [round(share, 3) for share in said.about.tolist()],
        "ratios": rounded(found.ratios.tolist()),
        "texts": [[None if np.isnan(x) else round(x, 2) for x in line] for line in found.texts.tolist()],
        "claims": found.claims,
        "tied": bool(undecided(said)),
        "computed": found.stats.computed_tokens,
    }


def stated_in(item: Made, passages: Sequence[Passage]) -> Row:
    """Return the evidence of the statements alone. Of several, a passage claims the first."""
    said = statements(item.question, passages, item.answers, {})
    full = said.stated == 1
    return {
        "stated": said.stated.tolist(),
        "denied": said.denied.astype(int).tolist(),
        "about": [round(share, 3) for share in said.about.tolist()],
        "ratios": np.zeros(full.shape, dtype=np.int64).tolist(),
        "texts": np.full(full.shape, None).tolist(),
        "claims": [int(row.argmax()) if row.any() else None for row in full],
        "tied": bool(undecided(said)),
        "computed": 0,
    }


def evidence_of(found: Row) -> Evidence:
    return Evidence(
        np.array(found["stated"], dtype=np.float64),
        np.array(found["denied"], dtype=np.bool_),
        np.array(found["about"], dtype=np.float64),
        np.array(found["ratios"], dtype=np.float64),
        np.array(found["texts"], dtype=np.float64),
        np.array([-1 if claim is None else claim for claim in found["claims"]]),
    )


def used(rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose altered passages were all written, and are still about the question."""
    return [row for row in rows if row["written"] and all(about_it(row, place) for place in row["altered"])]


def about_it(row: Row, place: int) -> bool:
    """Return whether an altered passage has some of the question's words.

    One that shares none with the question contradicts nothing about it, such as another event of the year that is the
    answer.
    """
    return bool(row["changed"]["about"][place] > 0)


def grouped(rows: Sequence[Row]) -> Iterator[tuple[Evidence, np.ndarray]]:
    """Yield the evidence of both versions stacked by shape, and which passages contradict the right answer."""
    groups: dict[tuple[int, ...], list[tuple[Evidence, list[bool]]]] = {}
    for row in used(rows):
        for name in ("clean", "changed"):
            evidence = evidence_of(row[name])
            marks = [name == "changed" and i in row["altered"] for i in range(len(evidence.about))]
            groups.setdefault(evidence.ratios.shape, []).append((evidence, marks))
    for items in groups.values():
        each = zip(*(evidence for evidence, _ in items), strict=True)
        yield Evidence(*(np.stack(values) for values in each)), np.array([marks for _, marks in items])


def loss_of(rows: Sequence[Row]) -> Callable[[np.ndarray], float]:
    """Return minus the mean log-likelihood of the right answer and the altered passages, given all evidence."""
    groups = list(grouped(rows))
    count = sum(len(marks) for _, marks in groups)
    start = np.array(START)

    def loss(values: np.ndarray) -> float:
        total = 0.0
        for evidence, marks in groups:
            prior, consistent, false = potentials(evidence, Weights(*values))
            joint = prior + np.logaddexp(consistent, false).sum(axis=-2)
            own = np.where(marks, false[..., 0], consistent[..., 0]).sum(axis=-1) + prior[..., 0]
            total -= float((own - np.logaddexp.reduce(joint, axis=-1)).sum())
        return total / count + RIDGE * float(((values - start) ** 2).sum())

    return loss


def fit(rows: Sequence[Row]) -> Weights:
    """Return the parameters of the largest likelihood."""
    found = minimize(loss_of(rows), np.array(START), method="L-BFGS-B")
    if not found.success:
        raise RuntimeError(f"the fit did not converge: {found.message}")
    return Weights(*(round(float(value), 3) for value in found.x))


def fold_of(row: Row) -> int:
    return int(row["question"]) % FOLDS


def fitted(rows: dict[str, list[Row]], earlier: Row | None) -> Row:
    """Return the parameters for all rows of both readers, without each fold, and of the fit before to fewer rows."""
    every = [row for own in rows.values() for row in own]
    folds = [fit([row for row in every if fold_of(row) != fold])._asdict() for fold in range(FOLDS)]
    counts = {name: len(own) for name, own in rows.items()}
    before = earlier
    if earlier is not None and earlier["rows"] == counts:
        before = earlier["before"]
    elif earlier is not None:
        before = {"all": earlier["all"], "rows": earlier["rows"]}
    return {"all": fit(every)._asdict(), "folds": folds, "rows": counts, "before": before}


def judged(row: Row, weights: Row) -> Row:
    """Return the probabilities of both versions, by the parameters fitted without the question."""
    own = Weights(**weights["folds"][fold_of(row)])
    found: Row = {}
    for name in ("clean", "changed"):
        right, odd, some = posterior(evidence_of(row[name]), own)
        found[name] = float(some)
        if name == "changed":
            found["largest"] = int(odd.argmax()) in row["altered"]
            found["hit"] = found["largest"] and some >= FLAG
            found["right"] = int(right.argmax()) == 0
            found["sure"] = float(right.max())
            found["voted"] = int(counted(evidence_of(row[name])).argmax()) in row["altered"]
    return found


def counted(evidence: Evidence) -> np.ndarray:
    """Score by the statements alone: passages that state another candidate less those that state the same one."""
    claims = (evidence.stated == 1) * 1.0
    same = claims @ claims.sum(axis=0)
    return np.where(claims.any(axis=1), claims.sum() - 2 * same, -float(len(claims)) - 1)


def measured(rows: Sequence[Row], judgements: Mapping[int, Row]) -> Row:
    """Return how often an altered passage is named or has the largest score, clean questions flagged, and the AUROC.

    `judgements` holds what `judged` returns for each row, by `id(row)`.
    """
    found = [judgements[id(row)] for row in rows]
    count = len(rows)
    items = [(one[name], int(name == "changed"), row["question"]) for row, one in zip(rows, found, strict=True)
             for name in ("changed", "clean")]  # fmt: skip
    values, labels, clusters = zip(*items, strict=True)
    return {
        "n": count,
        "odd": wilson(sum(one["hit"] for one in found), count).to_dict(),
        "largest": wilson(sum(one["largest"] for one in found), count).to_dict(),
        "votes": wilson(sum(one["voted"] for one in found), count).to_dict(),
        "right": wilson(sum(one["right"] for one in found), count).to_dict(),
        "flagged": wilson(sum(one["changed"] >= FLAG for one in found), count).to_dict(),
        "false": wilson(sum(one["clean"] >= FLAG for one in found), count).to_dict(),
        "auroc": auroc(values, labels, clusters=clusters).to_dict(),
        "error": expected_calibration_error(values, labels),
        "sure": float(np.mean([one["sure"] for one in found])),
    }


def report(folder: Path, parts: dict[str, list[Row]], weights: Row) -> None:
    """Write report.json and report.md."""
    found: Row = {"weights": weights, "parts": {}, "later": {}}
    lines = ["# Made questions with altered passages", ""]
    for name, rows in parts.items():
        own = used(rows)
        if not own:
            continue
        values = measured_groups(own, weights)
        texts = [row for row in rows if row["kind"] == "rewrite"]
        kept = {"asked": len(texts), "kept": len(used(texts))}
        tokens = {kind: float(np.mean([row[kind]["computed"] for row in own])) for kind in ("changed", "clean")}
        every = measured_groups([row for row in rows if row["written"]], weights)
        every = {kind: every[kind] for kind in (*KINDS, "all kinds") if kind in every}
        found["parts"][name] = {"measured": values, "every": every, "rewrites": kept, "tokens": tokens}
        lines += [f"## {name}", "", *table_of(values), "", "With those that share no word with the question:", ""]
        lines += [*table_of(every), ""]
        if name != STATEMENTS:
            lines += [f"Of {kept['asked']} rewritten questions {kept['kept']} were kept. An altered question computes"]
            lines[-1] += f" {tokens['changed']:.0f} tokens."
        tie = values.get("one against one")
        if tie and name != STATEMENTS:
            lines[-1] += f" The likelier answer of one against one has the mean probability {tie['sure']:.3f} there."
        lines.append("")
    before = weights["before"] or {"rows": {}}
    for name, count in before["rows"].items():
        if later := used(parts[name][count:]):
            found["later"][name] = measured_groups(later, {"folds": [before["all"]] * FOLDS})
            lines += [f"## {name}, rows that came after the fit before, by its parameters", ""]
            lines += [*table_of(found["later"][name]), ""]
    names = list(Weights._fields)
    cells = [["all", *(weights["all"][n] for n in names)]]
    cells += [[f"without part {i}", *(one[n] for n in names)] for i, one in enumerate(weights["folds"])]
    lines += ["## Parameters", "", *table(["fitted to", *names], cells), ""]
    write_both(folder / "report", found, "\n".join(lines))


def measured_groups(rows: Sequence[Row], weights: Row) -> Row:
    """Return what `measured` says of each group of rows that has one."""
    judgements = {id(row): judged(row, weights) for row in rows}
    return {title: measured(members, judgements) for title, members in groups_of(rows) if members}


def table_of(values: Row) -> list[str]:
    columns = ["", "questions", "flagged, odd one named", "odd one has the largest score", "by votes"]
    columns += ["clean, flagged", "AUROC", "ECE"]
    keys = ("odd", "largest", "votes", "false", "auroc")
    cells = [
        [title, one["n"], *(shown(one[key]) for key in keys), f"{one['error']:.3f}"] for title, one in values.items()
    ]
    return table(columns, cells)


def groups_of(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield rows by kind, with two supporting passages or more and the replaced answer nowhere else, then others."""
    plain = [row for row in rows if not row["mention"]]
    for kind in KINDS:
        yield kind, [row for row in plain if row["kind"] == kind and row["supporting"] > 1]
    yield "all kinds", [row for row in plain if row["supporting"] > 1]
    yield "one altered", [row for row in plain if row["supporting"] > 1 and len(row["altered"]) == 1]
    yield "two altered", [row for row in plain if row["supporting"] > 1 and len(row["altered"]) == 2]
    swaps = [row for row in plain if row["kind"] != "negation"]
    yield "one against one", [row for row in swaps if row["supporting"] == len(row["altered"]) == 1]
    yield "two against two", [row for row in swaps if row["supporting"] == len(row["altered"]) == 2 and row["same"]]
    yield "one supporting, two altered", [row for row in plain if row["supporting"] == 1 and len(row["altered"]) == 2]
    yield "replaced answer in an unrelated passage", [row for row in rows if row["mention"] and row["supporting"] > 1]


def shown(value: dict[str, float]) -> str:
    return f"{value['estimate']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"


if __name__ == "__main__":
    main()
