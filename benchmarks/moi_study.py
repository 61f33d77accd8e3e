"""MoI and what it has to beat, on real questions.

    python benchmarks/moi_study.py questions.jsonl.gz --passages 5 --questions 800 --output runs/moi5
    python benchmarks/moi_study.py questions.jsonl.gz --passages 5 --questions 800 --output runs/moi5 --report

For each question: 3N random orderings are scored; every method orders the passages with a calibration that has not
seen the question (cross-fitted in folds by gold passage; its sign is checked on gold passages of the same questions,
moved through the places); all methods' orders are then read in one packed pass and answered in one call. Rows are
appended as they come, so a stopped run continues. The primary contrast is fixed beforehand and part of every row's
settings: moi-calibrated (matched order) against qg-matched, in nats of the right answers (log-sum-exp over the
aliases).
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from moi_folds import cluster_of, folds_of, gold_rank, right_answers
from moi_orders import BASELINES, MOI, all_orders
from moi_report import write_report

from fastreader import Example, PermutationScores, Reader, Template, load_examples, score_permutations
from fastreader.identity import guarding
from fastreader.jsonl import ResultLog, iter_results
from fastreader.moi import PositionBias, calibrate, probe
from fastreader.moi.baselines import gold_of, self_consistency
from fastreader.moi.cost import full_orderings
from fastreader.moi.outcomes import outcomes
from fastreader.progress import track
from fastreader.prompts import encode

PRIMARY = ("moi-calibrated", "qg-matched", "nats")
ANSWERS = "self-consistency"


def main() -> None:
    arguments = parse()
    examples = load_examples(arguments.data)
    if arguments.report:
        write_report(arguments.output, PRIMARY)
        return
    arguments.output.mkdir(parents=True, exist_ok=True)
    Study(arguments, examples).run()
    write_report(arguments.output, PRIMARY)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="questions with ranked passages, one flagged as gold, and answers")
    parser.add_argument("--output", type=Path, required=True, help="folder of the run")
    parser.add_argument("--passages", type=int, default=5, help="N, of the retriever's first")
    parser.add_argument("--questions", type=int, default=800)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--calibration-questions", type=int, default=100, help="at most, outside a question's fold")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precision", default="fast")
    parser.add_argument("--methods", nargs="*", default=[*BASELINES, *MOI, ANSWERS], help="names; all by default")
    parser.add_argument("--cross-encoder", help="name or folder of one: adds cross-encoder and cross-encoder-matched")
    parser.add_argument("--shuffles", type=int, default=10, help="of permutation self-consistency")
    parser.add_argument("--samples", type=int, default=30, help="orders of self-consistency over answers")
    parser.add_argument("--max-new-tokens", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, help="tokens a pass computes at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", action="store_true", help="only write the report of the rows there are")
    arguments = parser.parse_args()
    if arguments.cross_encoder:
        arguments.methods += ["cross-encoder", "cross-encoder-matched"]
    return arguments


class Study:
    """One run of the study."""

    def __init__(self, arguments: argparse.Namespace, examples: list[Example]) -> None:
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
            "data": hashlib.sha256(arguments.data.read_bytes()).hexdigest()[:16],
            "reader": guarding(self.reader.describe()),
            "template": self.template.digest(),
            "passages": arguments.passages,
            "seed": arguments.seed,
        }

    def run(self) -> None:
        a = self.arguments
        settings = {
            **self.settings,
            "questions": len(self.examples),
            "folds": a.folds,
            "calibration_questions": a.calibration_questions,
            "methods": a.methods,
            "shuffles": a.shuffles,
            "samples": a.samples,
            "max_new_tokens": a.max_new_tokens,
            "cross_encoder": a.cross_encoder,
            "primary": list(PRIMARY),
        }
        with (
            ResultLog(a.output / "observations.jsonl", settings=self.settings, resume=True) as observed,
            ResultLog(a.output / "probes.jsonl", settings=self.settings, resume=True) as probed,
            ResultLog(a.output / "readings.jsonl", settings=settings, resume=True) as read,
        ):
            pools = {fold: self.pool(fold) for fold in sorted(set(self.folds))}
            first = sorted(set(itertools.chain(*pools.values())))
            with track("observing for the calibrations", len(first), "questions", None) as advance:
                for i in first:
                    self.observe(i, observed)
                    self.probe(i, probed)
                    advance(1)
            effects = {row["id"]: row["effects"] for row in iter_results(probed.path)}
            scores = {row["id"]: PermutationScores.from_dict(row) for row in iter_results(observed.path)}
            biases = {fold: self.calibration(fold, pool, scores, effects) for fold, pool in pools.items()}
            if open_ := [fold for fold, bias in biases.items() if bias.sign == "undetermined"]:
                print(f"folds {open_}: the bias's sign is undetermined; no '-matched' baseline there", file=sys.stderr)
            with track("reading", len(self.examples), "questions", None) as advance:
                for i in range(len(self.examples)):
                    if str(i) not in read:
                        own = scores.get(str(i)) or self.observe(i, observed)
                        assert own is not None
                        read.append(str(i), self.question(i, own, biases[self.folds[i]]))
                    advance(1)

    def pool(self, fold: int) -> list[int]:
        """Questions that the calibration of a fold is measured on: the first ones outside it."""
        outside = [i for i, f in enumerate(self.folds) if f != fold]
        if len(outside) < 2:
            sys.exit(f"fold {fold}: {len(outside)} questions outside it; take more --questions or --folds")
        return outside[: self.arguments.calibration_questions]

    def observe(self, i: int, log: ResultLog) -> PermutationScores | None:
        """3N random orderings of a question; None where the log has them."""
        if str(i) in log:
            return None
        example = self.examples[i]
        result = score_permutations(
            self.reader,
            replace(example, candidates=right_answers(example)),  # for "random-mean" alone; no method sees them
            permutations="random",
            seed=self.arguments.seed + i,
            template=self.template,
            score_passages=True,
            alone=True,
            max_tokens=self.arguments.max_tokens,
        )
        log.append(str(i), {k: v for k, v in result.to_dict().items() if k != "id"})
        return result

    def probe(self, i: int, log: ResultLog) -> None:
        """The right answers of a question with its gold passage at each place, unless the log has them."""
        example = self.examples[i]
        gold = gold_of(example.passages)
        if str(i) in log or gold is None:
            return
        found = probe(
            self.reader,
            [example],
            [gold],
            template=self.template,
            max_tokens=self.arguments.max_tokens,
            progress=False,
        )
        log.append(str(i), {"effects": found.effects[0].tolist(), "reader": found.reader})

    def calibration(
        self, fold: int, pool: list[int], scores: dict[str, PermutationScores], effects: dict[str, list[float]]
    ) -> PositionBias:
        """The bias for one fold's questions, measured on the pool's, its sign on their gold passages; kept."""
        path = self.arguments.output / f"bias-fold{fold}.json"
        moved = [str(i) for i in pool if str(i) in effects]
        made = {"questions": pool, "probed": len(moved), **self.settings}
        if path.exists():
            bias = PositionBias.load(path)
            if dict(bias.measured_on) != json.loads(json.dumps(made)):
                sys.exit(f"{path}: measured on other questions or settings; take another --output")
            return bias
        gold = [gold_of(self.examples[i].passages) for i in pool]
        known = sum(g is not None for g in gold)
        bias = calibrate(
            (scores[str(i)] for i in pool),
            contrast=np.array([effects[i] for i in moved]) if len(moved) >= 2 else None,
            gold=gold if known >= 2 else None,  # fewer tell nothing of how far to trust P(best)
            seed=self.arguments.seed,
        )
        bias = replace(bias, measured_on=made)
        bias.save(path)
        return bias

    def question(self, i: int, scores: PermutationScores, bias: PositionBias) -> dict[str, Any]:
        """A row of readings."""
        started, a, example = time.perf_counter(), self.arguments, self.examples[i]
        options = {"count": a.shuffles, "model": a.cross_encoder, "max_tokens": a.max_tokens}
        names = [m for m in a.methods if m != ANSWERS]
        methods = all_orders(self.reader, self.template, example, scores, bias, names, a.seed + i, options)
        found = time.perf_counter()
        orders = {name: row["order"] for name, row in methods.items() if "order" in row}
        results, stats = outcomes(
            self.reader,
            example,
            list(orders.values()),
            template=self.template,
            max_new_tokens=a.max_new_tokens,
            max_tokens=a.max_tokens,
        )
        for name, outcome in zip(orders, results, strict=True):
            methods[name]["outcome"] = outcome.to_dict()
        nats = np.logaddexp.reduce(scores.loglik, axis=1)
        pieces = encode(self.reader.encoder, self.template, example.question, example.passages, [])
        row = {
            "reader": self.reader.describe(),
            "full": full_orderings(pieces),
            "question": example.question,
            "answers": example.answers,
            "gold": gold_of(example.passages),
            "gold_rank": self.ranks[i],
            "cluster": self.clusters[i],
            "fold": self.folds[i],
            "methods": methods,
            "random_mean": float(nats.mean()),
            "read": {"given": stats.given, "computed": stats.computed, "orders": len({*map(tuple, orders.values())})},
            "seconds": {"orders": round(found - started, 3), "reading": round(time.perf_counter() - found, 3)},
        }
        if ANSWERS in a.methods:
            vote = self_consistency(
                self.reader,
                example.question,
                example.passages,
                count=a.samples,
                seed=a.seed + i,
                template=self.template,
                max_new_tokens=a.max_new_tokens,
                max_tokens=a.max_tokens,
            )
            row["self_consistency"] = {**vote.to_dict(), "seconds": round(time.perf_counter() - started, 3)}
        return row


if __name__ == "__main__":
    main()
