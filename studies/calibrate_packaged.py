"""Measure the position bias of the packaged reader on real questions, for the calibrations in the package.

    python studies/calibrate_packaged.py DATA -n 5 --log n5.jsonl

DATA holds questions with retrieved passages, one marked as gold. Only questions from --first on are used, so that
those before it remain for evaluations; of these, only those whose gold passage is among the first N. Each is scored
under Latin squares (the question's log-likelihood, and each passage alone) and with the gold passage moved through
the places (the right answers' log-likelihood). The same command resumes a log. The calibration is written with the
indices of the rows it was measured on, and no text of the data.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np
from lib.shared import fingerprint, make_parser

import fastreader as fr
from fastreader.core.progress import track
from fastreader.data.fingerprints import reader_identity
from fastreader.data.result_log import ResultLog, iter_results
from fastreader.moi import Observations, calibrate
from fastreader.moi.calibration.probe import Probe, gold_of, moved
from fastreader.moi.calibration.store import file_name_of
from fastreader.permutations import latin

FOLDER = Path(__file__).parent.parent / "src" / "fastreader" / "moi" / "calibration" / "shipped"
SQUARES = {3: 2, 5: 3, 10: 3}  # number of squares by N, each of N orderings
ALIASES = 4  # at most this number of right answers is scored


def main() -> None:
    options = arguments()
    n = options.passages
    examples = fr.load_examples(options.data)
    chosen = [(i, e) for i, e in enumerate(examples) if i >= options.first and annotated(e, n) is not None]
    chosen = chosen[: options.questions]
    reader = fr.Reader.load(options.model, device=options.device, precision=options.precision)
    template = fr.Template()
    settings = {
        "reader": reader_identity(reader.describe()),
        "template": template.digest(),
        "passages": n,
        "squares": SQUARES.get(n, 3),
        "first": options.first,
        "data": fingerprint(options.data),
    }
    with (
        ResultLog(options.log, settings=settings, resume=True) as log,
        track(f"N = {n}", len(chosen), "questions", None) as advance,
    ):
        for index, example in chosen:
            if str(index) not in log:
                log.append(str(index), measured(reader, example, n, index, template) | {"reader": reader.describe()})
            advance(1)
    write(options, settings, [str(i) for i, _ in chosen])


def measured(reader: fr.Reader, example: fr.Example, n: int, seed: int, template: fr.Template) -> dict[str, object]:
    """Return one question's scores, without its texts."""
    gold = annotated(example, n)
    assert gold is not None
    balanced = latin(n, SQUARES.get(n, 3), seed).permutations.tolist()
    places = moved(gold, n).tolist()
    rows = [list(row) for row in dict.fromkeys(map(tuple, balanced + places))]
    answers = list(dict.fromkeys(a for a in example.answers if a.strip()))[:ALIASES]
    scores = fr.score_permutations(
        reader,
        example.question,
        example.passages[:n],
        answers,
        permutations=rows,
        template=template,
        query_likelihood=True,
    )
    nats = np.logaddexp.reduce(scores.logprobs, axis=1)
    assert scores.query_logprobs is not None
    return {
        "gold": gold,
        "permutations": balanced,
        "question": scores.question_logprobs[: len(balanced)].tolist(),
        "alone": scores.query_logprobs.tolist(),
        "answer_by_place": [float(nats[rows.index(row)]) for row in places],
        "tokens": scores.stats.computed_tokens,
        "seconds": scores.seconds,
    }


def write(options: argparse.Namespace, settings: dict[str, object], keys: list[str]) -> None:
    """Calibrate on the rows of the log, and print the result."""
    n = options.passages
    rows = {row["id"]: row for row in iter_results(options.log)}
    used = [rows[key] for key in keys]
    observations = [
        Observations(
            np.array(row["question"]),
            np.array(row["permutations"]),
            n,
            qg=np.array(row["alone"]),
            reader=row["reader"],
            template=str(settings["template"]),
        )
        for row in used
    ]
    effects = np.array([row["answer_by_place"] for row in used])
    effects -= effects.mean(axis=1, keepdims=True)
    probe = Probe(effects, keys, used[0]["reader"], str(settings["template"]))  # type: ignore[arg-type]
    measured_on = {
        "data": "Natural Questions (open), 20 best passages by BM25",
        "data_sha256": settings["data"],
        "rows": [int(key) for key in keys],
        "design": f"latin:{settings['squares']}",
        "answer_by_place": probe.mean.round(4).tolist(),
        "answer_by_place_se": probe.standard_error.round(4).tolist(),
        "tokens": sum(row["tokens"] for row in used),
    }
    bias = calibrate(observations, contrast=probe, gold=[row["gold"] for row in used])
    bias = dataclasses.replace(bias, measured_on=measured_on)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / file_name_of(bias)
    bias.save(path)
    print(f"{path.name}: {bias.num_questions} questions, {bias.num_orderings} orderings")
    print("bias", bias.bias.round(3), "standard error", np.sqrt(np.diag(bias.covariance)).round(3))
    print(f"beta {bias.beta:.2f}, tau {bias.tau:.2f}, sigma {bias.sigma:.2f}, held-out R^2 {bias.r2:.3f}")
    print(f"sign: {bias.sign} (beta z {bias.sign_z:.1f}, gold z {bias.contrast_z:.1f}); flat: {bias.flat}")
    print(f"inflation {bias.inflation:.2f}, P(best) temperature {bias.temperature:.2f}; {bias.reason or 'no caution'}")
    print("answer by the gold's place", probe.mean.round(2), "+-", probe.standard_error.round(2))


def annotated(example: fr.Example, n: int) -> int | None:
    """Return the index of the passage marked as gold among the first n. Having the answer is not enough."""
    return gold_of(example.passages[:n], ("is_gold",))


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path, help="questions with passages, one marked as gold (.jsonl.gz)")
    parser.add_argument("-n", "--passages", type=int, default=5)
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--first", type=int, default=700, help="use only rows from this index on")
    parser.add_argument("--log", type=Path, required=True, help="scores so far; resumed if it exists")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the calibrations")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fast")
    return parser.parse_args()


if __name__ == "__main__":
    main()
