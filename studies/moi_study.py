"""MoI and what it has to beat, on real questions.

    python studies/moi_study.py questions.jsonl.gz --passages 5 --questions 800 --output runs/moi5
    python studies/moi_study.py questions.jsonl.gz --passages 5 --questions 800 --output runs/moi5 --report

For each question: 3N random orderings are scored and answered (self-consistency over as many orders as MoI scores).
Every method orders the passages with a calibration that has not seen the question: cross-fitted in folds by gold
passage, its sign checked on gold passages of the same questions, moved through the places. All methods' orders are then
read and answered. A session keeps the question's keys and values, so observations and methods read shared prompts once;
a method's tokens are those that it would take by itself. Rows hold numbers and no text of the data. They are appended
as they come, so a stopped run can be resumed; logs that are stored compressed (.jsonl.gz) are unpacked first. The
primary contrast is fixed in advance and part of every row's settings: moi-calibrated (matched order) against
qg-matched, in nats of the right answers (log-sum-exp over the aliases). With --jobs, several processes share the
questions, and rows come in the order in which they finish.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from lib.moi_jobs import Jobs
from lib.moi_orders import BASELINES, MOI, all_orders, by_itself
from lib.moi_report import write_report
from lib.moi_rows import (
    cluster_of,
    folds_of,
    gold_rank,
    mean_rates,
    method_row,
    observation,
    read_once,
    rounded,
    scores_of,
    tokens,
)
from lib.shared import fingerprint, moi_parser, rows_of, unpack

from fastreader import Example, Reader, Template, load_examples, score_permutations
from fastreader.core.progress import track
from fastreader.core.protocol import ScoringReader
from fastreader.data.fingerprints import reader_identity
from fastreader.data.result_log import ResultLog
from fastreader.errors import InputError, OutOfBudgetError
from fastreader.moi import PositionBias, calibrate, probe
from fastreader.moi.analyses.outcomes import outcomes
from fastreader.moi.baselines import gold_of, self_consistency
from fastreader.moi.calibration.probe import right_answers
from fastreader.moi.reorder.planning import full_orderings
from fastreader.reader.prompts.pieces import encode
from fastreader.reader.session import Session
from fastreader.scoring.reading import reading_prompts

PRIMARY = ("moi-calibrated", "qg-matched", "nats")
ANSWERS = "self-consistency"


def main() -> None:
    arguments = parse()
    if not arguments.report:
        arguments.output.mkdir(parents=True, exist_ok=True)
        study = Study(arguments)
        with Jobs(arguments.jobs, study, Study, arguments) as jobs:
            run(study, jobs)
    write_report(arguments.output, PRIMARY)


def parse() -> argparse.Namespace:
    parser = moi_parser(__doc__, questions=800)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--calibration-questions", type=int, default=100, help="maximum of each fold")
    parser.add_argument("--methods", nargs="*", default=[*BASELINES, *MOI, ANSWERS], help="names [default: all]")
    parser.add_argument("--cross-encoder", help="name or folder; adds cross-encoder and cross-encoder-matched")
    parser.add_argument("--shuffles", type=int, default=10, help="number of shuffles of permutation self-consistency")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes, each with its own reader")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error(f"--jobs: expected at least 1, got {arguments.jobs}")
    if not set(arguments.methods) - {ANSWERS}:
        parser.error(f"--methods: expected a method that orders passages in addition to {ANSWERS}")
    if arguments.cross_encoder:
        arguments.methods += ["cross-encoder", "cross-encoder-matched"]
    return arguments


def run(study: Study, jobs: Jobs) -> None:
    """Observe, calibrate and read. Skip the results that the logs of an earlier run hold."""

    def log(name: str, settings: dict[str, Any]) -> ResultLog:
        return ResultLog(unpack(study.arguments.output / name), settings=settings, resume=True)

    with (
        log("observations.jsonl", study.settings) as observed,
        log("probes.jsonl", study.settings) as probed,
        log("readings.jsonl", study.settings | study.reading_settings()) as read,
    ):
        pools = {fold: study.pool(fold) for fold in sorted(set(study.folds))}
        known = {i for i in range(len(study.examples)) if gold_of(study.examples[i].passages) is not None}
        keep(jobs, "observing", "observe", observed, sorted(set(itertools.chain(*pools.values()))))
        keep(jobs, "moving gold passages", "probe", probed, sorted(known & set(itertools.chain(*pools.values()))))
        effects = {row["id"]: row["effects"] for row in rows_of(probed.path)}
        scores = {row["id"]: row for row in rows_of(observed.path)}
        asked = {
            fold: (pool, [scores[str(i)] for i in pool], [effects.get(str(i)) for i in pool])
            for fold, pool in pools.items()
        }
        biases = {fold: PositionBias.from_dict(found) for fold, found in jobs.run("calibration", asked)}
        if open_ := sorted(fold for fold, bias in biases.items() if bias.sign == "undetermined"):
            print(f"folds {open_}: the bias's sign is undetermined; no '-matched' baseline there", file=sys.stderr)
        given = {i: (scores.get(str(i)), biases[study.folds[i]].to_dict()) for i in range(len(study.examples))}
        todo = {i: what for i, what in given.items() if str(i) not in read}
        with track("reading", len(todo), "questions", None) as advance:
            for i, (observations, readings) in jobs.run("question", todo):
                if str(i) not in observed:
                    observed.append(str(i), observations)
                read.append(str(i), readings)
                advance(1)


def keep(jobs: Jobs, label: str, what: str, log: ResultLog, questions: Iterable[int]) -> None:
    """Run the questions that a log lacks, and append each result as it comes."""
    todo: dict[int, tuple[Any, ...]] = {i: () for i in questions if str(i) not in log}
    if not todo:
        return
    with track(label, len(todo), "questions", None) as advance:
        for i, row in jobs.run(what, todo):
            log.append(str(i), row)
            advance(1)


class Study:
    """The work on each question, and the settings of all."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        examples = load_examples(arguments.data)
        self.arguments = arguments
        count = min(arguments.questions, len(examples))
        self.clusters = [cluster_of(i, e) for i, e in enumerate(examples[:count])]
        self.folds = folds_of(self.clusters, arguments.folds, arguments.seed)
        self.ranks = [gold_rank(e) for e in examples[:count]]
        self.examples = [
            replace(e, passages=e.passages[: arguments.passages], candidates=[], id=str(i))
            for i, e in enumerate(examples[:count])
        ]
        self.reader = Reader.load(arguments.model, precision=arguments.precision)
        self.template = Template()
        self.settings = {
            "data": fingerprint(arguments.data),
            "reader": reader_identity(self.reader.describe()),
            "template": self.template.digest(),
            "passages": arguments.passages,
            "seed": arguments.seed,
            "answers": arguments.max_new_tokens if ANSWERS in arguments.methods else None,
        }

    def reading_settings(self) -> dict[str, Any]:
        """Return the settings that only the readings depend on."""
        a = self.arguments
        return {
            "questions": len(self.examples),
            "folds": a.folds,
            "calibration_questions": a.calibration_questions,
            "methods": a.methods,
            "shuffles": a.shuffles,
            "max_new_tokens": a.max_new_tokens,
            "cross_encoder": a.cross_encoder,
            "primary": list(PRIMARY),
        }

    def pool(self, fold: int) -> list[int]:
        """Return the questions that a fold's calibration is measured on: the first ones outside it."""
        outside = [i for i, f in enumerate(self.folds) if f != fold]
        if len(outside) < 2:
            sys.exit(f"fold {fold}: {len(outside)} questions outside it; use more --questions or --folds")
        return outside[: self.arguments.calibration_questions]

    def observe(self, i: int) -> dict[str, Any]:
        """Score 3N random orderings of a question, and answer after each if self-consistency is a method."""
        try:
            with self.reader.session(cache_scored=True) as session:
                return self.observed(session, i, [])
        except OutOfBudgetError as error:
            return self.observed(self.reader, i, [str(error)])

    def observed(self, reader: ScoringReader, i: int, notes: list[str]) -> dict[str, Any]:
        """Return the row. A session that caches its scored sequences reads each ordering once for both."""
        a, example = self.arguments, self.examples[i]
        right = right_answers(example)  # scored only for "random-mean"; no method sees them
        scores = score_permutations(
            reader,
            replace(example, candidates=right),
            permutations="random",
            seed=a.seed + i,
            template=self.template,
            score_passages=True,
            query_likelihood=True,
            max_batch_tokens=a.max_batch_tokens,
        )
        mean = {"nats": rounded(np.logaddexp.reduce(scores.logprobs, axis=1).mean())}
        row = {**observation(scores), "random_mean": mean, "notes": notes}
        if ANSWERS not in a.methods:
            return row
        vote = self_consistency(
            reader,
            example.question,
            example.passages,
            count=len(scores.permutations),  # with this seed the orders are those just scored
            seed=a.seed + i,
            template=self.template,
            max_new_tokens=a.max_new_tokens,
            max_batch_tokens=a.max_batch_tokens,
        )
        mean |= mean_rates(vote.answers, right)
        own = mean_rates([vote.answer], right)
        return {**row, "vote": {**own, "share": vote.share, "computed": by_itself(vote.stats).computed_tokens}}

    def probe(self, i: int) -> dict[str, Any]:
        """Score the right answers of a question with its gold passage at each place."""
        example = self.examples[i]
        gold = gold_of(example.passages)
        assert gold is not None
        found = probe(
            self.reader,
            [example],
            [gold],
            template=self.template,
            max_batch_tokens=self.arguments.max_batch_tokens,
            progress=False,
        )
        return {"effects": found.effects[0].tolist(), "reader": found.reader}

    def calibration(
        self, fold: int, pool: list[int], scores: list[dict[str, Any]], effects: list[list[float] | None]
    ) -> dict[str, Any]:
        """Measure and store the bias for a fold on the pool's questions, its sign on their gold passages."""
        path = self.arguments.output / f"bias-fold{fold}.json"
        moved = [e for e in effects if e is not None]
        made = {"questions": pool, "probed": len(moved), **self.settings}
        if path.exists():
            bias = PositionBias.load(path)
            if dict(bias.measured_on) != json.loads(json.dumps(made)):
                raise InputError(f"{path}: measured on other questions or settings; use another --output")
            return bias.to_dict()
        gold = [gold_of(self.examples[i].passages) for i in pool]
        known = sum(g is not None for g in gold)
        bias = calibrate(
            map(scores_of, scores),
            contrast=np.array(moved) if len(moved) >= 2 else None,
            gold=gold if known >= 2 else None,  # fewer cannot tell how far to trust P(best)
            seed=self.arguments.seed,
        )
        bias = replace(bias, measured_on=made)
        bias.save(path)
        return bias.to_dict()

    def question(
        self, i: int, observed: dict[str, Any] | None, measured: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the rows of a question's observations (made here if missing) and of its readings."""
        try:
            with self.reader.session(cache_scored=True) as session:
                observed = observed or self.observed(session, i, [])
                return observed, self.readings(session, i, observed, measured, [])
        except OutOfBudgetError as error:
            notes = [str(error)]
        observed = observed or self.observe(i)
        with Session(self.reader.local_model) as session:
            return observed, self.readings(session, i, observed, measured, notes)

    def readings(
        self, session: Session, i: int, observed: dict[str, Any], measured: dict[str, Any], notes: list[str]
    ) -> dict[str, Any]:
        """Return the row, from a question's observations and its fold's calibration."""
        started, a, example = time.perf_counter(), self.arguments, self.examples[i]
        notes = notes + self.keep(session, example, [range(len(example.passages))])
        options = {"count": a.shuffles, "model": a.cross_encoder, "max_batch_tokens": a.max_batch_tokens}
        names = [m for m in a.methods if m != ANSWERS]
        scores, bias = scores_of(observed), PositionBias.from_dict(measured)
        methods = all_orders(session, self.template, example, scores, bias, names, a.seed + i, options)
        found = time.perf_counter()
        orders = [row["order"] for row in methods.values() if "order" in row]
        notes += self.keep(session, example, orders)
        results, stats = outcomes(
            session,
            example,
            orders,
            template=self.template,
            max_new_tokens=a.max_new_tokens,
            max_batch_tokens=a.max_batch_tokens,
        )
        ended = time.perf_counter()
        kept = {"computed": session.stats.computed_tokens, "reused": session.stats.cached_tokens, "notes": notes}
        pieces = encode(self.reader.encoder, self.template, example.question, example.passages, [])
        return {
            "reader": self.reader.describe(),
            "full": full_orderings(pieces),
            "gold": gold_of(example.passages),
            "gold_rank": self.ranks[i],
            "cluster": self.clusters[i],
            "fold": self.folds[i],
            "methods": {name: method_row(row) for name, row in methods.items()},
            "outcomes": read_once(orders, results),
            "random_mean": observed["random_mean"],
            "vote": observed.get("vote"),
            "read": {**tokens(stats), "orders": len({*map(tuple, orders)})},
            "session": kept,
            "seconds": {"orders": round(found - started, 3), "reading": round(ended - found, 3)},
        }

    def keep(self, session: Session, example: Example, orders: Iterable[Sequence[int]]) -> list[str]:
        """Prefill the prompts of these orders. Return a note if memory does not hold them."""
        prompts = reading_prompts(self.reader, example.question, example.passages, orders, self.template)
        try:
            session.prefill(*prompts, max_batch_tokens=self.arguments.max_batch_tokens)
        except OutOfBudgetError as error:
            return [str(error)]
        return []


if __name__ == "__main__":
    main()
