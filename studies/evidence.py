"""What the orders of passages are worth to the packaged readers, each against the retriever's order.

    python studies/evidence.py DATA --model gemma-3-270m --questions 300 --paper 60
    python studies/evidence.py --report

The primary contrast, stated before the first row: passages arranged by their BM25 scores (`arrange-bm25`) against the
retriever's order (`retriever`), in nats of the right answers (log-sum-exp over the aliases). No calibration has seen
the questions: the shipped ones were measured on questions from 700 on, and only earlier ones are read here. The rows of
SmolLM2 come from `moi_study.py` (`results/moi5`, `results/moi10`), whose calibrations are cross-fitted. Of
these, too, only questions before 700 count. The two `uncalibrated` methods see a reader whose calibrations are hidden,
and pool the scores of their calls, question by question.

`--observations` reads a run of `moi_study.py` instead of scoring: a pool takes the stored scores question by
question, and only the orders that follow from the pool before it are read.

Rows hold numbers and no text of the data, and are appended as they come, so the same command resumes a stopped run.
`--seconds` ends a run in time. Orders that cost nothing come first, then those that score (`--scored` questions), then
the paper's own MoI, which takes most of the time (`--paper` questions), then the right answers' mean probability over
three rotations of the retriever's order (`--averaged` questions).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lib.evidence_report import FOLDER, write_report
from lib.moi_orders import all_orders
from lib.moi_rows import cluster_of, gold_rank, key, method_row, read_once, rounded, scores_of
from lib.shared import fingerprint, make_parser, rows_of, unpack

from fastreader import Arranger, PermutationScores, Reader, Template, load_examples, score_permutations
from fastreader.core.progress import track
from fastreader.core.protocol import ReaderWrapper
from fastreader.data.fingerprints import reader_identity
from fastreader.data.result_log import ResultLog, iter_results
from fastreader.moi import Observations, Pool, debias, observe
from fastreader.moi.analyses.outcomes import outcomes
from fastreader.moi.baselines import gold_of
from fastreader.moi.calibration.store import SHIPPED, file_name
from fastreader.moi.quantities.position_bias import PositionBias
from fastreader.moi.reorder.rerank import rerank
from fastreader.permutations import cyclic
from fastreader.reader.session import Session

FREE = ["retriever", "reversed", "random", "best-at-the-ends", "bm25-matched"]
SCORED = ["retriever", "qg", "qg-matched", "moi-calibrated"]
PAPER = ["retriever", "moi-joint"]
ROTATIONS = 3  # of the retriever's order, for answers over orderings
HELD_OUT = 700  # questions from here on were used for the shipped calibrations


def main() -> None:
    arguments = parse()
    if not arguments.report:
        arguments.output.mkdir(parents=True, exist_ok=True)
        Evidence(arguments).run()
    write_report(arguments.output)


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path, nargs="?", help="questions with ranked passages, one flagged as gold")
    parser.add_argument("--model", default="gemma-3-270m")
    parser.add_argument("--passages", type=int, default=5, help="N, with a shipped calibration")
    parser.add_argument("--questions", type=int, default=300, help="questions that are loaded")
    parser.add_argument("--free", type=int, help="questions for the orders that cost nothing [default: all]")
    parser.add_argument("--observations", type=Path, help="of `moi_study.py`: pool these stored scores instead")
    parser.add_argument("--scored", type=int, default=150, help="questions for the orders that score")
    parser.add_argument("--paper", type=int, default=60, help="questions for the paper's own MoI")
    parser.add_argument("--averaged", type=int, default=300, help="questions for answers over orderings")
    parser.add_argument("--output", type=Path, default=FOLDER)
    parser.add_argument("--max-new-tokens", type=int, default=0, help="of answers; 0 writes none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no question after this time")
    parser.add_argument("--report", action="store_true", help="only write the report of the existing rows")
    arguments = parser.parse_args()
    if not arguments.report and (arguments.data is None or arguments.questions > HELD_OUT):
        parser.error(f"expected a data file and at most {HELD_OUT} questions")
    return arguments


class Hidden(ReaderWrapper):
    """A session under a name that no calibration has."""

    def __init__(self, reader: Session) -> None:
        super().__init__(reader)
        for name in ("encoder", "budget", "plan", "prefix", "score", "loglikelihood", "generate"):
            setattr(self, name, getattr(reader, name))

    def describe(self) -> dict[str, str]:
        return hidden(super().describe())


def hidden(about: dict[str, str]) -> dict[str, str]:
    return {**about, "name": f"{about['name']}, calibrations hidden"}


class Evidence:
    """The work on each question, and the settings of all."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, n = arguments, arguments.passages
        self.reader, self.template = Reader.load(arguments.model), Template()
        given = load_examples(arguments.data, limit=arguments.questions)
        self.about = [{"gold_rank": gold_rank(e), "cluster": cluster_of(i, e)} for i, e in enumerate(given)]
        self.examples = [replace(e, passages=e.passages[:n], candidates=[]) for e in given]
        about = self.reader.describe()
        name = file_name(about["name"], about.get("revision", ""), self.template.digest(), n, n, "question")
        self.bias = PositionBias.load(SHIPPED / name)
        self.settings = {
            "data": fingerprint(arguments.data),
            "reader": reader_identity(about),
            "template": self.template.digest(),
            "passages": n,
            "seed": arguments.seed,
            "max_new_tokens": arguments.max_new_tokens,
            "bias": rounded(self.bias.bias.tolist()),
        }

    def run(self) -> None:
        a = self.arguments
        end = time.monotonic() + a.seconds

        def log(stage: str) -> ResultLog:
            path = unpack(a.output / f"{a.model}-n{a.passages}-{stage}.jsonl")
            return ResultLog(path, settings=self.settings, resume=True)

        if a.observations:
            stored = {row["id"]: observe(scores_of(row), passages=a.passages) for row in rows_of(a.observations)}
            with log("pooled") as pooled:
                found = partial(self.pooled, stored, list(self.settled(stored)))
                self.each("a pool of stored scores", pooled, a.questions, end, found)
            return
        with log("free") as free:
            self.each("free orders", free, a.questions if a.free is None else a.free, end, self.free)
        with log("scored") as scored:
            pool = self.pool(iter_results(scored.path))
            self.each("scored orders", scored, a.scored, end, lambda i, session: self.scored(i, session, pool))
        with log("paper") as paper:
            self.each("the paper's MoI", paper, a.paper, end, self.paper)
        with log("averaged") as averaged:
            self.each("answers over orderings", averaged, a.averaged, end, self.averaged)

    def each(self, label: str, log: ResultLog, count: int, end: float, work: Any) -> None:
        """Append a row for each question that a log lacks, in their order, until time is up."""
        todo = [i for i in range(min(count, len(self.examples))) if str(i) not in log]
        with track(label, len(todo), "questions", None) as advance:
            for i in todo:
                if time.monotonic() > end:
                    return
                started = time.perf_counter()
                with self.reader.session(cache_scored=True) as session:
                    row = work(i, session)
                log.append(str(i), {**row, **self.about[i], "seconds": round(time.perf_counter() - started, 2)})
                advance(1)

    def pool(self, rows: Iterable[dict[str, Any]]) -> Pool:
        """Return the pool as it was after the rows of a stopped run."""
        pool = Pool()
        for row in rows:
            if row["pooled"] is not None:
                pool.add(self.observations(row["pooled"]))
        return pool

    def observations(self, pooled: dict[str, Any]) -> Observations:
        n = self.arguments.passages
        return Observations(
            np.array(pooled["question"]),
            np.array(pooled["permutations"]),
            n,
            qg=np.array(pooled["alone"]),
            reader=hidden(self.reader.describe()),
            template=self.template.digest(),
        )

    def score(self, i: int, session: Session, permutations: Any, **also: bool) -> PermutationScores:
        options = {"seed": self.arguments.seed + i, "template": self.template, "question_only": True, **also}
        return score_permutations(session, self.examples[i], permutations=permutations, **options)

    def found(self, i: int, session: Session, scores: Any, names: list[str]) -> dict[str, Any]:
        """Return the rows of methods, without those that are also read in reverse."""
        seed = self.arguments.seed + i
        methods = all_orders(session, self.template, self.examples[i], scores, self.bias, names, seed, {})
        return {name: methods[name] for name in names}

    def free(self, i: int, session: Session) -> dict[str, Any]:
        return self.read(i, session, self.found(i, session, None, FREE))

    def scored(self, i: int, session: Session, pool: Pool) -> dict[str, Any]:
        example, n, seed = self.examples[i], self.arguments.passages, self.arguments.seed + i
        scores = self.score(i, session, [list(range(n))], query_likelihood=True)
        methods = self.found(i, session, scores, SCORED)
        unknown = Hidden(session)
        ranked = rerank(unknown, example, template=self.template, seed=seed, pool=pool)
        computed = ranked.cost.computed_tokens + ranked.cost.cached_tokens
        methods["uncalibrated"] = {"order": ranked.indices, "computed": computed, "given": ranked.cost.total_tokens}
        settled = pool.bias(unknown.describe(), self.template.digest(), n)
        by_scores = list(range(n))
        if settled is not None:
            by_scores = Arranger.of([settled]).order([p.score for p in example.passages])
        methods["uncalibrated-arrange"] = {"order": by_scores, "computed": computed, "given": ranked.cost.total_tokens}
        pooled = ranked.observations if ranked.bias is None else None
        return self.read(i, session, methods) | {
            "bias_source": ranked.bias_source,
            "pooled": pooled
            and {
                "question": rounded(pooled.values.tolist()),
                "permutations": pooled.permutations.tolist(),
                "alone": rounded([] if pooled.qg is None else pooled.qg.tolist()),
            },
        }

    def settled(self, stored: dict[str, Observations]) -> Iterator[PositionBias | None]:
        """Yield what a pool of the questions before each knows."""
        pool = Pool()
        for i in range(len(self.examples)):
            observed = stored[str(i)]
            yield pool.bias(observed.reader, observed.template, observed.passages)
            pool.add(observed)

    def pooled(
        self, stored: dict[str, Observations], biases: list[PositionBias | None], i: int, session: Session
    ) -> dict[str, Any]:
        """Read what MoI and `arrange` do with a pool of the questions before, all of whose scores are stored."""
        observed, bias = stored[str(i)], biases[i]
        scores = [p.score for p in self.examples[i].passages]
        given = list(range(observed.passages))
        orders = {"retriever": given, "uncalibrated": given, "uncalibrated-arrange": given}
        if bias is not None:
            orders["uncalibrated"] = debias(observed, bias).order("matched").tolist()
            orders["uncalibrated-arrange"] = Arranger.of([bias]).order(scores)
        return self.read(i, session, {name: {"order": order} for name, order in orders.items()})

    def paper(self, i: int, session: Session) -> dict[str, Any]:
        scores = self.score(i, session, "random", score_passages=True)
        return self.read(i, session, self.found(i, session, scores, PAPER))

    def averaged(self, i: int, session: Session) -> dict[str, Any]:
        """Read the retriever's order and rotations of it, over which the right answers' probabilities are averaged."""
        n = self.arguments.passages
        rows = cyclic(n).permutations[np.linspace(0, n, ROTATIONS, endpoint=False).astype(int)].tolist()
        found = self.read(i, session, {f"rotation {place}": {"order": order} for place, order in enumerate(rows)})
        stats = outcomes(session, self.examples[i], rows[1:], template=self.template, write=False)[1]
        own = {"orders": rows, "computed": stats.computed_tokens + stats.cached_tokens, "given": stats.total_tokens}
        found["methods"] = {"retriever": {"order": rows[0], "computed": 0, "given": 0}, "answers-over-orderings": own}
        return found

    def read(self, i: int, session: Session, methods: dict[str, Any]) -> dict[str, Any]:
        orders = list({key(row["order"]): row["order"] for row in methods.values()}.values())
        most = self.arguments.max_new_tokens
        results, _ = outcomes(
            session, self.examples[i], orders, template=self.template, write=most > 0, max_new_tokens=max(most, 1)
        )
        return {
            "gold": gold_of(self.examples[i].passages),
            "methods": {name: method_row(row) for name, row in methods.items()},
            "outcomes": read_once(orders, results),
        }


if __name__ == "__main__":
    main()
